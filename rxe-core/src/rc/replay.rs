//! Answers kept for duplicates of READs and atomics: a READ may be done again from memory, an
//! atomic must not be. IBTA 9.7.4.2 (C9-105 ff.), 9.4.5.2.

use std::collections::VecDeque;

use crate::bounds::max_saved;
use crate::types::{Key, Psn};

/// A READ or atomic that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    /// Its first PSN.
    pub(super) first: Psn,
    /// How many PSNs it takes.
    pub(super) packets: u32,
    /// What it was.
    pub(super) kind: SavedKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SavedKind {
    /// The range that the peer may read again.
    Read { va: u64, rkey: Key, len: u32 },
    /// The value that the atomic found.
    Atomic { value: u64 },
    /// Nothing: an ATOMIC WRITE or FLUSH, which must not be done again either.
    Nothing,
}

/// The newest READs and atomics, at most as many as the peer may have outstanding.
#[derive(Debug, Default)]
pub(super) struct Replay {
    saved: VecDeque<Saved>,
}

impl Replay {
    pub(super) fn save(&mut self, saved: Saved, limit: u8) {
        while self.saved.len() >= max_saved(limit) {
            self.saved.pop_front();
        }
        self.saved.push_back(saved);
    }

    /// The one whose PSNs `psn` is among.
    pub(super) fn find(&self, psn: Psn) -> Option<&Saved> {
        self.saved.iter().rev().find(|saved| {
            let offset = psn.diff(saved.first);
            u32::try_from(offset).is_ok_and(|offset| offset < saved.packets)
        })
    }
}

impl Saved {
    /// Whether a duplicate READ for `len` bytes at `va` under `rkey`, beginning at `psn`, asks for
    /// part of what was read.
    pub(super) fn covers(&self, psn: Psn, mtu: usize, va: u64, rkey: Key, len: u32) -> bool {
        let SavedKind::Read { va: start, rkey: key, len: whole } = self.kind else { return false };
        let Ok(skipped) = u64::try_from(psn.diff(self.first)) else { return false };
        let skipped = skipped * mtu as u64;
        // A READ of nothing has no key and no address to compare.
        if whole == 0 || len == 0 {
            return whole == 0 && len == 0;
        }
        key == rkey
            && va.checked_sub(start) == Some(skipped)
            && skipped + u64::from(len) <= u64::from(whole)
    }
}
