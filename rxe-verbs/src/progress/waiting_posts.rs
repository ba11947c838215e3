//! Posts that wait for the next post: a count of their packets, which other posts join without the
//! shard's lock.

use std::sync::atomic::{AtomicU32, Ordering};

use super::policy::Post;

/// Posts of a shard whose doorbells no thread answers yet. While any post waits, the driver's timer
/// is set ([`super::policy::DoorbellBatching`]).
#[derive(Debug)]
pub(super) struct WaitingPosts {
    /// Packets of the waiting posts; 0 if no post waits.
    packets: AtomicU32,
}

impl WaitingPosts {
    pub(super) const fn new() -> Self {
        Self { packets: AtomicU32::new(0) }
    }

    /// Records that a post waits. The caller holds the shard's lock, and no other post waits.
    pub(super) fn begin(&self, packets: u32) {
        self.packets.store(packets, Ordering::Release);
    }

    /// Lets a post wait with the waiting posts. Returns `false` if none waits, or if there is no
    /// room. The request must already be in its queue, and its doorbell rung.
    #[inline]
    pub(super) fn join(&self, packets: u32) -> bool {
        let join =
            |p: u32| (p > 0 && p.saturating_add(packets) < Post::MAX_PACKETS).then(|| p + packets);
        // The thread that ends the wait sees this doorbell: it sets the count to 0 before it takes
        // doorbells, and this read-modify-write either comes before that, or finds 0.
        self.packets.fetch_update(Ordering::AcqRel, Ordering::Relaxed, join).is_ok()
    }

    /// Ends the wait: the caller is about to take the doorbells. Returns whether a post waited.
    #[inline]
    pub(super) fn end(&self) -> bool {
        self.any() && self.packets.swap(0, Ordering::AcqRel) > 0
    }

    /// Returns whether a post waits.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.packets.load(Ordering::Relaxed) > 0
    }
}
