//! Packets of a frame that were not captured. A host that lets the system split or merge its datagrams (GSO,
//! GRO) has several in one frame; if that is cut, the first of them hides how many there were.

use rxe_core::wire::{OpInfo, Position, icrc};

use crate::header;

/// The largest path MTU.
pub(super) const MAX_PAYLOAD: usize = 4096;

/// The smallest path MTU.
const MIN_PAYLOAD: usize = 256;

/// The most packets of one frame, in Linux (UDP_MAX_SEGMENTS is 64, or 128).
pub(super) const MAX_SEGMENTS: usize = 1024;

/// Packets that a frame may have behind one that was captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    most: u32,
    /// Whether another packet of the frame was captured, so that their size is known.
    is_known: bool,
    /// Bytes of payload from the packet's own up to the end of the frame.
    len: usize,
    /// Whether its opcode has a payload as long as the path MTU.
    is_full: bool,
}

impl Unseen {
    /// So many behind the last that was captured.
    pub(super) fn known(most: usize) -> Self {
        Self { most: u32::try_from(most).unwrap_or(0), is_known: true, ..Self::default() }
    }

    /// Those behind a packet of which the first `captured` bytes were captured, and nothing after it. It has `len`
    /// bytes with all that may be behind it, and `payload_len` after its headers.
    pub(super) fn behind(info: &OpInfo, captured: usize, len: usize, payload_len: usize) -> Self {
        if !info.has_payload {
            return Self::default();
        }
        // The second would begin where its BTH was not captured whole.
        let least =
            (info.header_len + icrc::LEN).max((captured + 1).saturating_sub(header::BTH.len));
        let all = len.div_ceil(least).clamp(1, MAX_SEGMENTS);
        let is_full = matches!(info.position, Position::First | Position::Middle);
        let most = u32::try_from(all - 1).unwrap_or(0);
        Self { most, is_known: false, len: payload_len, is_full }
    }

    /// The most that there may be, if the path MTU is this one.
    pub fn most(&self, mtu: Option<usize>) -> u32 {
        if self.is_known || !self.is_full || self.is_certain(mtu) { self.most } else { 0 }
    }

    /// Whether there is at least one for certain.
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
