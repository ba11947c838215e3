//! Copies between private memory and memory that others use at the same time: the program's other
//! threads, other processes, and peers through other queue pairs. One of the few files with `unsafe`
//! in it.
//!
//! A plain copy (`ptr::copy`, a slice) would be a data race: the compiler may assume that nobody else
//! writes, and read twice or store in parts. So shared bytes are touched only by atomic accesses, each
//! at an address that is a multiple of its size. (Rust's memory model does not define atomic accesses
//! of different sizes to the same bytes, nor accesses of other processes. The processors do: each
//! aligned access of up to 8 bytes is atomic.) Tools that check memory accesses see these copies.
//! Without such a tool `guarded` does the same in assembly, faster.
//!
//! Volatile copies of single words, as in vm-memory, are not atomic either, and the compiler does not
//! make them wider: 4 KiB cost four times as much. For longer copies vm-memory uses a plain copy,
//! which this module avoids.
//!
//! **Order.** Programs poll the last byte of a buffer on another thread, and take the whole message
//! for arrived when it changes. So [`store`] writes from the first byte to the last, and the last
//! bytes with one release store: a thread that loads them with acquire ordering sees all the rest. (A
//! `memcpy` may store the head last, and `rep movsb` stores in any order.) An aligned word of up to 8
//! bytes is never seen half written.
//! Here every store is a release store.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Takes `$step`s until no bytes are left: single ones until `$aligned` is a multiple of 8, then as large ones as
/// there can be. Before each, `$aligned` is a multiple of its size.
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
        // Now it is a multiple of 8, or fewer bytes are left than the next aligned step needs.
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

/// Copies private bytes into shared memory, first to last.
///
/// # Safety
/// `from..from + len` must be valid for reads, and nobody else may access it. `to..to + len` must be
/// valid for writes. They must not overlap.
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

/// Copies shared memory to private memory. Bytes that others write meanwhile may be old or new; an
/// aligned word of up to 8 bytes is not torn.
///
/// # Safety
/// `from..from + len` must be valid for reads. `to..to + len` must be valid for writes, and nobody
/// else may access it. They must not overlap.
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
