//! Copies of the program's memory that survive a memory fault. One of the few files with `unsafe` in
//! it.
//!
//! A program may unmap memory while it is registered, make it read-only, or truncate the file behind
//! it. A load or store there raises SIGSEGV or SIGBUS in the thread that makes the copy. All loads
//! and stores of registered memory are therefore made by the few routines of this file, which are
//! written in assembly so that their extent is known. Each is a leaf that does not use the stack: at
//! any of its instructions, a jump to the `ret` behind the last routine returns to its caller.
//!
//! A signal handler makes that jump. It asks [`recovery`] whether the fault happened here. If so, it
//! continues at the returned address, with the [`FaultCause`] in the first result register and the
//! address that faulted in the second. The routine then returns an error to its caller. The engine
//! makes no system calls, so whoever embeds it installs the handler; without one, a fault ends the
//! process. Copies that do not fault cost nothing extra.
//!
//! What `copy` says about atomic accesses and their order also holds here: an aligned word of up to 8
//! bytes is never torn, [`store`] writes from the first byte to the last, and the last store is that
//! of an aligned word.
//! - On x86-64 stores become visible in program order, so the wide stores of the loop do too. (A
//!   `memcpy` may store the head last, and `rep movsb` in any order.) A wide access that crosses a
//!   cache line is split there, between aligned words.
//! - On AArch64 every store is a release store.
//!
//! On other architectures, and under tools that check memory accesses (they do not see those of
//! assembly), the copies are those of `copy`, and a fault is fatal.

use crate::types::{FaultCause, MemoryFault};

/// What a routine returns, in two registers: 0 and a value, or a [`FaultCause`] and an address.
#[derive(Clone, Copy)]
#[repr(C)]
struct Outcome {
    cause: usize,
    value: usize,
}

impl Outcome {
    #[inline]
    fn result(self) -> Result<u64, MemoryFault> {
        let cause = match self.cause {
            0 => return Ok(self.value as u64),
            1 => FaultCause::Unmapped,
            2 => FaultCause::Protected,
            3 => FaultCause::BeyondFile,
            _ => FaultCause::Other,
        };
        Err(MemoryFault { addr: self.value as u64, cause })
    }
}

/// The address where a thread that faulted at `pc` can continue, if `pc` is in a routine of this
/// file. The result registers must then hold a [`FaultCause`] and the address that faulted: `rax` and
/// `rdx` on x86-64, `x0` and `x1` on AArch64.
///
/// It may be called in a signal handler.
pub fn recovery(pc: usize) -> Option<usize> {
    let (begin, end) = arch::extent();
    (begin..end).contains(&pc).then_some(end)
}

/// Copies private bytes into shared memory, first to last.
///
/// # Errors
/// The memory is not mapped, and a signal handler used [`recovery`].
///
/// # Safety
/// `from..from + len` must be valid for reads, and nobody else may access it. `to..to + len` must be
/// memory of the program that may be written, though it may fault. They must not overlap.
#[inline]
pub unsafe fn store(from: *const u8, to: *mut u8, len: usize) -> Result<(), MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::store(to, from, len, arch::width()) }.result().map(|_| ())
}

/// Copies shared memory to private memory. Bytes that others write meanwhile may be old or new.
///
/// # Errors
/// The memory is not mapped, and a signal handler used [`recovery`].
///
/// # Safety
/// `from..from + len` must be memory of the program that may be read, though it may fault.
/// `to..to + len` must be valid for writes, and nobody else may access it. They must not overlap.
#[inline]
pub unsafe fn load(from: *const u8, to: *mut u8, len: usize) -> Result<(), MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::load(to, from, len, arch::width()) }.result().map(|_| ())
}

/// Copies shared memory to other shared memory, first to last, as [`store`] does.
///
/// # Errors
/// Some of the memory is not mapped, and a signal handler used [`recovery`].
///
/// # Safety
/// `from..from + len` must be memory that may be read, and `to..to + len` memory that may be written;
/// either may fault, and others may access it. They must not overlap.
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

/// Atomically adds to the word, wrapping. Returns the old value.
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

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, fuzzing, sanitized))
))]
mod arch {
    use super::Outcome;

    #[cfg(target_arch = "x86_64")]
    std::arch::global_asm!(
        ".pushsection .text.rxe_core_copy,\"ax\",@progbits",
        ".globl rxe_core_store",
        ".hidden rxe_core_store",
        ".globl rxe_core_load",
        ".hidden rxe_core_load",
        ".globl rxe_core_store_word",
        ".hidden rxe_core_store_word",
        ".globl rxe_core_load_word",
        ".hidden rxe_core_load_word",
        ".globl rxe_core_compare_swap",
        ".hidden rxe_core_compare_swap",
        ".globl rxe_core_fetch_add",
        ".hidden rxe_core_fetch_add",
        ".globl rxe_core_copy_end",
        ".hidden rxe_core_copy_end",
        ".p2align 6",
        // rdi: to, rsi: from, rdx: length, ecx: bytes of the widest registers, 16, 32 or 64. Small
        // steps come first, until the shared address is a multiple of 8. From 128 bytes on it is then
        // aligned to the registers, because wide accesses that cross a cache line cost twice as much.
        "rxe_core_store:",
        ".cfi_startproc",
        "test edi, 1",
        "jz 3f",
        "cmp rdx, 1",
        "jb 3f",
        "movzx eax, byte ptr [rsi]",
        "mov [rdi], al",
        "add rsi, 1",
        "add rdi, 1",
        "sub rdx, 1",
        "3:",
        "test edi, 2",
        "jz 3f",
        "cmp rdx, 2",
        "jb 3f",
        "movzx eax, word ptr [rsi]",
        "mov [rdi], ax",
        "add rsi, 2",
        "add rdi, 2",
        "sub rdx, 2",
        "3:",
        "test edi, 4",
        "jz 3f",
        "cmp rdx, 4",
        "jb 3f",
        "mov eax, [rsi]",
        "mov [rdi], eax",
        "add rsi, 4",
        "add rdi, 4",
        "sub rdx, 4",
        "3:",
        "cmp rdx, 128",
        "jae 4f",
        "jmp rxe_core_copy_rest",
        "4:",
        "lea r8d, [rcx - 1]",
        "5:",
        "test edi, r8d",
        "jz rxe_core_copy_bulk",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "add rsi, 8",
        "add rdi, 8",
        "sub rdx, 8",
        "jmp 5b",
        ".cfi_endproc",
        "rxe_core_load:",
        ".cfi_startproc",
        "test esi, 1",
        "jz 3f",
        "cmp rdx, 1",
        "jb 3f",
        "movzx eax, byte ptr [rsi]",
        "mov [rdi], al",
        "add rsi, 1",
        "add rdi, 1",
        "sub rdx, 1",
        "3:",
        "test esi, 2",
        "jz 3f",
        "cmp rdx, 2",
        "jb 3f",
        "movzx eax, word ptr [rsi]",
        "mov [rdi], ax",
        "add rsi, 2",
        "add rdi, 2",
        "sub rdx, 2",
        "3:",
        "test esi, 4",
        "jz 3f",
        "cmp rdx, 4",
        "jb 3f",
        "mov eax, [rsi]",
        "mov [rdi], eax",
        "add rsi, 4",
        "add rdi, 4",
        "sub rdx, 4",
        "3:",
        "cmp rdx, 128",
        "jae 4f",
        "jmp rxe_core_copy_rest",
        "4:",
        "lea r8d, [rcx - 1]",
        "5:",
        "test esi, r8d",
        "jz rxe_core_copy_bulk",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "add rsi, 8",
        "add rdi, 8",
        "sub rdx, 8",
        "jmp 5b",
        ".cfi_endproc",
        "rxe_core_copy_bulk:",
        ".cfi_startproc",
        // Keep at least one byte for the last store.
        "lea rax, [rdx - 1]",
        "shr rax, 6",
        "mov r8, rax",
        "shl r8, 6",
        "sub rdx, r8",
        "cmp ecx, 32",
        "je 4f",
        "jb 5f",
        "3:",
        "vmovdqu64 zmm0, [rsi]",
        "vmovdqu64 [rdi], zmm0",
        "add rsi, 64",
        "add rdi, 64",
        "dec rax",
        "jnz 3b",
        "vzeroupper",
        "jmp rxe_core_copy_tail",
        "4:",
        "vmovdqu ymm0, [rsi]",
        "vmovdqu ymm1, [rsi + 32]",
        "vmovdqu [rdi], ymm0",
        "vmovdqu [rdi + 32], ymm1",
        "add rsi, 64",
        "add rdi, 64",
        "dec rax",
        "jnz 4b",
        "vzeroupper",
        "jmp rxe_core_copy_tail",
        "5:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "dec rax",
        "jnz 5b",
        // 1 to 64 bytes are left, and the shared address is a multiple of 16.
        "rxe_core_copy_tail:",
        "4:",
        "cmp rdx, 16",
        "jbe rxe_core_copy_rest",
        "movups xmm0, [rsi]",
        "movups [rdi], xmm0",
        "add rsi, 16",
        "add rdi, 16",
        "sub rdx, 16",
        "jmp 4b",
        ".cfi_endproc",
        // Up to 127 bytes are copied by words, so that the last store is that of an aligned word.
        "rxe_core_copy_rest:",
        ".cfi_startproc",
        "3:",
        "cmp rdx, 8",
        "jb 4f",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "add rsi, 8",
        "add rdi, 8",
        "sub rdx, 8",
        "jmp 3b",
        "4:",
        "test dl, 4",
        "jz 3f",
        "mov eax, [rsi]",
        "mov [rdi], eax",
        "add rsi, 4",
        "add rdi, 4",
        "3:",
        "test dl, 2",
        "jz 3f",
        "movzx eax, word ptr [rsi]",
        "mov [rdi], ax",
        "add rsi, 2",
        "add rdi, 2",
        "3:",
        "test dl, 1",
        "jz 3f",
        "movzx eax, byte ptr [rsi]",
        "mov [rdi], al",
        "3:",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        // rdi: word, rsi: value
        "rxe_core_store_word:",
        ".cfi_startproc",
        "mov [rdi], rsi",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        // rdi: word
        "rxe_core_load_word:",
        ".cfi_startproc",
        "mov rdx, [rdi]",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        // rdi: word, rsi: compare, rdx: swap
        "rxe_core_compare_swap:",
        ".cfi_startproc",
        "mov rax, rsi",
        "lock cmpxchg [rdi], rdx",
        "mov rdx, rax",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        // rdi: word, rsi: what to add
        "rxe_core_fetch_add:",
        ".cfi_startproc",
        "mov rdx, rsi",
        "lock xadd [rdi], rdx",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        // Here a thread goes on after a fault.
        "rxe_core_copy_end:",
        ".cfi_startproc",
        "ret",
        ".cfi_endproc",
        ".popsection",
    );

    #[cfg(target_arch = "aarch64")]
    std::arch::global_asm!(
        ".pushsection .text.rxe_core_copy,\"ax\",@progbits",
        ".globl rxe_core_store",
        ".hidden rxe_core_store",
        ".globl rxe_core_load",
        ".hidden rxe_core_load",
        ".globl rxe_core_store_word",
        ".hidden rxe_core_store_word",
        ".globl rxe_core_load_word",
        ".hidden rxe_core_load_word",
        ".globl rxe_core_compare_swap",
        ".hidden rxe_core_compare_swap",
        ".globl rxe_core_fetch_add",
        ".hidden rxe_core_fetch_add",
        ".globl rxe_core_copy_end",
        ".hidden rxe_core_copy_end",
        ".p2align 6",
        // x0: to, x1: from, x2: length
        "rxe_core_store:",
        ".cfi_startproc",
        "tbz x0, #0, 3f",
        "cmp x2, #1",
        "b.lo 3f",
        "ldrb w3, [x1], #1",
        "stlrb w3, [x0]",
        "add x0, x0, #1",
        "sub x2, x2, #1",
        "3:",
        "tbz x0, #1, 3f",
        "cmp x2, #2",
        "b.lo 3f",
        "ldrh w3, [x1], #2",
        "stlrh w3, [x0]",
        "add x0, x0, #2",
        "sub x2, x2, #2",
        "3:",
        "tbz x0, #2, 3f",
        "cmp x2, #4",
        "b.lo 3f",
        "ldr w3, [x1], #4",
        "stlr w3, [x0]",
        "add x0, x0, #4",
        "sub x2, x2, #4",
        "3:",
        "4:",
        "cmp x2, #8",
        "b.lo 4f",
        "ldr x3, [x1], #8",
        "stlr x3, [x0]",
        "add x0, x0, #8",
        "sub x2, x2, #8",
        "b 4b",
        "4:",
        "tbz x2, #2, 3f",
        "ldr w3, [x1], #4",
        "stlr w3, [x0]",
        "add x0, x0, #4",
        "3:",
        "tbz x2, #1, 3f",
        "ldrh w3, [x1], #2",
        "stlrh w3, [x0]",
        "add x0, x0, #2",
        "3:",
        "tbz x2, #0, 3f",
        "ldrb w3, [x1], #1",
        "stlrb w3, [x0]",
        "add x0, x0, #1",
        "3:",
        "mov x0, #0",
        "ret",
        ".cfi_endproc",
        "rxe_core_load:",
        ".cfi_startproc",
        "tbz x1, #0, 3f",
        "cmp x2, #1",
        "b.lo 3f",
        "ldrb w3, [x1], #1",
        "strb w3, [x0]",
        "add x0, x0, #1",
        "sub x2, x2, #1",
        "3:",
        "tbz x1, #1, 3f",
        "cmp x2, #2",
        "b.lo 3f",
        "ldrh w3, [x1], #2",
        "strh w3, [x0]",
        "add x0, x0, #2",
        "sub x2, x2, #2",
        "3:",
        "tbz x1, #2, 3f",
        "cmp x2, #4",
        "b.lo 3f",
        "ldr w3, [x1], #4",
        "str w3, [x0]",
        "add x0, x0, #4",
        "sub x2, x2, #4",
        "3:",
        "4:",
        "cmp x2, #8",
        "b.lo 4f",
        "ldr x3, [x1], #8",
        "str x3, [x0]",
        "add x0, x0, #8",
        "sub x2, x2, #8",
        "b 4b",
        "4:",
        "tbz x2, #2, 3f",
        "ldr w3, [x1], #4",
        "str w3, [x0]",
        "add x0, x0, #4",
        "3:",
        "tbz x2, #1, 3f",
        "ldrh w3, [x1], #2",
        "strh w3, [x0]",
        "add x0, x0, #2",
        "3:",
        "tbz x2, #0, 3f",
        "ldrb w3, [x1], #1",
        "strb w3, [x0]",
        "add x0, x0, #1",
        "3:",
        "mov x0, #0",
        "ret",
        ".cfi_endproc",
        // x0: word, x1: value
        "rxe_core_store_word:",
        ".cfi_startproc",
        "stlr x1, [x0]",
        "mov x0, #0",
        "ret",
        ".cfi_endproc",
        // x0: word
        "rxe_core_load_word:",
        ".cfi_startproc",
        "ldar x1, [x0]",
        "mov x0, #0",
        "ret",
        ".cfi_endproc",
        // x0: word, x1: compare, x2: swap
        "rxe_core_compare_swap:",
        ".cfi_startproc",
        "2:",
        "ldaxr x3, [x0]",
        "cmp x3, x1",
        "b.ne 3f",
        "stlxr w4, x2, [x0]",
        "cbnz w4, 2b",
        "3:",
        "dmb ish",
        "mov x1, x3",
        "mov x0, #0",
        "ret",
        ".cfi_endproc",
        // x0: word, x1: what to add
        "rxe_core_fetch_add:",
        ".cfi_startproc",
        "2:",
        "ldaxr x3, [x0]",
        "add x4, x3, x1",
        "stlxr w5, x4, [x0]",
        "cbnz w5, 2b",
        "dmb ish",
        "mov x1, x3",
        "mov x0, #0",
        "ret",
        ".cfi_endproc",
        // Here a thread goes on after a fault.
        "rxe_core_copy_end:",
        ".cfi_startproc",
        "ret",
        ".cfi_endproc",
        ".popsection",
    );

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

    /// The bytes are read once and stored in order, so it does not matter who else writes there.
    #[inline]
    pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize, width: u32) -> Outcome {
        // SAFETY: the caller's promise.
        unsafe { store(to, from, len, width) }
    }

    /// Bytes of the processor's widest registers.
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

    /// Where the routines begin, and the `ret` behind them.
    pub(super) fn extent() -> (usize, usize) {
        let begin: unsafe extern "C" fn(*mut u8, *const u8, usize, u32) -> Outcome = store;
        let end: unsafe extern "C" fn() = end;
        (begin as usize, end as usize)
    }
}

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, fuzzing, sanitized))
)))]
mod arch {
    use std::sync::atomic::{AtomicU64, Ordering, fence};

    use super::Outcome;
    use crate::mem::copy;

    #[expect(
        clippy::cast_possible_truncation,
        reason = "values of 32 bits where words are shorter"
    )]
    const fn done(value: u64) -> Outcome {
        Outcome { cause: 0, value: value as usize }
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

    /// No routine has a known extent here.
    pub(super) const fn extent() -> (usize, usize) {
        (0, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    use super::*;
    use crate::mem::copy;

    type Copy = unsafe fn(*const u8, *mut u8, usize) -> Result<(), MemoryFault>;

    /// The copies of other builds.
    mod by_words {
        use super::*;

        pub(super) unsafe fn store(a: *const u8, b: *mut u8, n: usize) -> Result<(), MemoryFault> {
            // SAFETY: the caller's promise.
            unsafe { copy::store(a, b, n) };
            Ok(())
        }

        pub(super) unsafe fn load(a: *const u8, b: *mut u8, n: usize) -> Result<(), MemoryFault> {
            // SAFETY: the caller's promise.
            unsafe { copy::load(a, b, n) };
            Ok(())
        }
    }

    /// As on a processor whose registers have `WIDTH` bytes at most.
    unsafe fn store_by<const WIDTH: u32>(
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> Result<(), MemoryFault> {
        // SAFETY: the caller's promise.
        unsafe { arch::store(to, from, len, WIDTH.min(arch::width())) }.result().map(|_| ())
    }

    /// As [`store_by`].
    unsafe fn load_by<const WIDTH: u32>(
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> Result<(), MemoryFault> {
        // SAFETY: the caller's promise.
        unsafe { arch::load(to, from, len, WIDTH.min(arch::width())) }.result().map(|_| ())
    }

    #[test]
    fn every_length_at_every_alignment_is_copied_and_nothing_beside_it() {
        let mut source: Vec<u8> = (1..=255).cycle().take(600).collect();
        let copies = [
            store as Copy,
            load,
            store_by::<16>,
            load_by::<16>,
            store_by::<32>,
            load_by::<32>,
            by_words::store,
            by_words::load,
        ];
        // Miri runs each step for itself.
        let sparse = if cfg!(miri) { 29 } else { 1 };
        for len in (0..200).chain([255, 256, 257, 400]).step_by(sparse) {
            for (a, b) in (0..33).map(|n| (n, n * 7 % 33)) {
                for copy in copies {
                    let mut out = [0; 600];
                    // SAFETY: both ranges lie inside their arrays, which nobody else uses.
                    unsafe { copy(source[a..].as_mut_ptr(), out[b..].as_mut_ptr(), len) }.unwrap();
                    assert_eq!(out[b..b + len], source[a..a + len], "{len} from {a} to {b}");
                    let beside = out[..b].iter().chain(&out[b + len..]);
                    assert!(beside.copied().all(|byte| byte == 0), "{len} from {a} to {b}");
                }
            }
        }
    }

    /// A thread polls the last byte, as programs do, and then checks all the others.
    #[test]
    #[cfg_attr(miri, ignore = "Rust's memory model has no rule for accesses of two sizes")]
    fn who_sees_the_last_byte_sees_all_before_it() {
        const ROUNDS: u8 = 120;
        for (offset, len) in [(0, 4096), (0, 1024), (8, 1000), (3, 1021), (1, 100), (5, 9)] {
            let memory: Vec<AtomicU8> = (0..offset + len).map(|_| AtomicU8::new(0)).collect();
            let shared = &memory[offset..];
            let seen = AtomicU8::new(0);
            let broken = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        while shared[len - 1].load(Ordering::Acquire) != round {
                            std::hint::spin_loop();
                        }
                        let whole = shared.iter().all(|b| b.load(Ordering::Relaxed) == round);
                        broken.fetch_or(!whole, Ordering::Relaxed);
                        seen.store(round, Ordering::Release);
                    }
                });
                for round in 1..=ROUNDS {
                    let bytes = vec![round; len];
                    // SAFETY: the source is private, and as long as the atomics, which are never
                    // touched other than by atomic accesses.
                    unsafe { store(bytes.as_ptr(), shared.as_ptr().cast_mut().cast(), len) }
                        .unwrap();
                    while seen.load(Ordering::Acquire) != round {
                        std::thread::yield_now();
                    }
                }
            });
            assert!(!broken.into_inner(), "{len} bytes at {offset}");
        }
    }

    #[test]
    fn the_extent_holds_the_routines_and_nothing_else() {
        let (begin, end) = arch::extent();
        assert_eq!((recovery(begin), recovery(end)), ((begin < end).then_some(end), None));
        assert_eq!(recovery(end.wrapping_sub(1)), (begin < end).then_some(end));
        assert_eq!(recovery(begin.wrapping_sub(1)), None);
        assert_eq!(recovery(recovery as fn(usize) -> Option<usize> as usize), None);
    }

    #[test]
    fn words_change_in_one_step() {
        let mut word = 5;
        // SAFETY: a word of our own.
        unsafe {
            assert_eq!(compare_swap(&raw mut word, 4, 9), Ok(5), "no match, no swap");
            assert_eq!(compare_swap(&raw mut word, 5, u64::MAX), Ok(5));
            assert_eq!(fetch_add(&raw mut word, 3), Ok(u64::MAX));
            assert_eq!(load_word(&raw mut word), Ok(2));
            store_word(&raw mut word, 1 << 63).unwrap();
        }
        assert_eq!(word, 1 << 63);
    }

    #[cfg(all(target_arch = "x86_64", not(any(miri, fuzzing, sanitized))))]
    mod faults {
        use std::ptr;

        use super::*;
        use crate::testing::faults::handle_faults;

        #[test]
        fn a_routine_returns_where_memory_is_missing() {
            const PAGE: usize = 4096;
            let none = ptr::null_mut();
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            handle_faults();
            // SAFETY: a new mapping, whose second page is unmapped again.
            let page: *mut u8 = unsafe {
                let page = libc::mmap(none, 2 * PAGE, prot, flags, -1, 0);
                assert_ne!(page, libc::MAP_FAILED);
                assert_eq!(libc::munmap(page.byte_add(PAGE), PAGE), 0);
                page.cast()
            };
            let missing = page.addr() + PAGE;
            let fault =
                |addr: usize| MemoryFault { addr: addr as u64, cause: FaultCause::Unmapped };
            let mut out = [0; 200];
            // SAFETY: memory that is mapped or faults, and a buffer of 200 bytes.
            unsafe {
                for at in [PAGE - 100, PAGE - 8, PAGE - 1, PAGE, PAGE + 3] {
                    // The first byte that is missing, or the first of the copy.
                    let first = fault(missing.max(page.addr() + at));
                    let read = load(page.add(at), out.as_mut_ptr(), 200).unwrap_err();
                    let written = store([7; 200].as_ptr(), page.add(at), 200).unwrap_err();
                    for got in [read, written] {
                        // For an access that crosses into the page, the start of the page may be
                        // reported.
                        assert!(got == first || got == fault(missing), "{got:?} {first:?}");
                    }
                }
                assert_eq!(*page.add(PAGE - 100), 7, "what comes before has been written");
                let word = page.add(PAGE + 16).cast();
                let expected = Err(fault(missing + 16));
                assert_eq!(compare_swap(word, 0, 1), expected);
                assert_eq!(fetch_add(word, 1), expected);
                assert_eq!(load_word(word), expected);
                assert_eq!(store_word(word, 1).map(|()| 0), expected);
                for len in [8, 4, 2, 1] {
                    let stored = store([1; 8].as_ptr(), word.cast(), len);
                    assert_eq!(stored.map(|()| 0), expected);
                }
                libc::munmap(page.cast(), PAGE);
            }
        }
    }
}
