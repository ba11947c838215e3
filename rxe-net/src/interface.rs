//! The network interfaces of this host, their addresses, and RoCEv2 GID tables. IBTA annex A17.4.
//!
//! An [`Interface`] is a snapshot: [`InterfaceMonitor`] reports when it is out of date.

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

/// Returns the properties of the interface with this name.
///
/// # Errors
/// [`NetError::NoSuchDevice`], or a failed system call.
pub(crate) fn net_device(name: &str) -> Result<NetDev, NetError> {
    NetDev::lookup(name)?.ok_or_else(|| NetError::NoSuchDevice { netdev: name.to_owned() })
}

/// A network interface in this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name, as in `eth0`.
    pub name: String,
    /// The interface index in the namespace: also the scope ID of its link-local addresses.
    pub index: u32,
    /// The Ethernet address; all zero on loopback. `None` if the link has no 48-bit address
    /// (tunnels).
    pub mac: Option<MacAddr>,
    /// The largest IP packet that the interface carries, in bytes.
    pub mtu: u32,
    /// The interface is administratively up.
    pub up: bool,
    /// The interface is up and has a carrier.
    pub running: bool,
    /// The interface leads back to this host only.
    pub loopback: bool,
    /// The addresses in the kernel's order: IPv4 first.
    pub addresses: Vec<Address>,
}

impl Interface {
    /// Returns all interfaces of this thread's network namespace, by index.
    ///
    /// # Errors
    /// The error of the kernel if it refuses netlink sockets (a seccomp filter against
    /// `AF_NETLINK`).
    pub fn list() -> io::Result<Vec<Self>> {
        rtnetlink::list()
    }

    /// Returns the name of the bridge, bond or similar interface that takes the frames of the
    /// interface with this index, which is its port.
    pub(crate) fn owner_of_port(index: u32) -> io::Result<Option<String>> {
        rtnetlink::owner_of_port(index)
    }

    /// Returns the XDP program of the interface with this index. The result is its place, as
    /// ip-link(8) calls it (`xdpdrv`, `xdpgeneric`), and its ID.
    pub(crate) fn xdp_program(index: u32) -> io::Result<Option<(&'static str, u32)>> {
        rtnetlink::xdp_program(index)
    }

    /// Returns a number that identifies this thread's network namespace. It is valid until the host
    /// reboots. Before Linux 5.14 it may be reused once the namespace is gone.
    ///
    /// # Errors
    /// The error of the kernel if it provides no socket, or neither the number nor `/proc`.
    pub fn namespace() -> io::Result<u64> {
        let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
        namespace_cookie(socket.as_fd())
            .or_else(|_| fs::metadata("/proc/thread-self/ns/net").map(|meta| meta.ino()))
    }

    /// Returns the GID table of this interface.
    pub fn gids(&self) -> GidTable {
        GidTable::of(self)
    }

    /// Returns an EUI-64 that tells this interface from others. It is made of the MAC address, with
    /// the universal/local bit inverted as in an IPv6 interface identifier. RFC 4291 appendix A.
    ///
    /// Without a MAC address it is derived from the name and the first address, so that it is the
    /// same in every process.
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
        // The ID is marked as local and individual, so that it equals no real EUI-64.
        id[0] &= 0xfc;
        id
    }
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The length of the network prefix in bits.
    pub prefix_len: u8,
    /// The scope of the address.
    pub scope: Scope,
    /// IPv6 duplicate address detection is running or has failed: the address cannot be used.
    pub tentative: bool,
    /// IPv6 duplicate address detection has found another host with this address.
    pub duplicate: bool,
}

/// The scope in which an address is valid. RFC 4007; `rtnetlink(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// This host.
    Host,
    /// This link.
    Link,
    /// This site.
    Site,
    /// The whole network.
    Global,
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Returns the IPv6 interface identifier of this address. RFC 4291 appendix A.
    pub const fn eui64(self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.0;
        [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f]
    }

    /// Returns the IPv6 link-local address of this address. RFC 4862, section 5.3.
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

    /// Returns an interface with these addresses: global, unless link-local or loopback.
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
