//! The UDP source ports of packets.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use rxe_core::engine::SourcePort;
use rxe_net::SrcPort;

/// The UDP source ports of packets. The destination port is always 4791.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePortPolicy {
    /// One port for each queue pair, as adapters and Linux do.
    ///
    /// Receivers with several queues (RSS) and networks with several paths (ECMP) spread packets by
    /// source port. The queue pairs of a shard use 4 ports in turn over UDP sockets, and 16 over
    /// packet sockets.
    #[default]
    PerQp,
    /// One port for all packets, for a firewall that admits only one. Packets are not spread then.
    Fixed(NonZeroU16),
}

/// The error of a text that is neither `per-qp` nor a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePortError;

impl SourcePortPolicy {
    /// The text form of [`SourcePortPolicy::PerQp`].
    pub const PER_QP: &'static str = "per-qp";

    /// Returns the port, if it is fixed.
    pub(crate) fn fixed(self) -> Option<u16> {
        match self {
            Self::PerQp => None,
            Self::Fixed(port) => Some(port.get()),
        }
    }

    /// Returns the engine's setting for a backend that can send from these ports. If the backend
    /// has only one port, that is used.
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
