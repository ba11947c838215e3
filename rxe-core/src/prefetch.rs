//! Prefetching: memory is asked for before it is used, so that with many queue pairs cache misses
//! overlap instead of adding up. It changes nothing but time. One of the few files with `unsafe` in
//! it.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for all of `value`.
#[inline]
pub(crate) fn value<T>(value: &T) {
    until(value, size_of::<T>());
}

/// Asks for the first `end` bytes of `value`.
#[inline]
pub(crate) fn until<T>(value: &T, end: usize) {
    let at = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..end).step_by(LINE) {
        line(at.wrapping_add(offset));
    }
}

/// Asks for the line around `at`, whatever is there.
#[inline]
pub(crate) fn line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has this instruction; it is a hint, which reads nothing that
        // the program could see and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    // Elsewhere the instruction has no stable name.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
