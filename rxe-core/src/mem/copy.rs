//! Copies between private memory and memory that is used concurrently. Its other users are threads
//! of the program, other processes, and peers through other queue pairs. This file contains
//! `unsafe` code.
//!
//! A plain copy (`ptr::copy`, a slice) would be a data race: the compiler may assume that no other
//! thread writes, and read a byte twice or store it in parts. Therefore shared bytes are accessed
//! only by atomic accesses, each at an address that is a multiple of its size. (Rust's memory model
//! does not define atomic accesses of different sizes to the same bytes, nor accesses of other
//! processes. Processors do: each aligned access of up to 8 bytes is atomic.) Tools that check
//! memory accesses can observe these copies. In other builds, `guarded` does the same in assembly,
//! faster.
//!
//! Volatile copies of single words, as in vm-memory, are not atomic either, and the compiler does
//! not widen them: 4 KiB cost four times as much. For longer copies vm-memory uses a plain copy,
//! which this module avoids.
//!
//! **Order.** Programs poll the last byte of a buffer on another thread, and consider the whole
//! message received when it changes. Therefore [`store`] writes from the first byte to the last,
//! and the last bytes with one release store: a thread that loads them with acquire ordering sees
//! all other bytes. (A `memcpy` may store the head last, and `rep movsb` stores in any order.) An
//! aligned word of up to 8 bytes is never seen half written. In this module every store is a
//! release store.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Executes `$step`s until no bytes are left: single bytes, halfwords and words until `$aligned` is
/// a multiple of 8, then the largest possible steps. Before each step, `$aligned` is a multiple of
/// its size.
macro_rules! steps {
    ($step:ident, $aligned:ident, $left:ident) => {
        if $aligned.addr() & 1 != 0 && $left >= 1 {
            $step!(u8, AtomicU8);
        }
        if $aligned.addr() & 2 != 0 && $left >= 2 {
            $step!(u16, AtomicU16);
        }
        if $aligned.addr() & 4 != 0 && $left >= 4 {
            $step!(u32, AtomicU32);
        }
        // Now `$aligned` is a multiple of 8, or fewer bytes are left than the next aligned step
        // needs.
        while $left >= 8 {
            $step!(u64, AtomicU64);
        }
        if $left & 4 != 0 {
            $step!(u32, AtomicU32);
        }
        if $left & 2 != 0 {
            $step!(u16, AtomicU16);
        }
        if $left & 1 != 0 {
            $step!(u8, AtomicU8);
        }
    };
}

/// Copies private bytes into shared memory, from first to last.
///
/// # Safety
/// `from..from + len` must be valid for reads, and nothing else may access it. `to..to + len`
/// must be valid for writes. The ranges must not overlap.
#[inline]
pub(super) unsafe fn store(from: *const u8, to: *mut u8, len: usize) {
    let (mut from, mut to, mut left) = (from, to, len);
    macro_rules! step {
        ($number:ty, $atomic:ty) => {
            // SAFETY: both ranges have at least as many bytes left. `to` is a multiple of the
            // number's size: see `steps`.
            unsafe {
                let value = from.cast::<$number>().read_unaligned();
                <$atomic>::from_ptr(to.cast()).store(value, Ordering::Release);
                from = from.add(size_of::<$number>());
                to = to.add(size_of::<$number>());
            }
            left -= size_of::<$number>();
        };
    }
    steps!(step, to, left);
    debug_assert_eq!(left, 0);
    let _ = (from, to);
}

/// Copies shared memory to private memory. Bytes written concurrently may be old or new; an aligned
/// word of up to 8 bytes is not torn.
///
/// # Safety
/// `from..from + len` must be valid for reads. `to..to + len` must be valid for writes, and
/// nothing else may access it. The ranges must not overlap.
#[inline]
pub(super) unsafe fn load(from: *const u8, to: *mut u8, len: usize) {
    let (mut from, mut to, mut left) = (from, to, len);
    macro_rules! step {
        ($number:ty, $atomic:ty) => {
            // SAFETY: both ranges have at least as many bytes left. `from` is a multiple of the
            // number's size: see `steps`. Relaxed loads of up to a pointer's size are allowed on
            // memory that is mapped read-only.
            unsafe {
                let value = <$atomic>::from_ptr(from.cast_mut().cast()).load(Ordering::Relaxed);
                to.cast::<$number>().write_unaligned(value);
                from = from.add(size_of::<$number>());
                to = to.add(size_of::<$number>());
            }
            left -= size_of::<$number>();
        };
    }
    steps!(step, from, left);
    debug_assert_eq!(left, 0);
    let _ = (from, to);
}
