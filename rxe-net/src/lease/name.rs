//! The names of abstract unix sockets. They are how processes find each other, so they must never
//! change: what is said through the sockets carries a version, the names do not.

use std::fmt::{self, Display};
use std::net::IpAddr;

/// An address as something to be shared. A link-local one is another on each interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) address: IpAddr,
    /// The interface's index, 0 where the address is the same on all.
    scope: u32,
}

impl Place {
    /// An address of the interface with index `scope`.
    pub(crate) fn new(address: IpAddr, scope: u32) -> Self {
        let local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
        Self { address, scope: if local { scope } else { 0 } }
    }

    /// Whether the same address may be on another interface too.
    pub(super) fn is_link_local(&self) -> bool {
        self.scope != 0
    }

    /// Who has this has the block.
    pub(super) fn door(&self, block: u8) -> String {
        format!("rxe/{self}/{block}")
    }

    /// Where the holder of the block gets packets that have reached another process.
    pub(super) fn letterbox(&self, block: u8) -> String {
        format!("rxe/{self}/{block}/post")
    }

    /// Where who listens to a service gets requests for it.
    pub(super) fn service(&self, service: u64) -> String {
        format!("rxe/{self}/service/{service:016x}")
    }

    /// Where the holder of the block is offered shared memory.
    pub(crate) fn memory(&self, block: u8) -> String {
        format!("rxe/{self}/{block}/memory")
    }

    /// Who has this may add to the group.
    pub(super) fn lock(&self) -> String {
        format!("rxe/{self}/lock")
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            0 => write!(f, "{}", self.address),
            scope => write!(f, "{}%{scope}", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_for_ever() {
        let of = |ip: &str| Place::new(ip.parse().unwrap(), 7);
        assert_eq!(of("10.0.0.1").door(3), "rxe/10.0.0.1/3");
        assert_eq!(of("10.0.0.1").letterbox(3), "rxe/10.0.0.1/3/post");
        assert_eq!(of("10.0.0.1").memory(3), "rxe/10.0.0.1/3/memory");
        assert_eq!(of("10.0.0.1").service(0x0106_1234), "rxe/10.0.0.1/service/0000000001061234");
        assert_eq!(of("2001:db8::1").lock(), "rxe/2001:db8::1/lock");
        assert_eq!(of("fe80::1").door(255), "rxe/fe80::1%7/255");
    }
}
