//! The rule that nothing blocks under a shard's lock, checked in debug builds.
//!
//! A shard is an engine with its backend behind one lock. Whoever holds that lock marks its thread
//! with [`NonBlocking`]; every wrapper of a system call that may sleep calls [`may_block`] first,
//! which panics on a marked thread. Release builds check nothing.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// How many [`NonBlocking`] the thread has.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// While this lives, its thread must not block.
#[derive(Debug)]
#[must_use = "the mark is removed when this is dropped"]
pub struct NonBlocking {
    /// The mark is the thread's, so it must not leave it.
    thread: PhantomData<*const ()>,
}

impl NonBlocking {
    /// Marks the calling thread.
    pub fn enter() -> Self {
        if cfg!(debug_assertions) {
            // A thread whose locals are gone already is not checked.
            let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        }
        Self { thread: PhantomData }
    }
}

impl Drop for NonBlocking {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
        }
    }
}

/// Must be called before anything that may sleep in the kernel. `what` names it, for the message of
/// the panic.
///
/// # Panics
/// In debug builds, if the calling thread has a [`NonBlocking`] and does not panic already.
#[track_caller]
pub fn may_block(what: &str) {
    if cfg!(debug_assertions) {
        let held = DEPTH.try_with(Cell::get).is_ok_and(|depth| depth > 0);
        assert!(!held || std::thread::panicking(), "{what} may block, under a shard's lock");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_thread_may_not_block_until_the_last_mark_is_gone() {
        may_block("nothing");
        let outer = NonBlocking::enter();
        drop(NonBlocking::enter());
        let blocked = std::panic::catch_unwind(|| may_block("a test"));
        assert_eq!(blocked.is_err(), cfg!(debug_assertions));
        std::thread::spawn(|| may_block("another thread")).join().unwrap();
        drop(outer);
        may_block("nothing");
    }
}
