//! Decodes a frame: link layer, network layer, tunnels, and the RDMA packets in it.
//! IBTA chapters 5 to 9, annexes A16 (RoCE) and A17 (RoCEv2).
//!
//! A loop follows the protocols from the outermost to the RDMA packet. Each header says which
//! protocol is next; the number of headers is limited.
//!
//! No field of a frame is trusted, and no input causes a panic. A truncated frame is decoded as far
//! as it was captured. Lengths are lengths on the wire, even where fewer bytes were captured.

mod ip;
mod link;
mod protocol;
mod split;
#[cfg(test)]
pub(crate) mod tests;
mod transport;
mod tunnel;
mod unseen;

use std::fmt;
use std::net::IpAddr;

use rxe_core::wire::NetHeader;
use smallvec::SmallVec;

use crate::capture::{LinkType, Record};
use crate::header::{Header, Layer, NETWORK_IDS, SESSION_IDS};
pub use link::link_name;
pub use protocol::Protocol;
pub use transport::{Icrc, Transport, Unchecked};
pub use unseen::Unseen;

/// The headers of a frame or packet, from the outermost.
pub type Layers = SmallVec<[Layer; 8]>;

/// A decoded frame.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// The length of the frame on the wire, in bytes.
    pub original_len: usize,
    /// The headers before the BTH: link layer, IP, UDP, those of tunnels.
    pub layers: Layers,
    /// The source and destination address, in a tunnel those of the inner packet.
    pub ends: Option<(Address, Address)>,
    /// Whether the network set the ECN mark "congestion experienced" in an IP header, that of a
    /// tunnel or the inner one. RFC 3168, RFC 6040.
    pub congestion_experienced: bool,
    /// Tells capture points apart that one interface of the capture has: the interface and direction
    /// in a cooked capture header, and a hash of the tunnels around the packet. 0 without either.
    pub place: u32,
    /// The content behind the headers.
    pub content: Content<'a>,
}

/// The content of a frame.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// RDMA packets.
    /// More than one if the frame was captured before the sender's kernel split it (GSO) or after
    /// the receiver's kernel merged it (GRO).
    Rdma(Vec<Transport<'a>>),
    /// A UDP datagram to the RoCEv2 port that holds no packet, for this reason.
    Malformed(&'static str),
    /// An IP fragment other than the first, whose UDP port is unknown; or a fragment of a tunnel's
    /// packet, whose inner packet is not whole.
    Fragment,
    /// A frame that was captured too short to tell its content.
    Cut,
    /// Any other traffic.
    Other(Protocol),
}

/// The address of a packet's source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// An IP address, or a GID.
    Ip(IpAddr),
    /// A local identifier of native InfiniBand.
    Lid(u16),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Lid(lid) => write!(f, "LID 0x{lid:04x}"),
        }
    }
}

/// Why decoding of a frame stops.
enum Stop {
    Other(Protocol),
    Cut,
    Fragment,
    Malformed(&'static str),
}

/// The protocol of the next header.
enum Next<'a> {
    Ethernet,
    /// LLC, with or without SNAP.
    Llc,
    /// IPv4 or IPv6; the version is in the first byte.
    Ip,
    /// A GRH, as in RoCE version 1.
    RoceV1,
    /// Native InfiniBand, beginning with the LRH.
    Lrh,
    /// A stack of MPLS labels.
    Mpls,
    Ppp,
    Pppoe,
    Nsh,
    /// The tag of IEEE 802.1ah.
    ITag,
    /// There is no next header: the content was found.
    Found(Content<'a>),
}

/// The most protocols of one frame that are followed. A tunnel has up to three, such as Ethernet, IP
/// and MPLS, so at least 15 tunnels are followed.
const MAX_PROTOCOLS: usize = 48;

/// A frame that is being decoded, and the position of the decoder in it.
struct Walk<'a> {
    bytes: &'a [u8],
    /// The length of the frame on the wire, in bytes.
    len: usize,
    /// The offset of the next undecoded byte.
    at: usize,
    /// The offset at which the frame ends, or the innermost packet of a tunnel so far.
    limit: usize,
    layers: Layers,
    ends: Option<(Address, Address)>,
    congestion_experienced: bool,
    place: u32,
}

/// What the ICRC of a packet covers before the BTH.
#[derive(Clone, Copy)]
enum Cover {
    /// These IP and UDP headers.
    Ip(NetHeader),
    /// Nothing known: the ICRC is not checked, for this reason.
    None(Unchecked),
}

/// Decodes a record of a capture.
pub fn decode<'a>(record: &Record<'a>) -> Frame<'a> {
    decode_bytes(record.link, record.bytes, record.original_len)
}

/// Decodes a frame whose length on the wire was `len` bytes.
pub fn decode_bytes(link: LinkType, bytes: &[u8], len: usize) -> Frame<'_> {
    let len = len.max(bytes.len());
    let mut walk = Walk {
        bytes,
        len,
        at: 0,
        limit: len,
        layers: Layers::new(),
        ends: None,
        congestion_experienced: false,
        place: 0,
    };
    let content = match walk.content(link) {
        Ok(content) => content,
        Err(Stop::Other(protocol)) => Content::Other(protocol),
        Err(Stop::Cut) => Content::Cut,
        Err(Stop::Fragment) => Content::Fragment,
        Err(Stop::Malformed(why)) => Content::Malformed(why),
    };
    Frame {
        bytes,
        original_len: len,
        layers: walk.layers,
        ends: walk.ends,
        congestion_experienced: walk.congestion_experienced,
        place: walk.place,
        content,
    }
}

impl<'a> Walk<'a> {
    /// Decodes the whole frame.
    fn content(&mut self, link: LinkType) -> Result<Content<'a>, Stop> {
        let mut next = self.link(link)?;
        for _ in 0..MAX_PROTOCOLS {
            next = match next {
                Next::Ethernet => self.ethernet()?,
                Next::Ip => self.ip()?,
                Next::Found(content) => return Ok(content),
                other => self.uncommon(other)?,
            };
        }
        Err(Stop::Other(Protocol::NESTED))
    }

    /// Decodes a header that few frames have.
    #[inline(never)]
    fn uncommon(&mut self, next: Next<'a>) -> Result<Next<'a>, Stop> {
        match next {
            Next::Llc => self.llc(),
            Next::Mpls => self.mpls(),
            Next::Ppp => self.ppp(),
            Next::Pppoe => self.pppoe(),
            Next::Nsh => self.nsh(),
            Next::ITag => self.i_tag(),
            Next::RoceV1 => self.roce_v1().map(Next::Found),
            Next::Lrh => self.native().map(Next::Found),
            found => Ok(found),
        }
    }

    /// Returns the next `len` bytes without consuming them.
    fn peek(&self, len: usize) -> Result<&'a [u8], Stop> {
        let end = self.at + len;
        if end > self.limit {
            return Err(Stop::Other(Protocol::DAMAGED));
        }
        self.bytes.get(self.at..end).ok_or(Stop::Cut)
    }

    /// Consumes the next header, whose length is fixed.
    fn header(&mut self, header: &'static Header) -> Result<&'a [u8], Stop> {
        self.layer(header, header.len)
    }

    /// Consumes the next header, whose length is `len` bytes.
    fn layer(&mut self, header: &'static Header, len: usize) -> Result<&'a [u8], Stop> {
        let bytes = self.peek(len)?;
        self.layers.push(Layer { header, at: self.at, len });
        self.at += len;
        Ok(bytes)
    }

    /// Consumes the next header, which is that of a tunnel.
    fn tunnel(&mut self, header: &'static Header) -> Result<&'a [u8], Stop> {
        let bytes = self.header(header)?;
        self.mix(header.name.as_bytes());
        let id = |names| header.number(names, bytes);
        if let Some(id) = id(NETWORK_IDS).or_else(|| id(SESSION_IDS)) {
            self.mix(&id.to_be_bytes());
        }
        Ok(bytes)
    }

    /// Notes that the packet is inside another one, which has this source address.
    fn is_inside(&mut self, outer: Address) {
        match outer {
            Address::Ip(IpAddr::V4(ip)) => self.mix(&ip.octets()),
            Address::Ip(IpAddr::V6(ip)) => self.mix(&ip.octets()),
            Address::Lid(lid) => self.mix(&lid.to_be_bytes()),
        }
    }

    /// Adds bytes to the hash in `place` (FNV-1a).
    fn mix(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.place = (self.place ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    /// Notes that what follows ends at this offset, unless it ends before.
    fn narrow(&mut self, end: usize) {
        self.limit = self.limit.min(end);
    }
}

/// Returns the big-endian number at offset `at`; 0 if the bytes end before it.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_be_bytes(*b))
}
