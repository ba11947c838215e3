//! Packets of a frame that were not captured.
//!
//! A host that lets the kernel split or merge datagrams (GSO, GRO) has several packets in one
//! frame. If such a frame is truncated, the number of packets behind the first can only be
//! estimated.

use rxe_core::wire::{OpInfo, Position, icrc};

use crate::header;

/// The largest path MTU, in bytes.
pub(super) const MAX_PAYLOAD: usize = 4096;

/// The smallest path MTU, in bytes.
const MIN_PAYLOAD: usize = 256;

/// The most packets assumed in one frame. Linux allows fewer: `UDP_MAX_SEGMENTS` is 64 or 128.
pub(super) const MAX_SEGMENTS: usize = 1024;

/// The packets that a frame may hold behind a captured one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// The most packets that there may be.
    most: u32,
    /// Whether `most` is exact because the packet size is known from another packet.
    is_known: bool,
    /// Bytes from the start of the captured packet's payload to the end of the frame.
    len: usize,
    /// Whether packets of this opcode carry exactly one path MTU of payload.
    is_full: bool,
}

impl Unseen {
    /// Returns a known number of packets behind the last captured one.
    pub(super) fn known(most: usize) -> Self {
        Self { most: u32::try_from(most).unwrap_or(0), is_known: true, ..Self::default() }
    }

    /// Estimates the packets behind one of which only `captured` bytes were captured.
    /// `len` is the length in bytes of the packet and all that may follow in its frame, and
    /// `payload_len` the part of it after the headers.
    pub(super) fn behind(info: &OpInfo, captured: usize, len: usize, payload_len: usize) -> Self {
        if !info.has_payload {
            return Self::default();
        }
        // The second packet begins where its BTH is not captured whole, or else it would have been
        // found.
        let least =
            (info.header_len + icrc::LEN).max((captured + 1).saturating_sub(header::BTH.len));
        let all = len.div_ceil(least).clamp(1, MAX_SEGMENTS);
        let is_full = matches!(info.position, Position::First | Position::Middle);
        let most = u32::try_from(all - 1).unwrap_or(0);
        Self { most, is_known: false, len: payload_len, is_full }
    }

    /// Returns the most packets that there may be, given the path MTU if it is known.
    pub fn most(&self, mtu: Option<usize>) -> u32 {
        if self.is_known || !self.is_full || self.is_certain(mtu) { self.most } else { 0 }
    }

    /// Returns whether at least one packet is certainly there.
    pub fn is_certain(&self, mtu: Option<usize>) -> bool {
        let is_mtu =
            |len: usize| len.is_power_of_two() && (MIN_PAYLOAD..=MAX_PAYLOAD).contains(&len);
        let is_one = match mtu {
            Some(mtu) if self.is_full => self.len == mtu,
            None if self.is_full => is_mtu(self.len),
            _ => self.len <= mtu.unwrap_or(MAX_PAYLOAD),
        };
        self.most > 0 && (self.is_known || !is_one)
    }
}
