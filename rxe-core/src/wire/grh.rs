//! The 40 bytes before every received datagram (GRH): the IP header of the datagram. An IPv4 header
//! is in the last 20 of them. IBTA A17.4.5.2.

use std::net::IpAddr;

use super::frame::IpUdpHeader;
use super::ipv4::{self, Ipv4};
use super::ipv6::{self, Ipv6};
use super::udp::{Sum, Udp};
use super::{DropReason, NetHeader, UDP_PORT};

/// The length of the GRH in bytes.
pub const LEN: usize = ipv6::LEN;

/// The offset of an IPv4 header in the GRH.
const IPV4_AT: usize = LEN - ipv4::LEN;

/// The addresses and other fields of a GRH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// The address of the sender.
    pub src: IpAddr,
    /// The address of the receiver: a unicast address or a group.
    pub dst: IpAddr,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// The remaining time to live.
    pub hop_limit: u8,
}

impl Grh {
    /// Parses the GRH of a datagram.
    ///
    /// The first 20 bytes of the GRH of an IPv4 datagram are undefined. Therefore the datagram is
    /// IPv4 if the last 20 bytes are an IPv4 header with a correct checksum.
    ///
    /// # Errors
    /// The GRH is neither IPv4 nor IPv6.
    /// It is neither IPv4 nor IPv6.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Self, DropReason> {
        let v4 = &bytes[IPV4_AT..];
        if v4[0] == 0x45 && Sum::default().add(v4).finish() == 0 {
            let (ip, _) = Ipv4::parse_header(v4.first_chunk().ok_or(DropReason::Truncated)?)?;
            return Ok(Self {
                src: ip.src.into(),
                dst: ip.dst.into(),
                traffic_class: ip.tos,
                flow_label: 0,
                hop_limit: ip.ttl,
            });
        }
        let (ip, _) = Ipv6::parse_header(bytes)?;
        Ok(Self {
            src: ip.src.into(),
            dst: ip.dst.into(),
            traffic_class: ip.traffic_class,
            flow_label: ip.flow_label,
            hop_limit: ip.hop_limit,
        })
    }
}

/// Returns the GRH of a datagram whose UDP payload, from BTH to ICRC, has `len` bytes.
pub(crate) fn of(net: &NetHeader, len: usize) -> [u8; LEN] {
    let udp = Udp { src_port: net.src_port, dst_port: UDP_PORT, checksum: 0 };
    let header = IpUdpHeader::of(net, udp, len);
    let bytes = header.as_bytes();
    let mut grh = [0; LEN];
    match net.src {
        IpAddr::V4(_) => grh[IPV4_AT..].copy_from_slice(&bytes[..ipv4::LEN]),
        IpAddr::V6(_) => grh.copy_from_slice(&bytes[..LEN]),
    }
    grh
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(src: &str, dst: &str) -> NetHeader {
        let net = NetHeader::outgoing(src.parse().unwrap(), dst.parse().unwrap(), 1);
        NetHeader { tos: 0x68, ttl: 9, ..net }
    }

    #[test]
    fn what_is_put_in_front_is_read_again() {
        for (src, dst, flow_label) in
            [("10.0.0.1", "239.1.2.3", 0), ("fd00::1", "ff0e::7", 0xa_bcde)]
        {
            let net = NetHeader { flow_label, ..header(src, dst) };
            let expected =
                Grh { src: net.src, dst: net.dst, traffic_class: 0x68, flow_label, hop_limit: 9 };
            let mut bytes = of(&net, 24);
            assert_eq!(Grh::parse(&bytes), Ok(expected));
            if net.src.is_ipv4() {
                bytes[..IPV4_AT].fill(0x66);
                assert_eq!(Grh::parse(&bytes), Ok(expected), "what stands before it is undefined");
            }
        }
    }

    #[test]
    fn an_ipv6_address_that_looks_like_an_ipv4_header_is_none() {
        let net = header("fd00::1", "fd00::1");
        let mut bytes = of(&net, 24);
        bytes[IPV4_AT] = 0x45;
        assert!(Grh::parse(&bytes).unwrap().src.is_ipv6());
        assert!(Grh::parse(&[0; LEN]).is_err());
    }
}
