//! Acknowledgements that a shard owes its peers, as threads without its lock see them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether a shard may have acknowledgements to send.
#[derive(Debug)]
pub(super) struct OwedAcks {
    /// Packets have come whose acknowledgements may not have left.
    any: AtomicBool,
    /// The last of these packets came from this host.
    local: AtomicBool,
    /// How often all had left.
    flushes: AtomicU64,
}

impl OwedAcks {
    pub(super) const fn new() -> Self {
        let (any, local) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { any, local, flushes: AtomicU64::new(0) }
    }

    /// Something is about to be handled that may have to be answered.
    #[inline]
    pub(super) fn note(&self) {
        self.any.store(true, Ordering::Release);
    }

    /// A packet is about to be handled; it comes from this host, or not.
    #[inline]
    pub(super) fn note_packet(&self, local: bool) {
        // Unless this has changed, the line stays shared between the processors.
        if self.local.load(Ordering::Relaxed) != local {
            self.local.store(local, Ordering::Relaxed);
        }
        self.note();
    }

    /// All have left.
    #[inline]
    pub(super) fn all_sent(&self) {
        if self.any.load(Ordering::Relaxed) {
            self.any.store(false, Ordering::Release);
            self.flushes.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns whether there may be acknowledgements of what a program was told of.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Returns whether there may be acknowledgements of packets that came from this host.
    #[inline]
    pub(super) fn any_local(&self) -> bool {
        self.any() && self.local.load(Ordering::Relaxed)
    }

    /// Returns how often all acknowledgements had left.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }
}
