//! Takes descriptors from a forked child that it must not keep.
//!
//! Names and sockets that stand for a living process would outlive it in a child that it has forked
//! and that has not called exec (which closes them). So in the child something else takes the place
//! of each: their numbers stay in use, and what they stood for is let go. A child of a bare clone(2) runs no
//! handler: it keeps these descriptors until it calls exec or ends.
//!
//! Invariant: a bit of [`GUARDED`] is set only while its descriptor belongs to a [`ForkGuarded`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::CheckedFd;
use crate::Error;

/// Words of [`GUARDED`]: descriptors of higher numbers than these have bits stay open in children.
const WORDS: usize = 1024;
static GUARDED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static ONCE: Once = Once::new();

/// A descriptor that a forked child loses.
#[derive(Debug)]
pub struct ForkGuarded(CheckedFd);

impl ForkGuarded {
    /// Guards this descriptor.
    pub fn new(fd: OwnedFd) -> Self {
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
    pub(crate) fn is_intact(&self) -> bool {
        self.0.is_intact()
    }

    /// Refuses to use a number that is not its own any more ([`CheckedFd::ensure`]).
    pub fn ensure(&self) -> Result<(), Error> {
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
