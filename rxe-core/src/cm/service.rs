//! IP addresses and ports in messages of the communication manager: service IDs, and the 36 bytes
//! at the start of a request's private data. IBTA annex A11.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A port space. The numbers are those of `enum rdma_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum PortSpace {
    /// Multicast groups of IP over InfiniBand.
    Ipoib = 0x0002,
    /// Reliable connections.
    Tcp = 0x0106,
    /// Unreliable datagrams.
    Udp = 0x0111,
    /// Connections or datagrams, by service ID.
    Ib = 0x013f,
}

impl PortSpace {
    /// Returns the port space with this number.
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0x0002 => Self::Ipoib,
            0x0106 => Self::Tcp,
            0x0111 => Self::Udp,
            0x013f => Self::Ib,
            _ => return None,
        })
    }

    /// Returns the service ID of a port.
    pub const fn service_id(self, port: u16) -> u64 {
        (self as u64) << 16 | port as u64
    }

    /// Returns the port space and port of a service ID, if it stands for an IP port.
    pub fn of_service(service_id: u64) -> Option<(Self, u16)> {
        let space = Self::from_number(u16::try_from(service_id >> 16).ok()?)?;
        Some((space, u16::try_from(service_id & 0xffff).unwrap_or_default()))
    }

    /// Returns a common service ID for equal ports of different port spaces. Other service IDs are
    /// unchanged.
    pub fn same_port(service_id: u64) -> u64 {
        match Self::of_service(service_id) {
            Some((_, port)) => Self::Tcp.service_id(port),
            None => service_id,
        }
    }
}

/// The length in bytes of the header at the start of a request's private data.
pub const IP_CM_LEN: usize = 36;

/// The header at the start of a request's private data: the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCmHeader {
    /// The sender's address and port.
    pub src: SocketAddr,
    /// The receiver's address. The port is in the service ID.
    pub dst: IpAddr,
}

impl IpCmHeader {
    /// Parses the header. Returns `None` if its version is unknown.
    pub fn parse(bytes: &[u8; IP_CM_LEN]) -> Option<Self> {
        let [version, ip_version, port @ ..] = *bytes.first_chunk::<4>()?;
        let address = |at: usize| -> Option<IpAddr> {
            let bytes: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
            match ip_version >> 4 {
                4 => Some(Ipv4Addr::from(*bytes.last_chunk::<4>()?).into()),
                6 => Some(Ipv6Addr::from(bytes).into()),
                _ => None,
            }
        };
        if version != 0 {
            return None;
        }
        let src = SocketAddr::new(address(4)?, u16::from_be_bytes(port));
        Some(Self { src, dst: address(20)? })
    }

    /// Returns the encoded header.
    pub fn emit(&self) -> [u8; IP_CM_LEN] {
        let mut bytes = [0; IP_CM_LEN];
        bytes[1] = if self.dst.is_ipv4() { 0x40 } else { 0x60 };
        bytes[2..4].copy_from_slice(&self.src.port().to_be_bytes());
        for (at, ip) in [(4, self.src.ip()), (20, self.dst)] {
            match ip {
                IpAddr::V4(ip) => bytes[at + 12..at + 16].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_stand_where_the_annex_puts_them() {
        let header = IpCmHeader {
            src: "10.47.91.12:56544".parse().unwrap(),
            dst: "10.47.91.11".parse().unwrap(),
        };
        let bytes = header.emit();
        assert_eq!(bytes[..4], [0, 0x40, 0xdc, 0xe0]);
        assert_eq!(bytes[16..20], [10, 47, 91, 12]);
        assert_eq!(bytes[32..], [10, 47, 91, 11]);
        assert_eq!(IpCmHeader::parse(&bytes), Some(header));
        let six =
            IpCmHeader { src: "[fd00::1]:7".parse().unwrap(), dst: Ipv6Addr::LOCALHOST.into() };
        assert_eq!(IpCmHeader::parse(&six.emit()), Some(six));
    }

    #[test]
    fn a_port_is_a_service() {
        assert_eq!(PortSpace::Tcp.service_id(7174), 0x0106_1c06);
        assert_eq!(PortSpace::of_service(0x0111_0001), Some((PortSpace::Udp, 1)));
        assert_eq!(PortSpace::of_service(0x0107_0001), None);
        assert_eq!(PortSpace::of_service(u64::MAX), None);
        assert_eq!(PortSpace::same_port(0x0111_1c06), 0x0106_1c06);
        assert_eq!(PortSpace::same_port(u64::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: [u8; 32], version in 0u8..2, ip in 0u8..16) {
            let mut all = [0; IP_CM_LEN];
            all[..2].copy_from_slice(&[version, ip << 4]);
            all[4..].copy_from_slice(&bytes);
            let parsed = IpCmHeader::parse(&all);
            prop_assert_eq!(parsed.is_some(), version == 0 && (ip == 4 || ip == 6));
        }
    }
}
