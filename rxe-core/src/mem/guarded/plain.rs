//! The copy and atomic routines in Rust, for builds without assembly. A memory fault ends the
//! process here.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::Outcome;
use crate::mem::copy;

const fn done(value: u64) -> Outcome {
    Outcome { cause: 0, value }
}

pub(super) const fn width() -> u32 {
    8
}

pub(super) unsafe fn store(to: *mut u8, from: *const u8, len: usize, _: u32) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { copy::store(from, to, len) };
    done(0)
}

pub(super) unsafe fn load(to: *mut u8, from: *const u8, len: usize, _: u32) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { copy::load(from, to, len) };
    done(0)
}

pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize, _: u32) -> Outcome {
    let mut private = [0; 256];
    let mut at = 0;
    while at < len {
        let part = private.len().min(len - at);
        // SAFETY: the caller's promise; `private` has room for `part` bytes.
        unsafe {
            copy::load(from.add(at), private.as_mut_ptr(), part);
            copy::store(private.as_ptr(), to.add(at), part);
        }
        at += part;
    }
    done(0)
}

pub(super) unsafe fn store_word(word: *mut u64, value: u64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
    done(0)
}

pub(super) unsafe fn load_word(word: *const u64) -> Outcome {
    // SAFETY: the caller's promise. A relaxed load is allowed on memory that is mapped read-only;
    // the fence makes it an acquire load.
    let value = unsafe { AtomicU64::from_ptr(word.cast_mut()) }.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    done(value)
}

pub(super) unsafe fn compare_swap(word: *mut u64, compare: u64, swap: u64) -> Outcome {
    let order = Ordering::SeqCst;
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(word) };
    done(word.compare_exchange(compare, swap, order, order).unwrap_or_else(|before| before))
}

pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> Outcome {
    // SAFETY: the caller's promise.
    done(unsafe { AtomicU64::from_ptr(word) }.fetch_add(add, Ordering::SeqCst))
}

/// The extent is empty: the addresses of these routines are not known.
pub(super) const fn extent() -> (usize, usize) {
    (0, 0)
}
