//! UDP payloads, and the known fields of their IP and UDP headers. A backend passes them to the
//! engine. IBTA annex A17.
//!
//! A buffer may contain several packets of equal size, back to back (the last may be shorter).
//! UDP_GRO delivers up to 64 packets in one call in this way.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};

use super::header_len;
use crate::mem::Span;

/// The UDP destination port of RoCEv2. IBTA A17.3.1.1.
pub const UDP_PORT: u16 = 4791;

/// The IP and UDP headers of a RoCEv2 packet, without lengths and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetHeader {
    /// The source address. It must be of the same family as `dst`.
    pub src: IpAddr,
    /// The destination address.
    pub dst: IpAddr,
    /// The UDP source port: any value; switches distribute flows by it.
    pub src_port: u16,
    /// The IPv4 type of service or IPv6 traffic class; the ECN bits are the lowest.
    pub tos: u8,
    /// The time to live or hop limit; zero if the backend does not know it.
    pub ttl: u8,
    /// The IPv6 flow label (20 bits); 0 for IPv4.
    pub flow_label: u32,
    /// The IPv4 identification and fragment field.
    pub id: IpId,
}

/// Bytes 4 to 8 of the IPv4 header, which the ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpId {
    /// The packet is IPv6 and has no such field.
    Absent,
    /// The socket hides the fields. The ICRC can then be checked only except for these 16 bits.
    Hidden,
    /// The fields as on the wire. In a buffer of several packets, these are the fields of the
    /// first; the identification increases by one per packet.
    Known {
        /// The identification.
        id: u16,
        /// The flags and fragment offset: 0x4000 is "don't fragment" on an unfragmented datagram.
        flags: u16,
    },
}

impl NetHeader {
    /// Creates the header of a packet that this engine sends: ID 0 (in a burst: counting from 0),
    /// don't fragment, TTL 64.
    pub fn outgoing(src: IpAddr, dst: IpAddr, src_port: u16) -> Self {
        let id = if dst.is_ipv4() { IpId::Known { id: 0, flags: 0x4000 } } else { IpId::Absent };
        Self { src, dst, src_port, tos: 0, ttl: 64, flow_label: 0, id }
    }

    /// Returns the header of the packet `index` places later in the same buffer.
    pub fn nth(mut self, index: u16) -> Self {
        if let IpId::Known { id, .. } = &mut self.id {
            *id = id.wrapping_add(index);
        }
        self
    }

    /// Returns whether the network marked this packet "congestion experienced". RFC 3168.
    pub fn congestion_experienced(&self) -> bool {
        self.tos & 0b11 == 0b11
    }
}

impl Default for NetHeader {
    fn default() -> Self {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self::outgoing(any, any, 0)
    }
}

/// A received buffer: one UDP payload, or several of equal size from one source.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The header of the first packet; [`NetHeader::nth`] gives those of the others.
    pub net: NetHeader,
    /// The packets, each from BTH to ICRC, back to back. Nothing in them has been checked.
    pub payload: &'a [u8],
    /// The size of each packet in bytes; the last may be shorter. Never 0; `payload.len()` for one
    /// packet.
    pub segment: usize,
    /// The payload of the buffer [`Frame::PREFETCH_DISTANCE`] buffers later, or empty if unknown. A hint: the
    /// engine prefetches the QP that it is addressed to.
    pub prefetch_next: &'a [u8],
    /// Packets in memory shared with another process. If there are any, `payload` is empty.
    pub coalesced: &'a [Coalesced<'a>],
}

/// A packet received through memory from a process of this host. Its payload is stored apart from
/// its headers and may still change. It has neither pad nor ICRC, because it was on no wire.
///
/// Or a coalesced segment, as GSO builds one of TCP: several packets of a message, whose payloads
/// follow one another. All packets except the last of the message have a payload of the path MTU.
/// The headers are those of a single packet with the whole payload: the opcode states whether the
/// segment contains the first and the last packet of the message, the PSN is that of the first
/// packet, and fields of the last packet (AckReq, immediate data) are those of the last.
#[derive(Clone, Copy, Debug)]
pub struct Coalesced<'a> {
    head: [u8; Coalesced::MAX_HEAD],
    head_len: usize,
    count: u16,
    /// The payload of all packets, in memory that another process may share.
    pub payload: Span<'a>,
}

impl<'a> Coalesced<'a> {
    /// The maximum number of bytes from the BTH to the last header.
    pub const MAX_HEAD: usize = header_len::MAX;

    /// Creates a packet with these headers, from the BTH on. Returns `None` if they are too long.
    #[inline]
    pub fn new(head: &[u8], payload: Span<'a>) -> Option<Self> {
        Self::of(head, payload, 1)
    }

    /// Creates a segment of `count` packets with these headers, from the BTH on. Returns `None` if
    /// the headers are too long, or if `count` is 0.
    #[inline]
    pub fn of(head: &[u8], payload: Span<'a>, count: u16) -> Option<Self> {
        let read = |to: &mut [u8]| {
            to.copy_from_slice(head);
            Ok::<(), Infallible>(())
        };
        let Ok(coalesced) = Self::with_head(head.len(), read, payload, count);
        coalesced
    }

    /// Like [`Coalesced::of`], with `head_len` bytes of headers that `read` fills in.
    ///
    /// # Errors
    /// The error of `read`.
    #[inline]
    pub fn with_head<E>(
        head_len: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
        payload: Span<'a>,
        count: u16,
    ) -> Result<Option<Self>, E> {
        let mut packet = Self { head: [0; Self::MAX_HEAD], head_len, count, payload };
        let Some(head) = packet.head.get_mut(..head_len) else { return Ok(None) };
        read(head)?;
        Ok((count > 0).then_some(packet))
    }

    /// Returns the number of packets.
    #[inline]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Returns the headers, from the BTH on. Nothing in them has been checked.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }
}

impl<'a> Frame<'a> {
    /// The distance at which a prefetch completes in time.
    pub const PREFETCH_DISTANCE: usize = 8;

    /// Creates a buffer that contains one packet.
    pub fn single(net: NetHeader, payload: &'a [u8]) -> Self {
        Self { net, payload, segment: payload.len().max(1), prefetch_next: &[], coalesced: &[] }
    }

    /// Returns the number of packets.
    pub fn count(&self) -> usize {
        if self.coalesced.is_empty() {
            return self.payloads().count();
        }
        self.coalesced.iter().map(|packets| usize::from(packets.count())).sum()
    }

    /// Returns each packet from BTH to ICRC, except coalesced ones.
    pub fn payloads(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.payload.chunks(self.segment.max(1))
    }

    /// Returns each packet with its own header, except coalesced ones.
    pub fn packets(&self) -> impl Iterator<Item = (NetHeader, &'a [u8])> + use<'a> {
        let net = self.net;
        self.payloads().enumerate().map(move |(i, bytes)| (net.nth(id_step(i)), bytes))
    }
}

/// Returns the increase of the identification for the `index`-th packet, modulo 2^16.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "identifications wrap")]
pub(crate) fn id_step(index: usize) -> u16 {
    index as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_split_into_packets_with_their_own_ids() {
        let bytes = [0u8; 25];
        let frame = Frame { segment: 10, ..Frame::single(NetHeader::default(), &bytes) };
        let got: Vec<_> = frame.packets().map(|(n, p)| (n.id, p.len())).collect();
        let id = |id| IpId::Known { id, flags: 0x4000 };
        assert_eq!(got, [(id(0), 10), (id(1), 10), (id(2), 5)]);
    }
}
