//! Whole frames: Ethernet, IP and UDP around a RoCEv2 packet, for code that receives or creates
//! frames itself (raw sockets, captures, tests). IBTA A17.3.
//!
//! Lengths are checked against each other and against the received bytes: the returned payload has
//! the length that all headers agree on, and Ethernet padding is removed. Fields that the ICRC
//! covers are not checked.
//! every header agrees on, Ethernet's padding is cut off. Nothing is checked that the ICRC covers.

use std::net::IpAddr;

use super::eth::Ethernet;
use super::ipv4::Ipv4;
use super::ipv6::{self, Ipv6};
use super::udp::{self, Udp};
use super::{DropReason, Frame, IpId, NetHeader, UDP_PORT, icrc};

/// A UDP datagram, parsed from its IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The IP header and the source port.
    pub net: NetHeader,
    /// The UDP destination port, not yet checked to be [`UDP_PORT`].
    pub dst_port: u16,
    /// The UDP checksum field; 0 means that there is no checksum.
    pub checksum: u16,
    /// The payload of UDP: BTH to ICRC, if the destination port is that of RoCEv2.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Returns the RoCEv2 packet, if the destination port is that of RoCEv2.
    pub fn frame(&self) -> Result<Frame<'a>, DropReason> {
        if self.dst_port != UDP_PORT {
            return Err(DropReason::NotRoce);
        }
        Ok(Frame::single(self.net, self.payload))
    }
}

/// Parses an Ethernet frame. Up to two VLAN tags and IPv4 options are accepted.
pub fn parse_ethernet(frame: &[u8]) -> Result<(Ethernet, Datagram<'_>), DropReason> {
    let (ethernet, packet) = Ethernet::parse(frame)?;
    let version = packet.first().ok_or(DropReason::Truncated)? >> 4;
    match (ethernet.ethertype, version) {
        (Ethernet::IPV4, 4) | (Ethernet::IPV6, 6) => Ok((ethernet, parse_ip(packet)?)),
        (Ethernet::IPV4 | Ethernet::IPV6, _) => Err(DropReason::BadIpHeader),
        _ => Err(DropReason::NotIp),
    }
}

/// Parses an IP packet of either version.
pub fn parse_ip(packet: &[u8]) -> Result<Datagram<'_>, DropReason> {
    match packet.first().ok_or(DropReason::Truncated)? >> 4 {
        4 => {
            let (ip, datagram) = Ipv4::parse(packet)?;
            let net = NetHeader {
                src: ip.src.into(),
                dst: ip.dst.into(),
                src_port: 0,
                tos: ip.tos,
                ttl: ip.ttl,
                flow_label: 0,
                id: IpId::Known { id: ip.id, flags: ip.flags },
            };
            parse_udp(net, ip.protocol, datagram)
        }
        6 => {
            let (ip, datagram) = Ipv6::parse(packet)?;
            let net = NetHeader {
                src: ip.src.into(),
                dst: ip.dst.into(),
                src_port: 0,
                tos: ip.traffic_class,
                ttl: ip.hop_limit,
                flow_label: ip.flow_label,
                id: IpId::Absent,
            };
            parse_udp(net, ip.next_header, datagram)
        }
        _ => Err(DropReason::NotIp),
    }
}

fn parse_udp(net: NetHeader, protocol: u8, datagram: &[u8]) -> Result<Datagram<'_>, DropReason> {
    if protocol != udp::PROTOCOL {
        return Err(DropReason::NotRoce);
    }
    let (udp, payload) = Udp::parse(datagram)?;
    let net = NetHeader { src_port: udp.src_port, ..net };
    Ok(Datagram { net, dst_port: udp.dst_port, checksum: udp.checksum, payload })
}

/// The UDP checksum to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum UdpChecksum {
    /// 0, no checksum, as kernel `rdma_rxe` and ConnectX do, also over IPv6.
    #[default]
    None,
    /// The correct checksum.
    Compute,
    /// This value, correct or not.
    Exact(u16),
}

/// The IP and UDP headers of one datagram, to be sent before its payload.
#[derive(Clone, Copy, Debug)]
pub struct IpUdpHeader {
    bytes: [u8; ipv6::LEN + udp::LEN],
    len: usize,
}

impl IpUdpHeader {
    /// Creates the headers for this payload. A hidden IPv4 identification is sent as 0 with "don't
    /// fragment". Addresses of different families go into an IPv6 header, the IPv4 address mapped.
    ///
    /// The payload must not exceed 65,507 bytes; in debug builds this is asserted.
    pub fn new(net: &NetHeader, dst_port: u16, checksum: UdpChecksum, payload: &[u8]) -> Self {
        let mut udp = Udp { src_port: net.src_port, dst_port, checksum: 0 };
        match checksum {
            UdpChecksum::None => (),
            UdpChecksum::Compute => udp = udp.with_checksum(net.src, net.dst, payload),
            UdpChecksum::Exact(checksum) => udp.checksum = checksum,
        }
        Self::of(net, udp, payload.len())
    }

    /// Creates the headers for a payload of `len` bytes.
    pub(super) fn of(net: &NetHeader, udp: Udp, len: usize) -> Self {
        let udp = udp.emit(len);
        let datagram_len = udp::LEN + len;
        match (net.src, net.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (id, flags) = match net.id {
                    IpId::Known { id, flags } => (id, flags),
                    IpId::Hidden | IpId::Absent => (0, icrc::DONT_FRAGMENT),
                };
                let (tos, ttl, protocol) = (net.tos, net.ttl, udp::PROTOCOL);
                let ip = Ipv4 { tos, id, flags, ttl, protocol, src, dst };
                Self::join(&ip.emit(datagram_len), udp)
            }
            (src, dst) => {
                let ip = Ipv6 {
                    traffic_class: net.tos,
                    flow_label: net.flow_label,
                    next_header: udp::PROTOCOL,
                    hop_limit: net.ttl,
                    src: to_v6(src),
                    dst: to_v6(dst),
                };
                Self::join(&ip.emit(datagram_len), udp)
            }
        }
    }

    /// Returns the encoded headers.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn join(ip: &[u8], udp: [u8; udp::LEN]) -> Self {
        let mut bytes = [0; ipv6::LEN + udp::LEN];
        let len = ip.len() + udp::LEN;
        bytes[..ip.len()].copy_from_slice(ip);
        bytes[ip.len()..len].copy_from_slice(&udp);
        Self { bytes, len }
    }
}

/// Appends a datagram with its IP header to `out`. See [`IpUdpHeader::new`].
pub fn emit_ip(
    net: &NetHeader,
    dst_port: u16,
    checksum: UdpChecksum,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(IpUdpHeader::new(net, dst_port, checksum, payload).as_bytes());
    out.extend_from_slice(payload);
}

/// Appends a datagram with its Ethernet and IP headers to `out`. Sets the EtherType, and does not
/// pad to the minimum size of Ethernet. See [`IpUdpHeader::new`].
pub fn emit_ethernet(
    ethernet: &Ethernet,
    net: &NetHeader,
    dst_port: u16,
    checksum: UdpChecksum,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    let is_v4 = net.src.is_ipv4() && net.dst.is_ipv4();
    let ethertype = if is_v4 { Ethernet::IPV4 } else { Ethernet::IPV6 };
    Ethernet { ethertype, ..*ethernet }.emit(out);
    emit_ip(net, dst_port, checksum, payload, out);
}

fn to_v6(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests;
