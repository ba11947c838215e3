//! Decodes IP and UDP before a RoCEv2 packet or a tunnel. IBTA A17.3; RFC 791, RFC 8200.
//!
//! A device drops packets with IPv4 options, IPv6 extension headers or fragmentation. This decoder
//! skips the options and extension headers and decodes first fragments, without checking the ICRC.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_core::wire::{IpId, NetHeader, UDP_PORT};

use super::protocol::Protocol;
use super::split;
use super::unseen::Unseen;
use super::{Address, Content, Cover, Next, Stop, Transport, Unchecked, Walk, u16_at};
use crate::header;

const UDP: u8 = 17;

/// IPv6 extension headers, by their protocol numbers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
/// The most IPv6 extension headers that are followed.
const MAX_EXTENSIONS: usize = 16;

/// A decoded IP header and its extension headers.
struct Ip {
    net: NetHeader,
    protocol: u8,
    /// The offset in the frame at which the IP packet ends.
    end: usize,
    /// Why the ICRC cannot be checked, if so.
    unchecked: Option<Unchecked>,
    /// Whether the packet is one of several fragments.
    is_fragment: bool,
    /// Whether the packet is a fragment other than the first.
    is_later_fragment: bool,
}

impl<'a> Walk<'a> {
    /// Decodes IP, and the UDP or tunnel header behind it.
    pub(super) fn ip(&mut self) -> Result<Next<'a>, Stop> {
        let ip = match self.peek(1)?[0] >> 4 {
            4 => self.ipv4()?,
            6 => self.ipv6()?,
            _ => return Err(Stop::Other(Protocol::DAMAGED)),
        };
        let Ip { net, protocol, end, unchecked, is_fragment, is_later_fragment } = ip;
        if let Some((outer, _)) = self.ends.replace((Address::Ip(net.src), Address::Ip(net.dst))) {
            self.is_inside(outer);
        }
        // A router that ends a tunnel copies the mark inside. RFC 6040.
        self.congestion_experienced |= net.congestion_experienced();
        if protocol != UDP {
            return match Walk::is_tunnel(protocol) {
                true if is_fragment => Err(Stop::Fragment),
                true => {
                    self.narrow(end);
                    self.tunnel_in_ip(protocol)
                }
                false => Err(Stop::Other(Protocol::Ip(protocol))),
            };
        }
        if is_later_fragment {
            return Err(Stop::Fragment);
        }
        let start = self.at;
        let head = self.header(&header::UDP)?;
        let (source, port) = (u16_at(head, 0), u16_at(head, 2));
        if port != UDP_PORT {
            return match Walk::is_tunnel_port(port) {
                true if is_fragment => Err(Stop::Fragment),
                true => {
                    let len = usize::from(u16_at(head, 4));
                    self.narrow(if len == 0 { end } else { end.min(start + len) });
                    self.tunnel_in_udp(port)
                }
                false => Err(Stop::Other(Protocol::Udp(source.min(port)))),
            };
        }
        let net = NetHeader { src_port: source, ..net };
        if end > self.limit {
            return Err(Stop::Malformed("the IP packet is longer than its frame"));
        }
        // A length of 0 means that the packet is too long for the field and was captured before it
        // was split.
        let end = match usize::from(u16_at(head, 4)) {
            0 => end,
            len if start + len > end && !is_fragment => {
                return Err(Stop::Malformed("the UDP length exceeds that of the IP packet"));
            }
            // The headers in the first fragment describe the whole datagram.
            len if is_fragment => start + len,
            len => end.min(start + len),
        };
        self.rdma(end, unchecked.map_or(Cover::Ip(net), Cover::None)).map(Next::Found)
    }

    fn ipv4(&mut self) -> Result<Ip, Stop> {
        const MORE_FRAGMENTS: u16 = 0x2000;
        const OFFSET: u16 = 0x1fff;
        let start = self.at;
        let head = self.header(&header::IPV4)?;
        let header_len = usize::from(head[0] & 0xf) * 4;
        let options = header_len.checked_sub(head.len());
        let options = options.ok_or(Stop::Other(Protocol::DAMAGED))?;
        if options > 0 {
            self.layer(&header::IPV4_OPTIONS, options)?;
        }
        let address = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]);
        let (id, flags) = (u16_at(head, 4), u16_at(head, 6));
        let net = NetHeader {
            src: address(12).into(),
            dst: address(16).into(),
            src_port: 0,
            tos: head[1],
            ttl: head[8],
            flow_label: 0,
            id: IpId::Known { id, flags },
        };
        let is_fragment = flags & (MORE_FRAGMENTS | OFFSET) != 0;
        let unchecked = if is_fragment {
            Some(Unchecked::Fragment)
        } else {
            (options > 0).then_some(Unchecked::IpOptions)
        };
        let end = self.end(start, usize::from(u16_at(head, 2)), header_len)?;
        let is_later_fragment = flags & OFFSET != 0;
        Ok(Ip { net, protocol: head[9], end, unchecked, is_fragment, is_later_fragment })
    }

    fn ipv6(&mut self) -> Result<Ip, Stop> {
        /// The bits between the offset of a fragment and the flag "more fragments".
        const RESERVED: u16 = 0b110;
        let head = self.header(&header::IPV6)?;
        let start = self.at;
        let address = |at: usize| {
            let bytes: [u8; 16] = std::array::from_fn(|i| head[at + i]);
            IpAddr::from(Ipv6Addr::from(bytes))
        };
        let net = NetHeader {
            src: address(8),
            dst: address(24),
            src_port: 0,
            tos: head[0] << 4 | head[1] >> 4,
            ttl: head[7],
            flow_label: u32::from(head[1] & 0xf) << 16 | u32::from(u16_at(head, 2)),
            id: IpId::Absent,
        };
        let end = self.end(start, usize::from(u16_at(head, 4)), 0)?;
        let mut ip = Ip {
            net,
            protocol: head[6],
            end,
            unchecked: None,
            is_fragment: false,
            is_later_fragment: false,
        };
        for _ in 0..MAX_EXTENSIONS {
            let len = match ip.protocol {
                // A fragment header has a fixed length.
                FRAGMENT => header::IPV6_FRAGMENT.len,
                HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(self.peek(2)?[1]) + 1) * 8,
                AUTHENTICATION => (usize::from(self.peek(2)?[1]) + 2) * 4,
                _ => return Ok(ip),
            };
            if ip.protocol == FRAGMENT {
                let fragment = self.header(&header::IPV6_FRAGMENT)?;
                ip.is_later_fragment = u16_at(fragment, 2) >> 3 != 0;
                ip.is_fragment = u16_at(fragment, 2) & !RESERVED != 0;
                ip.unchecked = Some(Unchecked::Fragment);
                ip.protocol = fragment[0];
            } else {
                ip.protocol = self.layer(&header::IPV6_EXTENSION, len)?[0];
                ip.unchecked = ip.unchecked.or(Some(Unchecked::Extension));
            }
        }
        Err(Stop::Other(Protocol::NESTED))
    }

    /// Returns the offset at which an IP packet ends.
    /// The packet begins at `start` and states a length of `len` bytes, of which at least `least`
    /// are its header.
    /// A stated length of 0 means more than the field can hold: the packet then ends with the
    /// frame or the packet around it.
    fn end(&self, start: usize, len: usize, least: usize) -> Result<usize, Stop> {
        match len {
            0 => Ok(self.limit),
            len if len < least => Err(Stop::Other(Protocol::DAMAGED)),
            len => Ok(start + len),
        }
    }

    /// Decodes the RDMA packets between the current position and `end`.
    fn rdma(&mut self, end: usize, cover: Cover) -> Result<Content<'a>, Stop> {
        let (at, bytes) = (self.at, self.bytes);
        let whole = |end| Transport::parse(bytes, at, end, cover, 0);
        let Some(first) = whole(end) else {
            return Err(if bytes.len() < self.len && end.saturating_sub(at) >= header::BTH.len {
                Stop::Cut
            } else {
                Stop::Malformed("shorter than a base transport header")
            });
        };
        let Cover::Ip(net) = cover else { return Ok(one(first)) };
        let Some(segment) = split::segment(&net, &first, bytes, end) else {
            return Ok(one(first.with_unseen(bytes.len() - at)));
        };
        let starts = (at..end).step_by(segment);
        let mut packets: Vec<_> = starts
            .enumerate()
            .map_while(|(index, at)| {
                let end = end.min(at + segment);
                Transport::parse(bytes, at, end, cover, index)
            })
            .collect();
        let count = (end - at).div_ceil(segment);
        for (index, packet) in packets.iter_mut().enumerate() {
            packet.segment = Some((index + 1, count));
        }
        let captured = packets.len();
        if let Some(last) = packets.last_mut() {
            last.unseen = Unseen::known(count - captured);
        }
        Ok(Content::Rdma(packets))
    }

    /// Decodes the RDMA packet from the current position to `end`; its ICRC is not checked.
    pub(super) fn rdma_without_icrc(&mut self, end: usize) -> Result<Content<'a>, Stop> {
        if end > self.limit || end < self.at {
            return Err(Stop::Malformed("the packet is longer than its frame"));
        }
        self.rdma(end, Cover::None(Unchecked::NotV2))
    }
}

fn one(packet: Transport<'_>) -> Content<'_> {
    Content::Rdma(vec![packet])
}
