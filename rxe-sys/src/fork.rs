//! Tells a forked child from its parent.
//!
//! A child has none of its parent's threads, so it cannot use an object that needs those threads or
//! their locks. Such an object records the generation in which it was created and is not used in a
//! later one.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Returns a number that is larger in a forked child than in any ancestor that called this. It is 0
/// in the first process that calls. It does not count forks, and two children of one parent may
/// have the same number.
///
/// An object that was created in an earlier generation belongs to an ancestor, which continues to
/// use it. The threads behind the object do not exist in the child, and its locks may be held, so
/// the child must not use it.
///
/// A call costs two loads. A child is noticed whether `fork`, `_Fork` or a bare `clone` created it.
/// A child that shares its parent's memory (`vfork`, CLONE_VM) is not noticed: it may only exec or
/// exit.
#[inline]
pub fn fork_generation() -> u64 {
    // SAFETY: null, or the pointer that `watch_forks` has stored, which stays valid while the
    // process lives.
    match unsafe { GENERATION.load(Ordering::Acquire).as_ref() } {
        Some(cell) => match cell.load(Ordering::Relaxed) {
            UNKNOWN => next_generation(cell),
            known => known - FIRST,
        },
        None => watch_forks(),
    }
}

/// The generation of this process plus [`FIRST`], in a page that the kernel zeroes in children.
/// Null until the first call.
static GENERATION: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The value in a new child, whose generation is not counted yet.
const UNKNOWN: u64 = 0;
const FIRST: u64 = 1;
/// The last generation counted, in this process or in its ancestors. Children inherit the value.
static LAST: AtomicU64 = AtomicU64::new(FIRST);

/// Creates the page that the kernel zeroes in children, and returns the current generation.
#[cold]
fn watch_forks() -> u64 {
    /// The fallback without such a page. The handler `forked` then still notices children of
    /// `fork`.
    static ELSEWHERE: AtomicU64 = AtomicU64::new(FIRST);
    let page = cleared_page().unwrap_or_else(|_| ptr::from_ref(&ELSEWHERE).cast_mut());
    // SAFETY: a new page that no other thread knows yet, or the static variable above.
    unsafe { &*page }.store(FIRST, Ordering::Relaxed);
    let none = ptr::null_mut();
    if GENERATION.compare_exchange(none, page, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: `forked` only writes an atomic number, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    } else if page != ptr::from_ref(&ELSEWHERE).cast_mut() {
        // Another thread was faster.
        // SAFETY: the page was mapped above, and no other thread knows it.
        let _ = unsafe { munmap(page.cast(), size_of::<AtomicU64>()) };
    }
    fork_generation()
}

/// Maps a page that the kernel zeroes in every child with its own memory (Linux 4.14).
fn cleared_page() -> rustix::io::Result<*mut AtomicU64> {
    let size = size_of::<AtomicU64>();
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe {
        mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    // SAFETY: exactly that mapping. An older kernel refuses the advice and leaves the mapping
    // unchanged.
    let _ = unsafe { madvise(page, size, Advice::LinuxWipeOnFork) };
    Ok(page.cast())
}

/// Counts a new generation for a child that has just noticed that it is one.
#[cold]
fn next_generation(cell: &AtomicU64) -> u64 {
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let counted = cell.compare_exchange(UNKNOWN, next, Ordering::Relaxed, Ordering::Relaxed);
    // Another thread of this child may have been faster.
    counted.err().unwrap_or(next) - FIRST
}

/// Marks the generation as unknown in a child of `fork`.
extern "C" fn forked() {
    // SAFETY: as in `fork_generation`.
    if let Some(cell) = unsafe { GENERATION.load(Ordering::Acquire).as_ref() } {
        cell.store(UNKNOWN, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `child` in a child of a bare clone, which runs no handlers. Returns whether `child`
    /// returned `true`.
    fn in_bare_clone(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child has a copy of the memory, only runs the closure, and exits.
        unsafe {
            let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            if pid == 0 {
                libc::alarm(30);
                libc::_exit(i32::from(!child()));
            }
            let mut status = 0;
            let pid = libc::pid_t::try_from(pid).unwrap();
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            status == 0
        }
    }

    #[test]
    fn every_child_is_another_generation_however_it_was_made() {
        let own = fork_generation();
        assert!(in_bare_clone(|| {
            let child = fork_generation();
            let again = fork_generation();
            let grandchild = in_bare_clone(|| fork_generation() > child);
            child > own && again == child && grandchild && fork_generation() == child
        }));
        assert_eq!(fork_generation(), own);
    }
}
