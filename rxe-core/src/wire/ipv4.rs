//! IPv4 header. RFC 791. The checksum is computed but not checked: the ICRC covers the important
//! fields.

use std::net::Ipv4Addr;
use std::ops::Range;

use super::DropReason;
use super::udp::{self, Sum};

/// The length of a header without options in bytes.
pub(super) const LEN: usize = 20;

/// An IPv4 header without its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ipv4 {
    pub(super) tos: u8,
    pub(super) id: u16,
    /// The flags and the fragment offset.
    pub(super) flags: u16,
    pub(super) ttl: u8,
    pub(super) protocol: u8,
    pub(super) src: Ipv4Addr,
    pub(super) dst: Ipv4Addr,
}

/// The fragment offset and "more fragments". All of these bits are 0 in an unfragmented datagram.
const FRAGMENT_BITS: u16 = 0x3fff;

impl Ipv4 {
    /// Parses the header of a packet, and returns it with the payload. The payload ends at the
    /// total length.
    pub(super) fn parse(packet: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        let head: &[u8; LEN] = packet.first_chunk().ok_or(DropReason::Truncated)?;
        let (header, rest) = Self::parse_header(head)?;
        let rest = packet.get(rest).ok_or(DropReason::Truncated)?;
        Ok((header, rest))
    }

    /// Parses the header without its options. Also returns the range of the payload in the packet.
    pub(super) fn parse_header(head: &[u8; LEN]) -> Result<(Self, Range<usize>), DropReason> {
        let header_len = usize::from(head[0] & 0xf) * 4;
        let total_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if head[0] >> 4 != 4 || header_len < LEN || total_len < header_len {
            return Err(DropReason::BadIpHeader);
        }
        let flags = u16::from_be_bytes([head[6], head[7]]);
        if flags & FRAGMENT_BITS != 0 {
            return Err(DropReason::Fragment);
        }
        let header = Self {
            tos: head[1],
            id: u16::from_be_bytes([head[4], head[5]]),
            flags,
            ttl: head[8],
            protocol: head[9],
            src: Ipv4Addr::new(head[12], head[13], head[14], head[15]),
            dst: Ipv4Addr::new(head[16], head[17], head[18], head[19]),
        };
        Ok((header, header_len..total_len))
    }

    /// Returns the header of a packet with `payload_len` bytes of payload.
    pub(super) fn emit(&self, payload_len: usize) -> [u8; LEN] {
        let mut head = [0; LEN];
        (head[0], head[1]) = (0x45, self.tos);
        head[2..4].copy_from_slice(&udp::len16(LEN + payload_len).to_be_bytes());
        head[4..6].copy_from_slice(&self.id.to_be_bytes());
        head[6..8].copy_from_slice(&self.flags.to_be_bytes());
        (head[8], head[9]) = (self.ttl, self.protocol);
        head[12..16].copy_from_slice(&self.src.octets());
        head[16..20].copy_from_slice(&self.dst.octets());
        let checksum = Sum::default().add(&head).finish();
        head[10..12].copy_from_slice(&checksum.to_be_bytes());
        head
    }
}
