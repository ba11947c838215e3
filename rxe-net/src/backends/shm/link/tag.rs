//! The tag of a record with packets: what the record consists of, in one word.

use rxe_core::wire::{Bth, Coalesced};

use crate::backends::shm::ring::{ALIGN, HEAD};
use crate::host::message;

/// The tag of a record with one packet, or with a coalesced segment of packets. The packets have no
/// pad and no ICRC ([`Coalesced`]). In the ring it is [`PACKET`] with these fields added. The
/// record consists of the header of [`message`] unless that equals the header of the last packet,
/// the packet's headers, and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketTag {
    /// The record begins with a header of [`message`].
    pub(super) has_header: bool,
    /// The payload begins at a cache line.
    pub(super) aligned: bool,
    /// The length of the packet's headers in bytes.
    pub(super) head_len: usize,
    /// The number of packets, at least 1.
    pub(super) count: u16,
}

const PACKET: u32 = 2;

impl PacketTag {
    const HAS_HEADER: u32 = 1 << 8;
    const ALIGNED: u32 = 1 << 9;
    /// The payload length in bytes from which payloads begin at a cache line, because copies are
    /// then faster.
    pub(super) const ALIGN_FROM: usize = 256;

    /// Returns the number of bytes in headers and payload of all packets. Every packet but one
    /// counts with a BTH alone, although it may have an XRCETH or an AETH.
    pub(super) fn bytes(self, payload: usize) -> usize {
        self.head_len + usize::from(self.count - 1) * Bth::LEN + payload
    }

    pub(super) fn to_word(self) -> u32 {
        let head_len = u32::try_from(self.head_len).unwrap_or(u32::from(u8::MAX));
        let flag = |on: bool, bit| if on { bit } else { 0 };
        let flags = flag(self.has_header, Self::HAS_HEADER) | flag(self.aligned, Self::ALIGNED);
        PACKET | flags | head_len << 16 | u32::from(self.count - 1) << 24
    }

    /// Parses a tag. Returns `None` if the record does not hold packets of this kind.
    pub(super) fn parse(word: u32) -> Option<Self> {
        let [kind, _, head_len, more] = word.to_le_bytes();
        let (head_len, count) = (usize::from(head_len), u16::from(more) + 1);
        let (has_header, aligned) = (word & Self::HAS_HEADER != 0, word & Self::ALIGNED != 0);
        let tag = Self { has_header, aligned, head_len, count };
        (u32::from(kind) == PACKET && tag.to_word() == word && head_len <= Coalesced::MAX_HEAD)
            .then_some(tag)
    }

    /// Returns the offset of the packet's headers in the record.
    pub(super) fn head_at(self) -> usize {
        if self.has_header { message::LEN } else { 0 }
    }

    /// Returns the offset of the payload in the record.
    pub(super) fn payload_at(self) -> usize {
        let end = self.head_at() + self.head_len;
        if self.aligned { (HEAD + end).next_multiple_of(ALIGN) - HEAD } else { end }
    }
}

#[cfg(test)]
mod tests {
    use rxe_core::wire::{Opcode, emit, icrc};

    use super::*;
    use crate::backends::shm::ring::size_of_record;

    #[test]
    fn a_short_message_is_one_cache_line() {
        for opcode in [Opcode::RC_SEND_ONLY, Opcode::RC_WRITE_ONLY] {
            let head_len = emit::len(opcode, 0) - icrc::LEN;
            // The previous packet had the same header.
            let tag = PacketTag { has_header: false, aligned: false, head_len, count: 1 };
            assert_eq!(size_of_record(tag.payload_at() + 8), 64, "{opcode:?}");
        }
    }
}
