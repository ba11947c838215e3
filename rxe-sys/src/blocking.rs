//! A check in debug builds: a thread that others wait for must not block.
//!
//! A thread that holds a contended lock marks itself with [`NonBlocking`]. Every wrapper of a
//! system call that may sleep first calls [`may_block`], which panics on a marked thread. Release
//! builds check nothing.

use std::cell::Cell;
use std::marker::PhantomData;
use std::path::Path;

thread_local! {
    /// The number of [`NonBlocking`] marks that the thread holds.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A mark on the current thread: while it exists, the thread must not block.
#[derive(Debug)]
#[must_use = "the mark is removed when this is dropped"]
pub struct NonBlocking {
    /// Makes the type `!Send`, because the mark belongs to the thread that set it.
    thread: PhantomData<*const ()>,
}

impl NonBlocking {
    /// Marks the calling thread.
    pub fn enter() -> Self {
        if cfg!(debug_assertions) {
            // The thread-local is gone while the thread ends: such a thread is not checked.
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

/// Checks that the calling thread may block. Call this before every system call that may sleep.
/// `what` names the operation in the panic message.
///
/// # Panics
/// In debug builds, if the calling thread holds a [`NonBlocking`] and is not panicking already.
#[track_caller]
pub fn may_block(what: &str) {
    if cfg!(debug_assertions) {
        let held = DEPTH.try_with(Cell::get).is_ok_and(|depth| depth > 0);
        assert!(!held || std::thread::panicking(), "{what} may block, where nothing may");
    }
}

/// Like [`may_block`], for a system call that looks up or changes `path`. A marked thread may do so
/// in a file system in memory (tmpfs, such as `/dev/shm`), where no call waits for a disk.
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

/// Returns whether `path` is on a file system in memory (tmpfs or ramfs). If `path` does not exist,
/// its nearest existing ancestor counts.
pub fn is_in_memory(path: &Path) -> bool {
    /// From `<linux/magic.h>`.
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
