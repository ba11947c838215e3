//! Whether a shard still owes something: acknowledgements to its peers, explanations of failed
//! requests to the program. Threads without its lock read this here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether a shard may have acknowledgements to send, or requests that fail to explain.
#[derive(Debug)]
pub(super) struct Owed {
    /// Packets have arrived whose acknowledgements may not have left, or timers have run whose
    /// failures may not be explained.
    any: AtomicBool,
    /// The last of these packets came from this host.
    local: AtomicBool,
    /// How often all acknowledgements had left.
    flushes: AtomicU64,
}

impl Owed {
    pub(super) const fn new() -> Self {
        let (any, local) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { any, local, flushes: AtomicU64::new(0) }
    }

    /// Records that the engine may soon owe an acknowledgement. Called before it handles a packet
    /// or a timeout.
    #[inline]
    pub(super) fn note(&self) {
        self.any.store(true, Ordering::Release);
    }

    /// Records that a packet is about to be handled. `local`: it comes from this host.
    #[inline]
    pub(super) fn note_packet(&self, local: bool) {
        // Without a write, the cache line stays shared between the processors.
        if self.local.load(Ordering::Relaxed) != local {
            self.local.store(local, Ordering::Relaxed);
        }
        self.note();
    }

    /// Records that all acknowledgements have left.
    #[inline]
    pub(super) fn all_sent(&self) {
        if self.any.load(Ordering::Relaxed) {
            self.any.store(false, Ordering::Release);
            self.flushes.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns whether acknowledgements may not have left yet.
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
