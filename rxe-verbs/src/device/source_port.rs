//! Which UDP source ports packets leave from.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use rxe_core::engine::SourcePort;
use rxe_net::SrcPort;

/// Which UDP source ports packets leave from. All go to port 4791, whatever their source port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePortPolicy {
    /// One for each queue pair, as network cards and Linux do it: receivers with several queues (RSS)
    /// and networks with several paths (ECMP) spread packets by them. Queue pairs of a shard have four in
    /// turn over UDP sockets, and 16 over packet sockets.
    #[default]
    PerQp,
    /// The same for all packets: for a firewall that lets through one port. It spreads nothing.
    Fixed(NonZeroU16),
}

/// The text is neither `per-qp` nor a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePortError;

impl SourcePortPolicy {
    /// What [`SourcePortPolicy::PerQp`] is written as.
    pub const PER_QP: &'static str = "per-qp";

    /// The one port, if there is one.
    pub(crate) fn fixed(self) -> Option<u16> {
        match self {
            Self::PerQp => None,
            Self::Fixed(port) => Some(port.get()),
        }
    }

    /// For an engine whose backend can send from these ports. If it can from one only, it is that.
    pub(super) fn over(self, can: SrcPort) -> SourcePort {
        match (can, self) {
            (SrcPort::Fixed(port), _) => SourcePort::Fixed(port),
            (_, Self::Fixed(port)) => SourcePort::Fixed(port.get()),
            (SrcPort::Any, Self::PerQp) => SourcePort::PerQp,
            (SrcPort::Range { first, count }, Self::PerQp) => SourcePort::InTurn { first, count },
        }
    }
}

impl fmt::Display for SourcePortPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerQp => f.pad(Self::PER_QP),
            Self::Fixed(port) => port.fmt(f),
        }
    }
}

impl FromStr for SourcePortPolicy {
    type Err = SourcePortError;

    fn from_str(text: &str) -> Result<Self, SourcePortError> {
        if text == Self::PER_QP {
            return Ok(Self::PerQp);
        }
        text.parse().map(Self::Fixed).map_err(|_| SourcePortError)
    }
}

impl fmt::Display for SourcePortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("choose a UDP port from 1 to 65535 for all packets, or per-qp")
    }
}

impl std::error::Error for SourcePortError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        let fixed = |port| SourcePortPolicy::Fixed(NonZeroU16::new(port).unwrap());
        for policy in [SourcePortPolicy::PerQp, fixed(1), fixed(4791), fixed(65535)] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for wrong in ["0", "65536", "-1", "", "per_qp", "4791 "] {
            assert_eq!(wrong.parse::<SourcePortPolicy>(), Err(SourcePortError), "{wrong:?}");
        }
    }

    #[test]
    fn a_backend_with_one_port_sends_from_that() {
        let fixed = SourcePortPolicy::Fixed(NonZeroU16::MAX);
        for policy in [SourcePortPolicy::PerQp, fixed] {
            assert_eq!(policy.over(SrcPort::Fixed(7)), SourcePort::Fixed(7));
        }
        assert_eq!(fixed.over(SrcPort::Any), SourcePort::Fixed(u16::MAX));
        assert_eq!(SourcePortPolicy::PerQp.over(SrcPort::Any), SourcePort::PerQp);
    }
}
