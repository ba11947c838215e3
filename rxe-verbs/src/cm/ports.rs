//! The ports of the identifiers of this process.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use parking_lot::Mutex;
use rxe_core::cm::service::PortSpace;
use rxe_sys::PerProcess;

use super::error::os;
use crate::error::Result;
use crate::os::Environment;

/// A port that belongs to an identifier until this is dropped.
#[derive(Debug)]
pub(super) struct Port {
    /// The host, as in [`Environment::id`].
    host: u64,
    space: PortSpace,
    address: SocketAddr,
    key: u64,
}

/// A request for a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The address; port 0 means any free port.
    pub(super) address: SocketAddr,
    /// Whether the port is shared with identifiers that allow this too.
    pub(super) reuse: bool,
    /// Whether an unspecified address covers only its own family.
    pub(super) afonly: bool,
    /// A unique number of the identifier.
    pub(super) key: u64,
}

/// The users of each port. Each simulated host has its own ports.
type Uses = HashMap<(u64, PortSpace, u16), Vec<Wanted>>;

static USES: PerProcess<Mutex<Uses>> = PerProcess::new();

/// The ports for a bind to port 0: the default range of Linux.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;

impl Port {
    /// Takes a port.
    ///
    /// # Errors
    /// EADDRINUSE: the port is taken on the same address. EADDRNOTAVAIL, like the kernel: one of
    /// the two addresses covers the other, or no port is free.
    pub(super) fn take(
        environment: &Environment,
        space: PortSpace,
        wanted: Wanted,
    ) -> Result<Self> {
        let host = environment.id();
        let mut uses = USES.get().lock();
        let mut free = |wanted: Wanted| -> Result<Self, i32> {
            let users = uses.entry((host, space, wanted.address.port())).or_default();
            users.iter().try_for_each(|other| wanted.beside(other))?;
            users.push(wanted);
            Ok(Self { host, space, address: wanted.address, key: wanted.key })
        };
        if wanted.address.port() != 0 {
            let what = |errno| match errno {
                libc::EADDRINUSE => "bind the port: another identifier has it",
                _ => {
                    "bind the port: another identifier has it, and one of both listens on all \
                     addresses (RDMA_OPTION_ID_AFONLY keeps IPv6 apart from IPv4)"
                }
            };
            return free(wanted).map_err(|errno| os(what(errno), errno));
        }
        for _ in 0..1000 {
            let span = u32::from(EPHEMERAL.end - EPHEMERAL.start);
            let offset = u16::try_from(environment.random_u32()? % span).unwrap_or(0);
            let mut wanted = wanted;
            wanted.address.set_port(EPHEMERAL.start + offset);
            if let Ok(port) = free(wanted) {
                return Ok(port);
            }
        }
        Err(os("find a free port", libc::EADDRNOTAVAIL))
    }

    /// Changes whether the address covers only its own family.
    pub(super) fn set_afonly(&self, afonly: bool) {
        self.change(|user| user.afonly = afonly);
    }

    /// Changes whether the port is shared.
    pub(super) fn set_reuse(&self, reuse: bool) {
        self.change(|user| user.reuse = reuse);
    }

    fn change(&self, change: impl Fn(&mut Wanted)) {
        let mut uses = USES.get().lock();
        let users = uses.get_mut(&(self.host, self.space, self.address.port()));
        users.into_iter().flatten().filter(|user| user.key == self.key).for_each(change);
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Wanted {
    /// Returns whether both may have the same port; otherwise the errno.
    fn beside(&self, other: &Self) -> Result<(), i32> {
        let (a, b) = (self.address.ip(), other.address.ip());
        let apart = self.afonly && other.afonly && a.is_ipv4() != b.is_ipv4();
        if (self.reuse && other.reuse) || apart {
            Ok(())
        } else if a.is_unspecified() || b.is_unspecified() {
            Err(libc::EADDRNOTAVAIL)
        } else if a == b {
            Err(libc::EADDRINUSE)
        } else {
            Ok(())
        }
    }
}

/// Returns the default of `afonly` for the family of `ip`: true for IPv4, and for IPv6 what the
/// kernel is configured for, which is normally false.
pub(super) fn default_afonly(ip: IpAddr) -> bool {
    let system = || fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    ip.is_ipv4() || system().is_ok_and(|only| only.trim() == "1")
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut uses = USES.get().lock();
        if let Some(users) = uses.get_mut(&(self.host, self.space, self.address.port())) {
            users.retain(|user| user.key != self.key);
            if users.is_empty() {
                uses.remove(&(self.host, self.space, self.address.port()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(address: &str, reuse: bool, afonly: bool, key: u64) -> Result<Port, i32> {
        let address: SocketAddr = address.parse().unwrap();
        let afonly = afonly || address.is_ipv4();
        let wanted = Wanted { address, reuse, afonly, key };
        Port::take(&Environment::System, PortSpace::Ib, wanted).map_err(|e| e.errno())
    }

    #[test]
    fn a_port_is_one_user_s_unless_both_share_it() {
        let first = take("10.0.0.1:7", false, false, 1).unwrap();
        assert_eq!(take("10.0.0.1:7", true, false, 2).unwrap_err(), libc::EADDRINUSE);
        assert_eq!(take("0.0.0.0:7", false, false, 2).unwrap_err(), libc::EADDRNOTAVAIL);
        let other = take("10.0.0.2:7", true, false, 3).unwrap();
        drop(first);
        let shared = take("10.0.0.2:7", true, false, 4);
        assert!(shared.is_ok());
        drop((other, shared));
        assert!(take("0.0.0.0:7", false, false, 5).is_ok());
    }

    #[test]
    fn all_of_ipv6_is_beside_all_of_ipv4_if_it_means_no_more() {
        let four = take("0.0.0.0:9", false, false, 1).unwrap();
        assert_eq!(take("[::]:9", false, false, 2).unwrap_err(), libc::EADDRNOTAVAIL);
        let six = take("[::]:9", false, true, 2).unwrap();
        assert_eq!(take("[::]:9", false, true, 3).unwrap_err(), libc::EADDRNOTAVAIL);
        drop(four);
        // The option may be changed back.
        six.set_afonly(false);
        assert_eq!(take("0.0.0.0:9", false, false, 4).unwrap_err(), libc::EADDRNOTAVAIL);
        six.set_afonly(true);
        assert!(take("10.0.0.1:9", false, false, 4).is_ok());
    }

    #[test]
    fn a_forked_child_has_ports_and_a_lock_of_its_own() {
        let _own = take("10.0.0.1:11", false, false, 1).unwrap();
        let locked = USES.get().lock();
        // SAFETY: the child only calls what follows, and ends.
        #[expect(unsafe_code, reason = "a child without exec")]
        let (child, status) = unsafe {
            let child = libc::fork();
            if child == 0 {
                // Ends a child that waits for the parent's lock, which no thread unlocks here.
                libc::alarm(20);
                let taken = take("10.0.0.1:11", false, false, 2);
                libc::_exit(i32::from(taken.is_err()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            (child, status)
        };
        assert!(child > 0 && status == 0, "{status:#x}");
        drop(locked);
        let again = take("10.0.0.1:11", false, false, 3);
        assert_eq!(again.unwrap_err(), libc::EADDRINUSE);
    }

    #[test]
    fn who_names_none_gets_one() {
        let port = take("10.0.0.1:0", false, false, 1).unwrap();
        assert!(EPHEMERAL.contains(&port.address().port()));
        assert_eq!(port.address().ip().to_string(), "10.0.0.1");
    }
}
