//! IPv6 header. RFC 8200. RoCEv2 requires UDP directly after it; extension headers are not
//! followed.

use std::net::Ipv6Addr;

use super::DropReason;
use super::bytes::u32_at;
use super::udp;

/// The length of a header in bytes.
pub(super) const LEN: usize = 40;

/// The next header value of a fragment header.
const FRAGMENT: u8 = 44;

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ipv6 {
    pub(super) traffic_class: u8,
    /// The flow label, 20 bits.
    pub(super) flow_label: u32,
    pub(super) next_header: u8,
    pub(super) hop_limit: u8,
    pub(super) src: Ipv6Addr,
    pub(super) dst: Ipv6Addr,
}

impl Ipv6 {
    /// Parses the header of a packet, and returns it with the payload. The payload has the length
    /// in the header.
    pub(super) fn parse(packet: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        let (head, rest) = packet.split_first_chunk::<LEN>().ok_or(DropReason::Truncated)?;
        let (header, payload_len) = Self::parse_header(head)?;
        let rest = rest.get(..payload_len).ok_or(DropReason::Truncated)?;
        Ok((header, rest))
    }

    /// Parses the header. Also returns the payload length.
    pub(super) fn parse_header(head: &[u8; LEN]) -> Result<(Self, usize), DropReason> {
        if head[0] >> 4 != 6 {
            return Err(DropReason::BadIpHeader);
        }
        let payload_len = usize::from(u16::from_be_bytes([head[4], head[5]]));
        if head[6] == FRAGMENT {
            return Err(DropReason::Fragment);
        }
        let address = |at| Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| head[at + i]));
        let header = Self {
            traffic_class: head[0] << 4 | head[1] >> 4,
            flow_label: u32_at(head, 0) & 0xf_ffff,
            next_header: head[6],
            hop_limit: head[7],
            src: address(8),
            dst: address(24),
        };
        Ok((header, payload_len))
    }

    /// Returns the header of a packet with `payload_len` bytes of payload.
    pub(super) fn emit(&self, payload_len: usize) -> [u8; LEN] {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let mut head = [0; LEN];
        head[..4].copy_from_slice(&word.to_be_bytes());
        head[4..6].copy_from_slice(&udp::len16(payload_len).to_be_bytes());
        (head[6], head[7]) = (self.next_header, self.hop_limit);
        head[8..24].copy_from_slice(&self.src.octets());
        head[24..].copy_from_slice(&self.dst.octets());
        head
    }
}
