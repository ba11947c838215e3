//! UDP payloads as a backend hands them to the engine, with what is known of the IP and UDP headers
//! around them. IBTA annex A17.
//!
//! A buffer may hold several packets of equal size, back to back (the last may be shorter): that is
//! how UDP_GRO carries up to 64 packets in a call.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};

use super::header_len;
use crate::mem::Span;

/// The UDP destination port of RoCEv2. IBTA A17.3.1.1.
pub const UDP_PORT: u16 = 4791;

/// What a RoCEv2 packet's IP and UDP headers say, apart from lengths and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetHeader {
    /// Source address. Of the same family as `dst`.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port: any value; switches spread flows by it.
    pub src_port: u16,
    /// IPv4 type of service or IPv6 traffic class, with the ECN bits lowest.
    pub tos: u8,
    /// Time to live or hop limit. Zero where the backend cannot see it.
    pub ttl: u8,
    /// IPv6 flow label (20 bits); 0 for IPv4.
    pub flow_label: u32,
    /// IPv4 identification and fragment field.
    pub id: IpId,
}

/// What is known of bytes 4 to 8 of the IPv4 header, which the ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpId {
    /// The packet is IPv6: there is no such field.
    Absent,
    /// The socket hides it. The ICRC can then be checked only up to these 16 bits.
    Hidden,
    /// The fields as on the wire. In a buffer of several packets, those of the first; the
    /// identification of each further one is greater by one.
    Known {
        /// Identification.
        id: u16,
        /// Flags and fragment offset: 0x4000 is "don't fragment" on a whole datagram.
        flags: u16,
    },
}

impl NetHeader {
    /// The header of a packet that this engine sends: ID 0 (in a burst: counting from 0), don't
    /// fragment, TTL 64.
    pub fn outgoing(src: IpAddr, dst: IpAddr, src_port: u16) -> Self {
        let id = if dst.is_ipv4() { IpId::Known { id: 0, flags: 0x4000 } } else { IpId::Absent };
        Self { src, dst, src_port, tos: 0, ttl: 64, flow_label: 0, id }
    }

    /// The header of the packet `index` places after this one in the same buffer.
    pub fn nth(mut self, index: u16) -> Self {
        if let IpId::Known { id, .. } = &mut self.id {
            *id = id.wrapping_add(index);
        }
        self
    }

    /// Whether the network marked this packet "congestion experienced". RFC 3168.
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

/// A buffer that arrived: one UDP payload, or several of equal size from one source.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The headers of the first (they are the same for all, see [`NetHeader::nth`]).
    pub net: NetHeader,
    /// From the BTH to the ICRC, packet after packet. Nothing in it has been checked.
    pub payload: &'a [u8],
    /// Bytes per packet; the last may be shorter. Never 0; `payload.len()` if there is but one.
    pub segment: usize,
    /// The payload of the buffer that is handed over [`Frame::PREFETCH_DISTANCE`] buffers later, or empty where
    /// it is not known. A hint: it lets the engine ask the processor for the QP that it is for.
    pub prefetch_next: &'a [u8],
    /// Packets in memory that is shared with another process. If there are any, `payload` is empty.
    pub coalesced: &'a [Coalesced<'a>],
}

/// A packet from a process of this host, through memory: its payload stands apart from its headers and
/// may still change, and it has neither pad nor ICRC, because it was on no wire.
///
/// Or a coalesced segment, as GSO makes one of TCP: some packets of a message, whose payloads follow one another.
/// All but the last packet of the message have a payload of the path MTU. The headers are those of a single packet
/// with all of the payload: the opcode says whether the segment has the first and the last packet of the message,
/// the PSN is that of the first packet, and what only the last packet says (AckReq, immediate data) is that of the
/// last.
#[derive(Clone, Copy, Debug)]
pub struct Coalesced<'a> {
    head: [u8; Coalesced::MAX_HEAD],
    head_len: usize,
    count: u16,
    /// The payload, of all packets of a coalesced segment: memory that another process may share.
    pub payload: Span<'a>,
}

impl<'a> Coalesced<'a> {
    /// The most bytes from the BTH to the last header.
    pub const MAX_HEAD: usize = header_len::MAX;

    /// A packet with these headers, from the BTH on. `None` if they are longer than any.
    #[inline]
    pub fn new(head: &[u8], payload: Span<'a>) -> Option<Self> {
        Self::of(head, payload, 1)
    }

    /// So many packets with these headers, from the BTH on. `None` if the headers are longer than any, or there
    /// is no packet.
    #[inline]
    pub fn of(head: &[u8], payload: Span<'a>, count: u16) -> Option<Self> {
        let read = |to: &mut [u8]| {
            to.copy_from_slice(head);
            Ok::<(), Infallible>(())
        };
        let Ok(coalesced) = Self::with_head(head.len(), read, payload, count);
        coalesced
    }

    /// The same, with `head_len` bytes of headers that `read` puts into their place.
    ///
    /// # Errors
    /// Those of `read`.
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

    /// How many packets this is.
    #[inline]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The headers, from the BTH on. Nothing in them has been checked.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }
}

impl<'a> Frame<'a> {
    /// Far enough ahead for memory to arrive in time.
    pub const PREFETCH_DISTANCE: usize = 8;

    /// A buffer that holds one packet.
    pub fn single(net: NetHeader, payload: &'a [u8]) -> Self {
        Self { net, payload, segment: payload.len().max(1), prefetch_next: &[], coalesced: &[] }
    }

    /// How many packets it holds.
    pub fn count(&self) -> usize {
        if self.coalesced.is_empty() {
            return self.payloads().count();
        }
        self.coalesced.iter().map(|packets| usize::from(packets.count())).sum()
    }

    /// Each packet, from BTH to ICRC, of those that do not stand apart.
    pub fn payloads(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.payload.chunks(self.segment.max(1))
    }

    /// Each packet with its own headers.
    pub fn packets(&self) -> impl Iterator<Item = (NetHeader, &'a [u8])> + use<'a> {
        let net = self.net;
        self.payloads().enumerate().map(move |(i, bytes)| (net.nth(id_step(i)), bytes))
    }
}

/// What the `index`-th packet's identification is greater by: it has 16 bits and wraps.
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
