//! Prefetching of memory before its use. With many queue pairs, cache misses then overlap instead
//! of adding up. Prefetching affects only the speed. This file contains `unsafe` code.

/// The size of a cache line in bytes.
const LINE: usize = 64;

/// Prefetches all cache lines of `value`.
#[inline]
pub(crate) fn value<T>(value: &T) {
    until(value, size_of::<T>());
}

/// Prefetches the cache lines of the first `end` bytes of `value`.
#[inline]
pub(crate) fn until<T>(value: &T, end: usize) {
    let at = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..end).step_by(LINE) {
        line(at.wrapping_add(offset));
    }
}

/// Prefetches the cache line that contains `at`. Any address is allowed.
#[inline]
pub(crate) fn line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has this instruction; it is a hint, which reads nothing that
        // the program could see and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    // On other architectures the instruction has no stable name in Rust.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
