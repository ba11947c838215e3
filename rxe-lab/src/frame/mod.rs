//! A frame taken apart: link layer, network layer, and the RDMA packets in it. IBTA chapters 5 to 9,
//! annexes A16 (RoCE) and A17 (RoCEv2).
//!
//! Nothing in a frame is trusted, and nothing panics. A frame that was captured in part is taken apart
//! as far as it goes. Lengths are those on the wire, also where fewer bytes were captured.

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

/// Headers of a frame.
pub type Layers = SmallVec<[Layer; 8]>;

/// A frame taken apart.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// Bytes on the wire.
    pub original_len: usize,
    /// The headers before the transport's.
    pub layers: Layers,
    /// Source and destination.
    pub ends: Option<(Address, Address)>,
    /// Whether the network marked it "congestion experienced". RFC 3168.
    pub congestion_experienced: bool,
    /// Where it was captured, as far as a cooked capture says: the interface, and whether it left.
    pub place: u32,
    /// What is in it.
    pub content: Content<'a>,
}

/// What is in a frame.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// An RDMA packet; several if the sender's system captured them before it split them (GSO), or the
    /// receiver's after it merged them (GRO).
    Rdma(Vec<Transport<'a>>),
    /// RoCEv2 by its UDP port, and yet no packet, for this reason.
    Malformed(&'static str),
    /// A fragment of a UDP datagram other than the first, whose port is therefore not known.
    Fragment,
    /// Too little was captured to tell.
    Cut,
    /// Something else.
    Other,
}

/// Where a packet comes from or goes to.
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

/// Why a frame is not looked into any further.
enum Stop {
    Other,
    Cut,
    Fragment,
    Malformed(&'static str),
}

/// What comes next in a frame.
enum Next {
    /// The protocol of this EtherType.
    EtherType(u16),
    /// IP of either version.
    Ip,
    /// Native InfiniBand, from the LRH on.
    Lrh,
}

/// A frame, and how far it has been taken apart.
struct Walk<'a> {
    bytes: &'a [u8],
    /// Bytes on the wire.
    len: usize,
    at: usize,
    layers: Layers,
    ends: Option<(Address, Address)>,
    congestion_experienced: bool,
    place: u32,
}

/// What stands before a BTH, as far as its packet's ICRC covers it.
#[derive(Clone, Copy)]
enum Cover {
    /// These headers.
    Ip(NetHeader),
    /// Headers with which the ICRC is not checked.
    None(Unchecked),
}

/// Takes a record of a capture apart.
pub fn decode<'a>(record: &Record<'a>) -> Frame<'a> {
    decode_bytes(record.link, record.bytes, record.original_len)
}

/// Takes a frame apart that had `len` bytes on the wire.
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
    fn content(&mut self, link: LinkType) -> Result<Content<'a>, Stop> {
        match self.link(link)? {
            Next::EtherType(ROCE_V1) => self.roce_v1(),
            Next::EtherType(IPV4 | IPV6) | Next::Ip => self.roce_v2(),
            Next::EtherType(_) => Err(Stop::Other),
            Next::Lrh => self.native(),
        }
    }

    /// Takes the next header.
    fn header(&mut self, header: &'static Header) -> Result<&'a [u8], Stop> {
        self.layer(header, header.len)
    }

    /// Takes the next header, of `len` bytes.
    fn layer(&mut self, header: &'static Header, len: usize) -> Result<&'a [u8], Stop> {
        let Some(bytes) = self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) else {
            return Err(if self.is_cut() { Stop::Cut } else { Stop::Other });
        };
        self.layers.push(Layer { header, at: self.at, len });
        self.at += len;
        Ok(bytes)
    }

    /// Whether bytes are missing that were on the wire.
    fn is_cut(&self) -> bool {
        self.bytes.len() < self.len
    }
}

/// EtherTypes.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ROCE_V1: u16 = 0x8915;

/// The number that these bytes begin with, in network byte order; 0 if there are too few.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_be_bytes(*b))
}
