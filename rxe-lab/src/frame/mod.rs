//! Decodes a frame: link layer, network layer, and the RDMA packets in it.
//! IBTA chapters 5 to 9, annexes A16 (RoCE) and A17 (RoCEv2).
//!
//! No field of a frame is trusted, and no input causes a panic. A truncated frame is decoded as far
//! as it was captured. Lengths are lengths on the wire, even where fewer bytes were captured.

mod ip;
mod link;
mod split;
#[cfg(test)]
mod tests;
mod transport;
mod unseen;

use std::fmt;
use std::net::IpAddr;

use rxe_core::wire::NetHeader;
use smallvec::SmallVec;

use crate::capture::{LinkType, Record};
use crate::header::{Header, Layer};
pub use link::link_name;
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
    /// The headers before the BTH: link layer, IP, UDP.
    pub layers: Layers,
    /// The source and destination address.
    pub ends: Option<(Address, Address)>,
    /// Whether the network set the ECN mark "congestion experienced". RFC 3168.
    pub congestion_experienced: bool,
    /// The interface and direction in a cooked capture header; 0 for other link types.
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
    /// An IP fragment other than the first. Its UDP port is unknown.
    Fragment,
    /// A frame that was captured too short to tell its content.
    Cut,
    /// Any other traffic.
    Other,
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
    Other,
    Cut,
    Fragment,
    Malformed(&'static str),
}

/// The protocol behind the link layer.
enum Next {
    /// The protocol with this EtherType.
    EtherType(u16),
    /// IPv4 or IPv6; the version is in the first byte.
    Ip,
    /// Native InfiniBand, beginning with the LRH.
    Lrh,
}

/// A frame that is being decoded, and the position of the decoder in it.
struct Walk<'a> {
    bytes: &'a [u8],
    /// The length of the frame on the wire, in bytes.
    len: usize,
    /// The offset of the next undecoded byte.
    at: usize,
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
    let mut walk = Walk {
        bytes,
        len: len.max(bytes.len()),
        at: 0,
        layers: Layers::new(),
        ends: None,
        congestion_experienced: false,
        place: 0,
    };
    let content = match walk.content(link) {
        Ok(content) => content,
        Err(Stop::Other) => Content::Other,
        Err(Stop::Cut) => Content::Cut,
        Err(Stop::Fragment) => Content::Fragment,
        Err(Stop::Malformed(why)) => Content::Malformed(why),
    };
    Frame {
        bytes,
        original_len: walk.len,
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
        match self.link(link)? {
            Next::EtherType(ROCE_V1) => self.roce_v1(),
            Next::EtherType(IPV4 | IPV6) | Next::Ip => self.roce_v2(),
            Next::EtherType(_) => Err(Stop::Other),
            Next::Lrh => self.native(),
        }
    }

    /// Consumes the next header, whose length is fixed.
    fn header(&mut self, header: &'static Header) -> Result<&'a [u8], Stop> {
        self.layer(header, header.len)
    }

    /// Consumes the next header, whose length is `len` bytes.
    fn layer(&mut self, header: &'static Header, len: usize) -> Result<&'a [u8], Stop> {
        let Some(bytes) = self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) else {
            return Err(if self.is_cut() { Stop::Cut } else { Stop::Other });
        };
        self.layers.push(Layer { header, at: self.at, len });
        self.at += len;
        Ok(bytes)
    }

    /// Returns whether the frame was captured only in part.
    fn is_cut(&self) -> bool {
        self.bytes.len() < self.len
    }
}

/// EtherTypes.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ROCE_V1: u16 = 0x8915;

/// Returns the big-endian number at offset `at`; 0 if the bytes end before it.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_be_bytes(*b))
}
