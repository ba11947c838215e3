//! Detects forks, and takes descriptors from the child that it must not keep.
//!
//! Names and sockets that stand for a living process would outlive it in a child that it has forked
//! and that has not called exec (which closes them). So in the child something else takes the place
//! of each: their numbers stay in use, and what they stood for is let go. A device that was open at
//! the fork is of no use in the child, whose threads are gone anyway. A child of a bare clone(2) runs no
//! handler: it keeps these descriptors until it calls exec or ends.
//!
//! Invariant: a bit of [`GUARDED`] is set only while its descriptor belongs to a [`ForkGuarded`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::checked_fd::CheckedFd;
use crate::NetError;

/// How many forks there were between the process in which this was first called and this one. What was
/// opened in an earlier generation is a parent's: the parent goes on using it. Its threads do not exist
/// here, and its locks may be held, so nothing of it may be used.
///
/// It costs two loads. A child is noticed however it was made: by `fork`, `_Fork` or a bare `clone`. One
/// that shares its parent's memory (`vfork`, CLONE_VM) is not: it may do nothing but exec or exit.
#[inline]
pub fn fork_generation() -> u64 {
    // SAFETY: null, or what `watch_forks` has stored, which stays for ever.
    match unsafe { GENERATION.load(Ordering::Acquire).as_ref() } {
        Some(cell) => match cell.load(Ordering::Relaxed) {
            UNKNOWN => next_generation(cell),
            known => known - FIRST,
        },
        None => watch_forks(),
    }
}

/// Where this process's generation stands, counted from [`FIRST`]: in a page that the kernel clears in
/// children.
static GENERATION: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// What a child finds: its generation is still to be counted.
const UNKNOWN: u64 = 0;
const FIRST: u64 = 1;
/// The last one that was counted, in this process or in those before it. Not cleared in children.
static LAST: AtomicU64 = AtomicU64::new(FIRST);

#[cold]
fn watch_forks() -> u64 {
    /// Where there is no such page, `forked` still notices the children of `fork`.
    static ELSEWHERE: AtomicU64 = AtomicU64::new(FIRST);
    let page = cleared_page().unwrap_or_else(|_| ptr::from_ref(&ELSEWHERE).cast_mut());
    // SAFETY: a page for this alone, which is nobody else's yet; or the variable above.
    unsafe { &*page }.store(FIRST, Ordering::Relaxed);
    let none = ptr::null_mut();
    if GENERATION.compare_exchange(none, page, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: `forked` only changes an atomic number, which is safe in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    } else if page != ptr::from_ref(&ELSEWHERE).cast_mut() {
        // Another thread was faster.
        // SAFETY: made above, and nobody else knows it.
        let _ = unsafe { munmap(page.cast(), size_of::<AtomicU64>()) };
    }
    fork_generation()
}

/// A page that is full of zeros in every child that has a memory of its own (Linux 4.14).
fn cleared_page() -> rustix::io::Result<*mut AtomicU64> {
    let size = size_of::<AtomicU64>();
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe {
        mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    // SAFETY: all of that mapping, and nothing else. A kernel that does not know this leaves it as it is.
    let _ = unsafe { madvise(page, size, Advice::LinuxWipeOnFork) };
    Ok(page.cast())
}

/// In a child that has not asked yet.
#[cold]
fn next_generation(cell: &AtomicU64) -> u64 {
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let counted = cell.compare_exchange(UNKNOWN, next, Ordering::Relaxed, Ordering::Relaxed);
    // Another thread of this child may have been faster.
    counted.err().unwrap_or(next) - FIRST
}

extern "C" fn forked() {
    // SAFETY: as in `fork_generation`.
    if let Some(cell) = unsafe { GENERATION.load(Ordering::Acquire).as_ref() } {
        cell.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// Words of [`GUARDED`]: descriptors of higher numbers than these have bits stay open in children.
const WORDS: usize = 1024;
static GUARDED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static ONCE: Once = Once::new();

/// A descriptor that a forked child loses.
#[derive(Debug)]
pub(crate) struct ForkGuarded(CheckedFd);

impl ForkGuarded {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        ONCE.call_once(|| {
            // SAFETY: `let_go` does only what is allowed in a forked child. If there is no memory
            // to register it, children keep the descriptors.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(let_go)) };
        });
        let fd = CheckedFd::internal(fd);
        if let Some((word, bit)) = place(&fd) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(fd)
    }

    /// Whether the number still is its own.
    pub(super) fn is_intact(&self) -> bool {
        self.0.is_intact()
    }

    /// Refuses to use a number that is not its own any more ([`CheckedFd::ensure`]).
    pub(crate) fn ensure(&self) -> Result<(), NetError> {
        self.0.ensure()
    }
}

impl Drop for ForkGuarded {
    fn drop(&mut self) {
        // Before it is closed: the number may be another's at once. Or it is already.
        if self.0.is_owner()
            && let Some((word, bit)) = place(&self.0)
        {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

impl AsFd for ForkGuarded {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn place(fd: &CheckedFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd.as_raw_fd()).ok()?;
    Some((GUARDED.get(number / 64)?, 1 << (number % 64)))
}

/// In a forked child: puts an empty event descriptor in the place of each. Async-signal-safe.
unsafe extern "C" fn let_go() {
    // SAFETY: only system calls; the numbers are of descriptors that `ForkGuarded`s of the parent owned,
    // whose copies here own them still.
    unsafe {
        let other = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        for (word, number) in GUARDED.iter().zip((0..).step_by(64)) {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                if other >= 0 {
                    libc::dup3(other, number + bit.cast_signed(), libc::O_CLOEXEC);
                } else {
                    // No number is free: this one will be in a moment.
                    libc::close(number + bit.cast_signed());
                }
            }
        }
        if other >= 0 {
            libc::close(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `child` in a child of a bare clone, which runs no handlers; whether it returned `true`.
    fn in_bare_clone(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: a child with a copy of the memory, which only runs what was passed, and ends.
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
