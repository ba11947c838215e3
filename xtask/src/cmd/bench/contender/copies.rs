//! Two copies through shared memory, without a protocol: the example `copies` of rxe-net.

use super::{Read, Reading, words};
use crate::cmd::bench::link::Link;
use crate::cmd::bench::tests::{Kind, Test};

/// One run, of a second. The program starts its other end itself.
pub(super) fn run(program: &str, link: &Link, test: Test) -> Read {
    let ran = link.run_one(&words(&format!("{program} {}", test.bytes)))?;
    let reading = read(&ran.text, test.kind);
    Ok((ran, reading))
}

fn read(text: &str, kind: Kind) -> Option<Reading> {
    let number = |line: &str, unit| line.rsplit_once(": ")?.1.strip_suffix(unit)?.parse().ok();
    let (copies, ping) = text.trim().split_once('\n')?;
    let (value, bytes) = match kind {
        Kind::Latency => (number(ping, " us")?, f64::NAN),
        _ => {
            let rate: f64 = number(copies, " GB/s")?;
            (rate, rate * 1e9)
        }
    };
    Some(Reading { value, bytes, tail: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read() {
        let text = "two copies of 65536 bytes: 10.44 GB/s\n8 bytes one way: 0.112 us\n";
        assert_eq!(read(text, Kind::Bandwidth).unwrap().value, 10.44);
        assert_eq!(read(text, Kind::Latency).unwrap().value, 0.112);
        assert!(read("", Kind::Latency).is_none());
    }
}
