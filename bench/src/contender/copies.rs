//! Copies between two processes on one host, without a protocol: the example `copies` of rxe-net.

use super::{Read, Reading, words};
use crate::link::Link;
use crate::tests::{Kind, Test};

/// The way that a message takes from one process to the other.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Copies {
    /// The message is copied into a ring in shared memory, and out of it.
    Two,
    /// The message is copied once, into memory that both processes have mapped.
    Mapped,
}

impl Copies {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Two => "two copies",
            Self::Mapped => "one copy, mapped",
        }
    }
}

/// Runs the program once, for a second. The program starts its other end itself.
pub(super) fn run(program: &str, link: &Link, test: Test, method: Copies) -> Read {
    let way = match test.kind {
        Kind::Latency => "8 bytes one way",
        _ => method.name(),
    };
    let mut command = words(&format!("{program} {}", test.bytes));
    command.push(way.to_owned());
    let ran = link.run_one(&command)?;
    let reading = read(&ran.text, test.kind, way);
    Ok((ran, reading))
}

/// Returns the figures in the output line for this way.
fn read(text: &str, kind: Kind, way: &str) -> Option<Reading> {
    let value = text.lines().find_map(|line| line.strip_prefix(way)?.strip_prefix(": "))?;
    let number = |unit| value.strip_suffix(unit)?.parse::<f64>().ok();
    let (value, bytes) = match kind {
        Kind::Latency => (number(" us")?, f64::NAN),
        _ => number(" GB/s").map(|rate| (rate, rate * 1e9))?,
    };
    Some(Reading { value, bytes, ..Reading::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_read() {
        let text = "two copies: 10.44 GB/s\none copy, mapped: 40.00 GB/s\n\
                    8 bytes one way: 0.112 us\n";
        for (method, rate) in [(Copies::Two, 10.44), (Copies::Mapped, 40.0)] {
            assert_eq!(read(text, Kind::Bandwidth, method.name()).unwrap().value, rate);
        }
        assert_eq!(read(text, Kind::Latency, "8 bytes one way").unwrap().value, 0.112);
        assert!(read("", Kind::Latency, "8 bytes one way").is_none());
    }
}
