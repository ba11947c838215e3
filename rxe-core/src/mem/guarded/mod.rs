//! Copies of the program's memory that survive a memory fault. This module contains `unsafe` code.
//!
//! A program may unmap memory while it is registered, make it read-only, or truncate the file
//! behind it. A load or store there raises SIGSEGV or SIGBUS in the thread that makes the copy. All
//! loads and stores of registered memory are therefore made by the few routines of `assembly.rs`,
//! which lie in one known range of addresses. Each routine is a leaf that does not use the stack:
//! from any of its instructions, a jump to the `ret` after the last routine returns to its caller.
//!
//! A signal handler makes that jump. It asks [`recovery`] whether the fault happened in a routine.
//! If so, it continues at the returned address, with the [`FaultCause`] in the first result
//! register and the address that faulted in the second. The routine then returns an error to its
//! caller. The engine makes no system calls, so the application that embeds it installs the
//! handler; without a handler, a fault ends the process. Copies that do not fault cost nothing
//! extra.
//!
//! The guarantees of `copy` about atomic accesses and their order also hold here: an aligned word
//! of up to 8 bytes is never torn, [`store`] writes from the first byte to the last, and the last
//! store writes one aligned word.
//! - On x86-64, stores become visible in program order, including the wide stores of the loop. (A
//!   `memcpy` may store the head last, and `rep movsb` in any order.) A wide access that crosses a
//!   cache line is split there, between aligned words.
//! - On AArch64, every store is a release store.
//!
//! On other architectures, and under tools that check memory accesses (they cannot see accesses of
//! assembly), the routines of `copy` are used, and a fault is fatal.

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, fuzzing, sanitized))
))]
mod assembly;
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, fuzzing, sanitized))
)))]
mod plain;
#[cfg(test)]
mod tests;

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, fuzzing, sanitized))
))]
use assembly as arch;
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, fuzzing, sanitized))
)))]
use plain as arch;

use crate::types::{FaultCause, MemoryFault};

/// The result of a routine, in two registers: 0 and a value, or a [`FaultCause`] and an address.
/// The value has 64 bits also on processors of 32 bits, for which there is no assembly.
#[derive(Clone, Copy)]
#[repr(C)]
struct Outcome {
    cause: usize,
    value: u64,
}

impl Outcome {
    #[inline]
    fn result(self) -> Result<u64, MemoryFault> {
        let cause = match self.cause {
            0 => return Ok(self.value),
            1 => FaultCause::Unmapped,
            2 => FaultCause::Protected,
            3 => FaultCause::BeyondFile,
            _ => FaultCause::Other,
        };
        Err(MemoryFault { addr: self.value, cause })
    }
}

/// Returns the address where a thread can continue that faulted in a copy routine. `pc` is the
/// address of the fault; for other addresses the result is `None`. Before the thread continues, the
/// result registers must be set to a [`FaultCause`] and the address that faulted: `rax` and `rdx`
/// on x86-64, `x0` and `x1` on AArch64.
///
/// A signal handler may call this function.
pub fn recovery(pc: usize) -> Option<usize> {
    let (begin, end) = arch::extent();
    (begin..end).contains(&pc).then_some(end)
}

/// Copies private bytes into shared memory, from first to last.
///
/// # Errors
/// The memory is not mapped, and a signal handler used [`recovery`].
///
/// # Safety
/// `from..from + len` must be valid for reads, and nothing else may access it. `to..to + len`
/// must be memory of the program that may be written, though it may fault. The ranges must not
/// overlap.
#[inline]
pub unsafe fn store(from: *const u8, to: *mut u8, len: usize) -> Result<(), MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::store(to, from, len, arch::width()) }.result().map(|_| ())
}

/// Copies shared memory to private memory. Bytes written concurrently may be old or new.
///
/// # Errors
/// The memory is not mapped, and a signal handler used [`recovery`].
///
/// # Safety
/// `from..from + len` must be memory of the program that may be read, though it may fault.
/// `to..to + len` must be valid for writes, and nothing else may access it. The ranges must not
/// overlap.
#[inline]
pub unsafe fn load(from: *const u8, to: *mut u8, len: usize) -> Result<(), MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::load(to, from, len, arch::width()) }.result().map(|_| ())
}

/// Copies shared memory to other shared memory, from first to last like [`store`].
///
/// # Errors
/// Some of the memory is not mapped, and a signal handler used [`recovery`].
///
/// # Safety
/// `from..from + len` must be memory that may be read, and `to..to + len` memory that may be
/// written; either may fault, and others may access it. The ranges must not overlap.
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::copy(to, from, len, arch::width()) }.result().map(|_| ())
}

/// Atomically replaces the word by `swap` if it equals `compare`. Returns the old value.
///
/// # Safety
/// The word must be aligned, and memory of the program that may be written. It may fault.
#[inline]
pub(super) unsafe fn compare_swap(
    word: *mut u64,
    compare: u64,
    swap: u64,
) -> Result<u64, MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::compare_swap(word, compare, swap) }.result()
}

/// Atomically adds `add` to the word, wrapping. Returns the old value.
///
/// # Safety
/// As for [`compare_swap`].
#[inline]
pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> Result<u64, MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::fetch_add(word, add) }.result()
}

/// Stores the word atomically, with release ordering.
///
/// # Safety
/// As for [`compare_swap`].
#[inline]
pub(super) unsafe fn store_word(word: *mut u64, value: u64) -> Result<(), MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::store_word(word, value) }.result().map(|_| ())
}

/// Loads the word atomically, with acquire ordering.
///
/// # Safety
/// The word must be aligned, and memory of the program that may be read. It may fault.
#[inline]
pub(super) unsafe fn load_word(word: *const u64) -> Result<u64, MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::load_word(word) }.result()
}
