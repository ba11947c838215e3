//! Copies between two processes of one host, without a protocol: the example `copies` of rxe-net.

use super::{Read, Reading, words};
use crate::cmd::bench::link::Link;
use crate::cmd::bench::tests::{Kind, Test};

/// How a message gets from one process to the other.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Copies {
    /// Into a ring of shared memory, and out of it.
    Two,
    /// Into memory that both have mapped.
    Mapped,
    /// By the system: `process_vm_writev`.
    System,
}

impl Copies {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Two => "two copies",
            Self::Mapped => "one copy, mapped",
            Self::System => "one copy, system",
        }
    }
}

/// One run, of a second for each way. The program starts its other end itself.
pub(super) fn run(program: &str, link: &Link, test: Test, how: Copies) -> Read {
    let ran = link.run_one(&words(&format!("{program} {}", test.bytes)))?;
    let reading = read(&ran.text, test.kind, how);
    Ok((ran, reading))
}

/// CPU time is left out: it is that of all ways together.
fn read(text: &str, kind: Kind, how: Copies) -> Option<Reading> {
    let (name, unit) = match kind {
        Kind::Latency => ("8 bytes one way", " us"),
        _ => (how.name(), " GB/s"),
    };
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
    let value = value.strip_suffix(unit)?.parse().ok()?;
    Some(Reading { value, bytes: f64::NAN, times: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_read() {
        let text = "two copies: 10.44 GB/s\none copy, mapped: 40.00 GB/s\n\
                    one copy, system: 6.00 GB/s\n8 bytes one way: 0.112 us\n";
        for (how, rate) in [(Copies::Two, 10.44), (Copies::Mapped, 40.0), (Copies::System, 6.0)] {
            assert_eq!(read(text, Kind::Bandwidth, how).unwrap().value, rate);
        }
        assert_eq!(read(text, Kind::Latency, Copies::Two).unwrap().value, 0.112);
        assert!(read("", Kind::Latency, Copies::Two).is_none());
    }
}
