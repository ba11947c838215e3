//! Replaces descriptors in a forked child that must not keep them.
//!
//! A child that has forked but not called exec (which closes the descriptors) would keep the
//! sockets and names of its parent alive after the parent has died. So in the child an empty event
//! descriptor replaces each of them: the numbers stay in use, and the original files are released.
//! A child of a bare clone(2) runs no handler: it keeps these descriptors until it calls exec or
//! ends.
//!
//! Invariant: a bit of [`GUARDED`] is set only while its descriptor belongs to a [`ForkGuarded`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::CheckedFd;
use crate::Error;

/// The number of words in [`GUARDED`]. Descriptors with higher numbers than the bits stay open in
/// children.
const WORDS: usize = 1024;
static GUARDED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static ONCE: Once = Once::new();

/// A descriptor that is replaced in forked children.
#[derive(Debug)]
pub struct ForkGuarded(CheckedFd);

impl ForkGuarded {
    /// Moves the descriptor to a high number and registers it for replacement in children.
    pub fn new(fd: OwnedFd) -> Self {
        ONCE.call_once(|| {
            // SAFETY: `replace_guarded` calls only functions that are allowed in a forked child. If
            // there is no memory to register it, children keep the descriptors.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(replace_guarded)) };
        });
        let fd = CheckedFd::internal(fd);
        if let Some((word, bit)) = place(&fd) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(fd)
    }

    /// Returns whether the number is intact ([`CheckedFd::is_intact`]).
    pub(crate) fn is_intact(&self) -> bool {
        self.0.is_intact()
    }

    /// Checks that the number is intact ([`CheckedFd::ensure`]).
    pub fn ensure(&self) -> Result<(), Error> {
        self.0.ensure()
    }
}

impl Drop for ForkGuarded {
    fn drop(&mut self) {
        // The bit is cleared before the number is closed, because another descriptor may get the
        // number immediately after. If another one has it already, the bit belongs to that one.
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

/// Runs in a forked child: puts an empty event descriptor in place of each guarded one.
/// Async-signal-safe.
unsafe extern "C" fn replace_guarded() {
    // SAFETY: only system calls. The numbers belong to descriptors of the parent's `ForkGuarded`s,
    // whose copies in this child still own them.
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
                    // No descriptor is free for the replacement, so the number is closed instead.
                    libc::close(number + bit.cast_signed());
                }
            }
        }
        if other >= 0 {
            libc::close(other);
        }
    }
}
