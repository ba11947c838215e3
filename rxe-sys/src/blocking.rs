//! The rule that nothing blocks where others would wait for it, checked in debug builds.
//!
//! A thread that holds a contended lock marks itself with [`NonBlocking`]. Every wrapper of a system call that may
//! sleep calls [`may_block`] first, which panics on a marked thread. Release builds check nothing.

use std::cell::Cell;
use std::marker::PhantomData;
use std::path::Path;

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
        assert!(!held || std::thread::panicking(), "{what} may block, where nothing may");
    }
}

/// As [`may_block`], before a system call that looks up or changes this path. That is allowed where
/// the file system is in memory (tmpfs, as `/dev/shm` is): no disk is waited for there.
///
/// # Panics
/// As [`may_block`], if the path is on a disk.
#[track_caller]
pub fn may_block_at(what: &str, path: &Path) {
    if cfg!(debug_assertions)
        && DEPTH.try_with(Cell::get).is_ok_and(|depth| depth > 0)
        && !is_in_memory(path)
    {
        may_block(what);
    }
}

/// Whether a file system keeps what is at this path in memory only. If nothing is there, its parent
/// directory counts.
pub fn is_in_memory(path: &Path) -> bool {
    /// Of `<linux/magic.h>`.
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let found = path.ancestors().find_map(|path| rustix::fs::statfs(path).ok());
    #[expect(clippy::useless_conversion, reason = "the field's type is the architecture's")]
    found.is_some_and(|found| [RAMFS_MAGIC, TMPFS_MAGIC].contains(&i64::from(found.f_type)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_allowed_in_memory_only() {
        let _mark = NonBlocking::enter();
        let touches = |path: &str| {
            std::panic::catch_unwind(|| may_block_at("a test", Path::new(path))).is_ok()
        };
        assert_eq!(touches("/proc/self/status"), !cfg!(debug_assertions));
        let in_memory = is_in_memory(Path::new("/dev/shm"));
        assert_eq!(touches("/dev/shm/nowhere/x"), in_memory || !cfg!(debug_assertions));
    }

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
