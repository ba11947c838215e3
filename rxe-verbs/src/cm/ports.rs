//! Which identifiers of this process have which ports.

use std::collections::HashMap;
use std::net::SocketAddr;

use parking_lot::Mutex;
use rxe_core::cm::service::PortSpace;

use crate::error::Result;
use crate::os::random_u32;

/// A port that an identifier has, until it is dropped.
#[derive(Debug)]
pub(super) struct Port {
    space: PortSpace,
    address: SocketAddr,
    key: u64,
}

#[derive(Debug)]
struct Use {
    address: SocketAddr,
    reuse: bool,
    key: u64,
}

static USES: Mutex<Option<Uses>> = Mutex::new(None);

type Uses = HashMap<(PortSpace, u16), Vec<Use>>;

/// What the system gives to those who name no port.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;

impl Port {
    /// Takes the port of `address`, or any if that is 0. `None` if somebody has it on the same or an
    /// unspecified address, unless both allow that; `key` tells the user.
    pub(super) fn take(
        space: PortSpace,
        address: SocketAddr,
        reuse: bool,
        key: u64,
    ) -> Result<Option<Self>> {
        let mut uses = USES.lock();
        let uses = uses.get_or_insert_default();
        let mut free = |address: SocketAddr| -> Option<Self> {
            let users = uses.entry((space, address.port())).or_default();
            let meets = |other: &Use| {
                let (a, b) = (other.address.ip(), address.ip());
                a == b || a.is_unspecified() || b.is_unspecified()
            };
            if users.iter().any(|other| meets(other) && !(other.reuse && reuse)) {
                return None;
            }
            users.push(Use { address, reuse, key });
            Some(Self { space, address, key })
        };
        if address.port() != 0 {
            return Ok(free(address));
        }
        for _ in 0..1000 {
            let span = u32::from(EPHEMERAL.end - EPHEMERAL.start);
            let offset = u16::try_from(random_u32()? % span).unwrap_or(0);
            let mut address = address;
            address.set_port(EPHEMERAL.start + offset);
            if let Some(port) = free(address) {
                return Ok(Some(port));
            }
        }
        Ok(None)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut uses = USES.lock();
        if let Some(uses) = &mut *uses
            && let Some(users) = uses.get_mut(&(self.space, self.address.port()))
        {
            users.retain(|user| user.key != self.key);
            if users.is_empty() {
                uses.remove(&(self.space, self.address.port()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(address: &str, reuse: bool, key: u64) -> Option<Port> {
        Port::take(PortSpace::Ib, address.parse().unwrap(), reuse, key).unwrap()
    }

    #[test]
    fn a_port_is_one_user_s_unless_both_share_it() {
        let first = take("10.0.0.1:7", false, 1).unwrap();
        assert!(take("10.0.0.1:7", true, 2).is_none());
        assert!(take("0.0.0.0:7", false, 2).is_none());
        let other = take("10.0.0.2:7", true, 3).unwrap();
        drop(first);
        let shared = take("10.0.0.2:7", true, 4);
        assert!(shared.is_some());
        drop((other, shared));
        assert!(take("0.0.0.0:7", false, 5).is_some());
    }

    #[test]
    fn who_names_none_gets_one() {
        let port = take("10.0.0.1:0", false, 1).unwrap();
        assert!(EPHEMERAL.contains(&port.address().port()));
        assert_eq!(port.address().ip().to_string(), "10.0.0.1");
    }
}
