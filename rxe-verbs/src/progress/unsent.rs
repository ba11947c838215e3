//! What a process still owes its peers when it ends: acknowledgements of messages that the program
//! was told of, and explanations of what went wrong.
//!
//! Each shard has a record here. Records are read without locks and without allocating memory, so that
//! [`flush_before_exit`] may be called from a signal handler at any moment. It only waits: the driver
//! sends within a millisecond. Records are never freed, but used again.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::policy::Post;
use crate::event::is_any_untold;
use crate::os::now;

/// How long a process that ends waits at most: on a busy host the driver may have to wait for a CPU.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// What one shard has not sent.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// The process whose shard it is; 0 if nobody uses this record.
    process: AtomicU32,
    /// Packets have come whose acknowledgements may not have left.
    acks: AtomicBool,
    /// The last of these packets came from this host.
    local: AtomicBool,
    /// Packets of posted requests that wait for the next post; 0 if none do. While it is not, the driver
    /// is to wake soon ([`super::policy::Posts`]).
    posts: AtomicU32,
    /// How often everything had left.
    flushes: AtomicU64,
    next: OnceLock<Box<Unsent>>,
}

static FIRST: Unsent = Unsent::new(0);

/// Waits until what this process has been told of is acknowledged, and what went wrong explained: for
/// what ends a process without running its exit handlers. It waits 500 ms at most, may be called at any
/// time from any thread, a signal handler included, and does nothing in a child of fork.
pub fn flush_before_exit() {
    let process = std::process::id();
    let mut deadline = None;
    for record in records().filter(|r| r.process.load(Ordering::Acquire) == process) {
        let before = record.flushes.load(Ordering::Acquire);
        let owes = || {
            let acks = record.has_acks() && record.flushes.load(Ordering::Acquire) == before;
            acks || record.posts.load(Ordering::Acquire) > 0
        };
        // What went wrong in the last turn is explained after it.
        while owes() || is_any_untold() {
            if now() >= *deadline.get_or_insert_with(|| now() + MAX_WAIT) {
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

extern "C" fn flush_at_exit() {
    flush_before_exit();
}

fn records() -> impl Iterator<Item = &'static Unsent> {
    std::iter::successors(Some(&FIRST), |record| record.next.get().map(|next| &**next))
}

impl Unsent {
    const fn new(process: u32) -> Self {
        Self {
            process: AtomicU32::new(process),
            acks: AtomicBool::new(false),
            local: AtomicBool::new(false),
            posts: AtomicU32::new(0),
            flushes: AtomicU64::new(0),
            next: OnceLock::new(),
        }
    }

    /// A record for a shard of this process.
    pub(super) fn claim() -> Claim {
        static REGISTERED: OnceLock<()> = OnceLock::new();
        REGISTERED.get_or_init(|| rxe_sys::at_exit(flush_at_exit));
        let process = std::process::id();
        let mut last = &FIRST;
        loop {
            let free =
                last.process.compare_exchange(0, process, Ordering::AcqRel, Ordering::Relaxed);
            if free.is_ok() {
                return Claim(last);
            }
            last = last.next.get_or_init(|| Box::new(Self::new(0)));
        }
    }

    /// Something is about to be handled that there may be something to send for.
    #[inline]
    pub(super) fn note(&self) {
        self.acks.store(true, Ordering::Release);
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

    /// Requests wait from now on. For a holder of the shard's lock, when nothing waits yet.
    pub(super) fn begin_posts(&self, packets: u32) {
        self.posts.store(packets, Ordering::Release);
    }

    /// Lets requests wait with those that wait already, if there are such and there is room. They are
    /// in their queue, and its doorbell is rung.
    #[inline]
    pub(super) fn join_posts(&self, packets: u32) -> bool {
        let join =
            |p: u32| (p > 0 && p.saturating_add(packets) < Post::MAX_PACKETS).then(|| p + packets);
        // Whoever ends the wait sees their doorbell: it sets this to 0 first, and this read-modify-write
        // comes before that, or finds 0.
        self.posts.fetch_update(Ordering::AcqRel, Ordering::Relaxed, join).is_ok()
    }

    /// Nothing waits any more: what is posted is about to be taken. Whether something did.
    #[inline]
    pub(super) fn end_posts(&self) -> bool {
        self.has_posts() && self.posts.swap(0, Ordering::AcqRel) > 0
    }

    /// Whether requests wait.
    #[inline]
    pub(super) fn has_posts(&self) -> bool {
        self.posts.load(Ordering::Relaxed) > 0
    }

    /// Everything has left.
    #[inline]
    pub(super) fn all_sent(&self) {
        if self.acks.load(Ordering::Relaxed) {
            self.acks.store(false, Ordering::Release);
            self.flushes.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether there may be acknowledgements of what a program was told of.
    #[inline]
    pub(super) fn has_acks(&self) -> bool {
        self.acks.load(Ordering::Acquire)
    }

    /// The same, of packets that came from this host.
    #[inline]
    pub(super) fn has_local_acks(&self) -> bool {
        self.has_acks() && self.local.load(Ordering::Relaxed)
    }
}

/// The use of a record by a shard.
#[derive(Debug)]
pub(super) struct Claim(&'static Unsent);

impl Claim {
    pub(super) fn record(&self) -> &'static Unsent {
        self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.acks.store(false, Ordering::Release);
        self.0.posts.store(0, Ordering::Release);
        self.0.process.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_waits_until_all_has_left() {
        let shard = Unsent::claim();
        flush_before_exit();
        shard.0.note();
        std::thread::scope(|scope| {
            let waits = scope.spawn(flush_before_exit);
            assert!(shard.0.has_acks());
            shard.0.all_sent();
            waits.join().unwrap();
        });
        assert!(!shard.0.has_acks());
    }

    #[test]
    fn a_process_that_ends_waits_for_a_limited_time() {
        let shard = Unsent::claim();
        shard.0.note();
        let before = now();
        flush_before_exit();
        assert!(now().since(before) >= MAX_WAIT);
        assert!(shard.0.has_acks());
    }

    #[test]
    fn what_a_parent_owes_is_not_its_child_s() {
        let shard = Unsent::claim();
        shard.0.process.store(u32::MAX, Ordering::Release);
        shard.0.note();
        flush_before_exit();
        assert!(shard.0.has_acks(), "it did not wait");
    }
}
