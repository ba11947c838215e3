//! Declarations of the routines in assembly, and their extent.

use super::Outcome;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

unsafe extern "C" {
    #[link_name = "rxe_core_store"]
    pub(super) fn store(to: *mut u8, from: *const u8, len: usize, width: u32) -> Outcome;
    #[link_name = "rxe_core_load"]
    pub(super) fn load(to: *mut u8, from: *const u8, len: usize, width: u32) -> Outcome;
    #[link_name = "rxe_core_store_word"]
    pub(super) fn store_word(word: *mut u64, value: u64) -> Outcome;
    #[link_name = "rxe_core_load_word"]
    pub(super) fn load_word(word: *const u64) -> Outcome;
    #[link_name = "rxe_core_compare_swap"]
    pub(super) fn compare_swap(word: *mut u64, compare: u64, swap: u64) -> Outcome;
    #[link_name = "rxe_core_fetch_add"]
    pub(super) fn fetch_add(word: *mut u64, add: u64) -> Outcome;
    #[link_name = "rxe_core_copy_end"]
    fn end();
}

/// Copies with `store`: it reads each byte once and stores in order, so concurrent writes to either
/// range do no harm.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize, width: u32) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { store(to, from, len, width) }
}

/// Returns the size of the processor's widest registers in bytes.
#[inline]
pub(super) fn width() -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        return 64;
    } else if std::arch::is_x86_feature_detected!("avx") {
        return 32;
    }
    16
}

/// Returns the address of the first routine and of the `ret` after the last one.
pub(super) fn extent() -> (usize, usize) {
    let begin: unsafe extern "C" fn(*mut u8, *const u8, usize, u32) -> Outcome = store;
    let end: unsafe extern "C" fn() = end;
    (begin as usize, end as usize)
}
