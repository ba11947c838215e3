//! What a process waits for before it ends: acknowledgements of messages that the program knows of,
//! posts that wait for the next post, and explanations of errors.
//!
//! Each shard has a record here. Records are read without locks and without allocating memory, so
//! that [`flush_before_exit`] may be called from a signal handler at any moment. It only waits: the
//! driver sends within a millisecond. Records are never freed, but reused.

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::owed::Owed;
use super::waiting_posts::WaitingPosts;
use crate::event::has_undelivered_events;
use crate::os::now;

/// The longest time that an ending process waits: on a busy host the driver may have to wait for a
/// CPU. 100 ms were once too short, with fifteen busy programs per CPU.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The record of what one shard has not sent.
#[derive(Debug)]
pub(super) struct Unsent {
    /// The process that owns the shard; 0 if no shard uses this record.
    process: AtomicU32,
    pub(super) owed: Owed,
    pub(super) waiting_posts: WaitingPosts,
    next: OnceLock<Box<Unsent>>,
}

static FIRST: Unsent = Unsent::new();

/// Waits until all owed acknowledgements have left and all errors are explained.
///
/// Call it before ending a process without its exit handlers. It waits 500 ms at most, may be
/// called at any time from any thread, even in a signal handler, and does nothing in a child of
/// fork.
pub fn flush_before_exit() {
    let process = std::process::id();
    let mut deadline = None;
    for record in records().filter(|r| r.process.load(Ordering::Acquire) == process) {
        let before = record.owed.flushes();
        let owes =
            || record.owed.any() && record.owed.flushes() == before || record.waiting_posts.any();
        // Errors of the last turn are explained after the turn.
        while owes() || has_undelivered_events() {
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
    const fn new() -> Self {
        Self {
            process: AtomicU32::new(0),
            owed: Owed::new(),
            waiting_posts: WaitingPosts::new(),
            next: OnceLock::new(),
        }
    }
}

/// A shard's use of a record.
#[derive(Debug)]
pub(super) struct UnsentRecord(&'static Unsent);

impl UnsentRecord {
    /// Takes a record for a shard of this process.
    pub(super) fn take() -> Self {
        static REGISTERED: OnceLock<()> = OnceLock::new();
        REGISTERED.get_or_init(|| rxe_sys::at_exit(flush_at_exit));
        let process = std::process::id();
        let mut last = &FIRST;
        loop {
            let free =
                last.process.compare_exchange(0, process, Ordering::AcqRel, Ordering::Relaxed);
            if free.is_ok() {
                return Self(last);
            }
            last = last.next.get_or_init(|| Box::new(Unsent::new()));
        }
    }
}

impl Deref for UnsentRecord {
    type Target = &'static Unsent;

    fn deref(&self) -> &&'static Unsent {
        &self.0
    }
}

impl Drop for UnsentRecord {
    fn drop(&mut self) {
        self.owed.all_sent();
        self.waiting_posts.end();
        self.process.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_waits_until_all_has_left() {
        let shard = UnsentRecord::take();
        flush_before_exit();
        shard.owed.note();
        std::thread::scope(|scope| {
            let waits = scope.spawn(flush_before_exit);
            assert!(shard.owed.any());
            shard.owed.all_sent();
            waits.join().unwrap();
        });
        assert!(!shard.owed.any());
    }

    #[test]
    fn a_process_that_ends_waits_for_a_limited_time() {
        let shard = UnsentRecord::take();
        shard.owed.note();
        let before = now();
        flush_before_exit();
        assert!(now().since(before) >= MAX_WAIT);
        assert!(shard.owed.any());
    }

    #[test]
    fn what_a_parent_owes_is_not_its_child_s() {
        let shard = UnsentRecord::take();
        shard.process.store(u32::MAX, Ordering::Release);
        shard.owed.note();
        flush_before_exit();
        assert!(shard.owed.any(), "it did not wait");
    }
}
