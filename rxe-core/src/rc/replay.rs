//! What is kept to respond to duplicates of READs and atomics. A duplicate READ reads memory again. A
//! duplicate atomic must not be executed again, so its value is kept. IBTA 9.7.4.2 (C9-105 ff.),
//! 9.4.5.2.

use std::collections::VecDeque;

use crate::bounds::max_saved;
use crate::mem::PdId;
use crate::types::{Key, Psn};

/// A READ or atomic that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    /// The first PSN.
    pub(super) first: Psn,
    /// How many PSNs the request takes.
    pub(super) packets: u32,
    /// What a response to a duplicate needs.
    pub(super) kind: SavedKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SavedKind {
    /// The range that the peer may read again, and the protection domain of the key.
    Read { pd: PdId, va: u64, rkey: Key, len: u32 },
    /// The value before the atomic.
    Atomic { value: u64 },
    /// Nothing, for an ATOMIC WRITE or FLUSH. They must not be executed again either.
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
        debug_assert!(saved.packets > 0, "a response has a PSN");
        debug_assert!(
            self.saved
                .back()
                .is_none_or(|last| last.first.add(last.packets - 1).before(saved.first)),
            "requests are executed in the order of their PSNs"
        );
        self.saved.push_back(saved);
        debug_assert!(self.saved.len() <= max_saved(limit).max(1));
    }

    /// Returns the READ or atomic that `psn` belongs to.
    pub(super) fn find(&self, psn: Psn) -> Option<&Saved> {
        self.saved.iter().rev().find(|saved| {
            let offset = psn.diff(saved.first);
            u32::try_from(offset).is_ok_and(|offset| offset < saved.packets)
        })
    }
}

impl Saved {
    /// Returns whether a duplicate READ of `len` bytes at `va` with `rkey` of `pd`, which begins at `psn`,
    /// lies within this READ.
    pub(super) fn covers(
        &self,
        psn: Psn,
        mtu: usize,
        pd: PdId,
        va: u64,
        rkey: Key,
        len: u32,
    ) -> bool {
        let SavedKind::Read { pd: domain, va: start, rkey: key, len: whole } = self.kind else {
            return false;
        };
        debug_assert!(psn.diff(self.first).unsigned_abs() < self.packets, "`find` has found it");
        let Ok(skipped) = u64::try_from(psn.diff(self.first)) else { return false };
        let skipped = skipped * mtu as u64;
        // The key and the address of a zero-length READ have no meaning.
        if whole == 0 || len == 0 {
            return whole == 0 && len == 0;
        }
        (domain, key) == (pd, rkey)
            && va.checked_sub(start) == Some(skipped)
            && skipped + u64::from(len) <= u64::from(whole)
    }
}
