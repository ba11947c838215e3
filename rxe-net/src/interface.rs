//! The network interfaces of this host as RoCEv2 sees them: each with its addresses, and the GID
//! table made of those. IBTA annex A17.4.
//!
//! A snapshot: [`InterfaceMonitor`] says when it is out of date.

mod gid_table;
mod monitor;
mod rtnetlink;

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::net::{AddressFamily, SocketType, socket};

use rxe_sys::NetDev;
use rxe_sys::sockopt::namespace_cookie;

use crate::error::NetError;

pub use gid_table::{GidEntry, GidTable};
pub use monitor::InterfaceMonitor;

/// What the kernel says of the interface of this name.
///
/// # Errors
/// [`NetError::NoSuchDevice`], or a failed system call.
pub(crate) fn net_device(name: &str) -> Result<NetDev, NetError> {
    NetDev::lookup(name)?.ok_or_else(|| NetError::NoSuchDevice { netdev: name.to_owned() })
}

/// A network interface of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, as in `eth0`.
    pub name: String,
    /// Its number in the namespace: also the scope ID of its link-local addresses.
    pub index: u32,
    /// Its Ethernet address; all zero on loopback. `None` where the link has none of 48 bits
    /// (tunnels).
    pub mac: Option<MacAddr>,
    /// The largest IP packet it carries, in bytes.
    pub mtu: u32,
    /// An administrator wants it up.
    pub up: bool,
    /// It is up and has a carrier.
    pub running: bool,
    /// It leads back to this host only.
    pub loopback: bool,
    /// Its addresses, as the kernel lists them: IPv4 first.
    pub addresses: Vec<Address>,
}

impl Interface {
    /// All interfaces of the network namespace this thread is in, by number.
    ///
    /// # Errors
    /// Whatever the system says where it lets nobody ask (a seccomp filter against `AF_NETLINK`).
    pub fn list() -> io::Result<Vec<Self>> {
        rtnetlink::list()
    }

    /// The interface that takes the frames of the one of this number, which is its port: a bridge, a bond
    /// or the like.
    pub(crate) fn owner_of_port(index: u32) -> io::Result<Option<String>> {
        rtnetlink::owner_of_port(index)
    }

    /// The XDP program of the interface of this number: where the kernel runs it, as ip-link(8) calls it
    /// (`xdpdrv`, `xdpgeneric`), and its number.
    pub(crate) fn xdp_program(index: u32) -> io::Result<Option<(&'static str, u32)>> {
        rtnetlink::xdp_program(index)
    }

    /// A number for the network namespace this thread is in: no other has it before the system
    /// restarts. (Before Linux 5.14 another may, once this one is gone.)
    ///
    /// # Errors
    /// Whatever the system says where it gives no socket, or has neither the number nor `/proc`.
    pub fn namespace() -> io::Result<u64> {
        let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
        namespace_cookie(socket.as_fd())
            .or_else(|_| fs::metadata("/proc/thread-self/ns/net").map(|meta| meta.ino()))
    }

    /// The GIDs of its addresses.
    pub fn gids(&self) -> GidTable {
        GidTable::of(self)
    }

    /// A number that tells this interface from others (EUI-64, the way IPv6 makes an interface
    /// identifier of a MAC: the universal/local bit inverted). RFC 4291 appendix A.
    ///
    /// Without a MAC it is made of the name and the first address, so that it stays the same from
    /// process to process.
    pub fn eui64(&self) -> [u8; 8] {
        self.mac.map_or_else(|| self.made_up_eui64(), MacAddr::eui64)
    }

    fn made_up_eui64(&self) -> [u8; 8] {
        let address = self.addresses.first().map(|a| a.ip.to_string()).unwrap_or_default();
        // FNV-1a: no secret is at stake, only a stable spread.
        let seed = 0xcbf2_9ce4_8422_2325_u64;
        let hash = self
            .name
            .bytes()
            .chain(*b"/")
            .chain(address.bytes())
            .fold(seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        let mut id = hash.to_be_bytes();
        // Neither universal nor a group.
        id[0] &= 0xfc;
        id
    }
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that its network shares.
    pub prefix_len: u8,
    /// How far it is known.
    pub scope: Scope,
    /// IPv6 still looks for duplicates, or has found one: it cannot be used.
    pub tentative: bool,
    /// Another host has it, as IPv6 has found.
    pub duplicate: bool,
}

/// How far an address means the same. RFC 4007; `rtnetlink(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// On this host.
    Host,
    /// On this link.
    Link,
    /// Within a site.
    Site,
    /// Everywhere.
    Global,
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The IPv6 interface identifier made of it. RFC 4291 appendix A.
    pub const fn eui64(self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.0;
        [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f]
    }

    /// The link-local address made of it. RFC 4862, section 5.3.
    pub fn link_local(self) -> Ipv6Addr {
        let mut bytes = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).octets();
        bytes[8..].copy_from_slice(&self.eui64());
        bytes.into()
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddr({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interface with these addresses, global unless they are link-local or loopback.
    pub(super) fn interface(mac: Option<[u8; 6]>, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|text| {
            let ip: IpAddr = text.parse().unwrap();
            let scope = match ip {
                ip if ip.is_loopback() => Scope::Host,
                IpAddr::V6(v6) if v6.is_unicast_link_local() => Scope::Link,
                _ => Scope::Global,
            };
            Address { ip, prefix_len: 24, scope, tentative: false, duplicate: false }
        });
        Interface {
            name: "eth0".into(),
            index: 2,
            mac: mac.map(MacAddr),
            mtu: 1500,
            up: true,
            running: true,
            loopback: false,
            addresses: addresses.collect(),
        }
    }

    #[test]
    fn eui64_inverts_the_local_bit() {
        let eth0 = interface(Some([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]), &[]);
        assert_eq!(eth0.eui64(), [0x50, 0x54, 0x00, 0xff, 0xfe, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn without_a_mac_the_number_depends_on_name_and_address_only() {
        let a = interface(None, &["10.0.0.1"]);
        let mut b = interface(None, &["10.0.0.1", "10.0.0.2"]);
        b.mtu = 9000;
        assert_eq!(a.eui64(), b.eui64());
        assert_eq!(a.eui64()[0] & 0x03, 0, "local, not a group");
        assert_ne!(a.eui64(), interface(None, &["10.0.0.2"]).eui64());
    }

    #[test]
    fn a_namespace_has_one_number() {
        assert_eq!(Interface::namespace().unwrap(), Interface::namespace().unwrap());
    }

    #[test]
    fn this_host_can_be_listed() {
        let all = Interface::list().unwrap();
        let lo = all.iter().find(|i| i.loopback).expect("every namespace has a loopback");
        assert_eq!(lo.mac, Some(MacAddr([0; 6])));
        assert!(lo.mtu >= 16384 && lo.index > 0);
    }
}
