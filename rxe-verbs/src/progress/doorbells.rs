//! Posts that wait for company: a count of their packets that other posts can join without the shard's lock.

use std::sync::atomic::{AtomicU32, Ordering};

use super::policy::Post;

/// Posts of a shard whose doorbells nobody answers yet. While there are some, the driver's timer is set
/// ([`super::policy::DoorbellBatching`]).
#[derive(Debug)]
pub(super) struct PendingDoorbells {
    /// Packets of these posts; 0 if no post waits.
    packets: AtomicU32,
}

impl PendingDoorbells {
    pub(super) const fn new() -> Self {
        Self { packets: AtomicU32::new(0) }
    }

    /// A post waits from now on. For a holder of the shard's lock, when no other waits.
    pub(super) fn begin(&self, packets: u32) {
        self.packets.store(packets, Ordering::Release);
    }

    /// Lets a post wait with those that wait already. Returns `false` if none waits, or if there is no room.
    /// The post is in its queue, and its doorbell is rung.
    #[inline]
    pub(super) fn join(&self, packets: u32) -> bool {
        let join =
            |p: u32| (p > 0 && p.saturating_add(packets) < Post::MAX_PACKETS).then(|| p + packets);
        // Whoever ends the wait sees their doorbell: it sets this to 0 first, and this read-modify-write
        // comes before that, or finds 0.
        self.packets.fetch_update(Ordering::AcqRel, Ordering::Relaxed, join).is_ok()
    }

    /// No post waits any more: what is posted is about to be taken. Returns whether one did.
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
