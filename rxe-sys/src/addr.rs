//! Socket addresses in the byte layout of the kernel, without `unsafe`. The structures are
//! `sockaddr_in`, `sockaddr_in6`, `sockaddr_ll` and `sockaddr_xdp`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A socket address of any of these families, aligned as the kernel requires.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct RawAddr {
    /// The `sockaddr_*` structure as the kernel lays it out.
    pub bytes: [u8; RawAddr::CAPACITY],
    /// The length of the structure in bytes, at most [`RawAddr::CAPACITY`]. `bind` and `sendmmsg`
    /// rely on that bound.
    pub(crate) len: u8,
}

impl RawAddr {
    /// The size of the buffer in bytes. The largest structure, `sockaddr_in6`, has 28.
    pub const CAPACITY: usize = 32;
    /// No address: an empty buffer for the kernel to fill in.
    pub const EMPTY: Self = Self { bytes: [0; Self::CAPACITY], len: 0 };

    /// Returns the address of a UDP socket. `scope` is the interface index; only link-local and
    /// IPv6 multicast addresses carry it.
    pub fn inet(ip: IpAddr, port: u16, scope: u32) -> Self {
        let mut raw = Self::EMPTY;
        let b = &mut raw.bytes;
        b[2..4].copy_from_slice(&port.to_be_bytes());
        match ip {
            IpAddr::V4(ip) => {
                b[..2].copy_from_slice(&family(libc::AF_INET).to_ne_bytes());
                b[4..8].copy_from_slice(&ip.octets());
                raw.len = 16;
            }
            IpAddr::V6(ip) => {
                b[..2].copy_from_slice(&family(libc::AF_INET6).to_ne_bytes());
                b[8..24].copy_from_slice(&ip.octets());
                if ip.is_unicast_link_local() || ip.is_multicast() {
                    b[24..28].copy_from_slice(&scope.to_ne_bytes());
                }
                raw.len = 28;
            }
        }
        raw
    }

    /// Returns the address that a packet socket binds to: an interface and an Ethernet protocol.
    pub fn link(ifindex: u32, protocol: u16) -> Self {
        let mut raw = Self::EMPTY;
        let b = &mut raw.bytes;
        b[..2].copy_from_slice(&family(libc::AF_PACKET).to_ne_bytes());
        b[2..4].copy_from_slice(&protocol.to_be_bytes());
        b[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        raw.len = 20;
        raw
    }

    /// Returns the address that an AF_XDP socket binds to: a queue of an interface. `flags` are
    /// `XDP_*`. With `XDP_SHARED_UMEM`, `shared` is the descriptor of the socket that owns the
    /// UMEM.
    pub fn xdp(flags: u16, ifindex: u32, queue: u32, shared: u32) -> Self {
        let mut raw = Self::EMPTY;
        let b = &mut raw.bytes;
        b[..2].copy_from_slice(&family(libc::AF_XDP).to_ne_bytes());
        b[2..4].copy_from_slice(&flags.to_ne_bytes());
        b[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        b[8..12].copy_from_slice(&queue.to_ne_bytes());
        b[12..16].copy_from_slice(&shared.to_ne_bytes());
        raw.len = 16;
        raw
    }

    /// Returns the UDP address, or `None` if the structure is of another family.
    pub fn to_inet(self) -> Option<SocketAddr> {
        let b = &self.bytes;
        let port = u16::from_be_bytes([b[2], b[3]]);
        let is = |f| u16::from_ne_bytes([b[0], b[1]]) == family(f);
        if is(libc::AF_INET) && self.len >= 16 {
            let ip = Ipv4Addr::new(b[4], b[5], b[6], b[7]);
            Some(SocketAddrV4::new(ip, port).into())
        } else if is(libc::AF_INET6) && self.len >= 28 {
            let mut octets = [0; 16];
            octets.copy_from_slice(&b[8..24]);
            Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, 0).into())
        } else {
            None
        }
    }
}

/// Converts an address family to the type that a `sockaddr` has for it.
fn family(f: libc::c_int) -> u16 {
    u16::try_from(f).expect("address families are small numbers")
}

/// Returns an IP address as 16 bytes: an IPv4 address is mapped into IPv6.
pub fn to_mapped_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Converts 16 bytes back into an IP address; the inverse of [`to_mapped_octets`].
pub fn from_mapped_octets(ip: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(ip).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_there_and_back() {
        for ip in ["10.1.2.3", "fe80::1", "2001:db8::5"] {
            let ip: IpAddr = ip.parse().unwrap();
            let back = RawAddr::inet(ip, 4791, 7).to_inet().unwrap();
            assert_eq!((back.ip(), back.port()), (ip, 4791));
        }
        assert_eq!(RawAddr::EMPTY.to_inet(), None);
        assert_eq!(RawAddr::link(3, 0x0800).to_inet(), None);
    }

    #[test]
    fn only_link_local_addresses_carry_the_scope() {
        let scope = |ip: &str| RawAddr::inet(ip.parse().unwrap(), 1, 7).bytes[24..28].to_vec();
        assert_eq!(scope("fe80::1"), 7u32.to_ne_bytes());
        assert_eq!(scope("2001:db8::1"), [0; 4]);
    }
}
