//! Copies between private memory and memory that others use at the same time: the program's other
//! threads, other processes, and peers by way of other queue pairs. One of the few files with `unsafe`
//! in it.
//!
//! A plain copy (`ptr::copy`, a slice) would be a data race: the compiler may assume that nobody else
//! writes, and read twice or store in parts. So shared bytes are touched only by atomic accesses, each
//! at an address that is a multiple of its size, or by a loop in assembly, of which the compiler knows
//! only that it may read and write memory. (Rust's memory model has no word for atomic accesses of
//! different sizes to the same bytes, and none for other processes. The processors have: each aligned
//! access up to 8 bytes happens at once.)
//!
//! Volatile copies by the word, as vm-memory makes of up to 8 bytes, are not atomic either and are not
//! made wider by the compiler: 4 KiB cost four times as much. What that crate does with longer ones, a
//! plain copy, is what this module avoids.
//!
//! **Order.** Programs poll the last byte of a buffer on another thread and take the whole message for
//! arrived when it changes. So [`store`] writes from the first byte to the last, and the last ones by
//! one release store that nothing before it can pass: who loads them with acquiring order sees all the
//! rest. (A `memcpy` may store the head last, and `rep movsb` in any order.) An aligned word of up to 8
//! bytes is never seen half written.
//! - On x86-64 stores become visible in program order, so the wide stores of the loop do too.
//! - Elsewhere every store is a release store.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// What is shorter is copied by words: the loop would not pay.
const BULK: usize = 128;

/// Copies private bytes into shared memory, first to last.
///
/// # Safety
/// `from..from + len` must be valid for reads and nobody else's; `to..to + len` must be valid for
/// writes; they must not overlap.
#[inline]
pub(super) unsafe fn store(from: *const u8, to: *mut u8, len: usize) {
    let (mut from, mut to, mut left) = (from, to, len);
    macro_rules! step {
        ($number:ty, $atomic:ty) => {
            // SAFETY: at least as many bytes are left of both ranges; `to` is a multiple of the
            // number's size, see at each use.
            unsafe {
                let value = from.cast::<$number>().read_unaligned();
                <$atomic>::from_ptr(to.cast()).store(value, Ordering::Release);
                from = from.add(size_of::<$number>());
                to = to.add(size_of::<$number>());
            }
            left -= size_of::<$number>();
        };
    }
    // Up to a multiple of 8, as far as there are bytes.
    if to.addr() & 1 != 0 && left >= 1 {
        step!(u8, AtomicU8);
    }
    if to.addr() & 2 != 0 && left >= 2 {
        step!(u16, AtomicU16);
    }
    if to.addr() & 4 != 0 && left >= 4 {
        step!(u32, AtomicU32);
    }
    if left >= BULK {
        // Wide stores that cross a cache line cost twice as much.
        while !to.addr().is_multiple_of(32) {
            step!(u64, AtomicU64);
        }
        // Something is left for the last store.
        // SAFETY: as many bytes and more are left of both ranges.
        let done = unsafe { bulk(from, to, (left - 1) / CHUNK) };
        // SAFETY: likewise.
        (from, to) = unsafe { (from.add(done), to.add(done)) };
        left -= done;
    }
    // Either `to` is a multiple of 8, or what is left is less than the next aligned number: the steps
    // above did not find as many.
    while left >= 8 {
        step!(u64, AtomicU64);
    }
    if left & 4 != 0 {
        step!(u32, AtomicU32);
    }
    if left & 2 != 0 {
        step!(u16, AtomicU16);
    }
    if left & 1 != 0 {
        step!(u8, AtomicU8);
    }
    debug_assert_eq!(left, 0);
    let _ = (from, to);
}

/// Copies shared memory to where nobody else looks. What others write meanwhile arrives or not; an
/// aligned word of up to 8 bytes is not torn.
///
/// # Safety
/// `from..from + len` must be valid for reads; `to..to + len` must be valid for writes and nobody
/// else's; they must not overlap.
#[inline]
pub(super) unsafe fn load(from: *const u8, to: *mut u8, len: usize) {
    let (mut from, mut to, mut left) = (from, to, len);
    macro_rules! step {
        ($number:ty, $atomic:ty) => {
            // SAFETY: at least as many bytes are left of both ranges; `from` is a multiple of the
            // number's size, see at each use. Relaxed loads of up to a pointer's size may be made of
            // memory that is mapped for reading only.
            unsafe {
                let value = <$atomic>::from_ptr(from.cast_mut().cast()).load(Ordering::Relaxed);
                to.cast::<$number>().write_unaligned(value);
                from = from.add(size_of::<$number>());
                to = to.add(size_of::<$number>());
            }
            left -= size_of::<$number>();
        };
    }
    if from.addr() & 1 != 0 && left >= 1 {
        step!(u8, AtomicU8);
    }
    if from.addr() & 2 != 0 && left >= 2 {
        step!(u16, AtomicU16);
    }
    if from.addr() & 4 != 0 && left >= 4 {
        step!(u32, AtomicU32);
    }
    if left >= BULK {
        // SAFETY: as many bytes are left of both ranges. A wide load that crosses a cache line is
        // split there, between aligned words.
        let done = unsafe { bulk(from, to, left / CHUNK) };
        // SAFETY: likewise.
        (from, to) = unsafe { (from.add(done), to.add(done)) };
        left -= done;
    }
    // As in `store`.
    while left >= 8 {
        step!(u64, AtomicU64);
    }
    if left & 4 != 0 {
        step!(u32, AtomicU32);
    }
    if left & 2 != 0 {
        step!(u16, AtomicU16);
    }
    if left & 1 != 0 {
        step!(u8, AtomicU8);
    }
    debug_assert_eq!(left, 0);
    let _ = (from, to);
}

/// Bytes that the loop copies at a time.
const CHUNK: usize = 64;

/// Copies chunks from the first to the last, where there is a faster way than by words. How many bytes
/// it has copied.
///
/// # Safety
/// So many chunks must be valid for reads at `from` and for writes at `to`, and not overlap.
#[cfg(all(target_arch = "x86_64", not(any(miri, fuzzing, sanitized))))]
#[inline]
unsafe fn bulk(from: *const u8, to: *mut u8, chunks: usize) -> usize {
    if chunks == 0 {
        return 0;
    }
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the loop reads and writes `chunks` (not 0) times 64 bytes from these addresses on,
        // changes the registers named and the flags, and uses no stack. The processor has AVX.
        unsafe {
            std::arch::asm!(
                "2:",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "add {from}, 64",
                "add {to}, 64",
                "dec {chunks}",
                "jnz 2b",
                "vzeroupper",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                chunks = inout(reg) chunks => _,
                // vzeroupper clears the upper halves of all of them: whoever uses those has saved them.
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
    } else {
        // SAFETY: the loop reads and writes `chunks` (not 0) times 64 bytes from these addresses on,
        // changes the registers named and the flags, and uses no stack.
        unsafe {
            std::arch::asm!(
                "2:",
                "movups xmm0, [{from}]",
                "movups xmm1, [{from} + 16]",
                "movups xmm2, [{from} + 32]",
                "movups xmm3, [{from} + 48]",
                "movups [{to}], xmm0",
                "movups [{to} + 16], xmm1",
                "movups [{to} + 32], xmm2",
                "movups [{to} + 48], xmm3",
                "add {from}, 64",
                "add {to}, 64",
                "dec {chunks}",
                "jnz 2b",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                chunks = inout(reg) chunks => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack),
            );
        }
    }
    chunks * CHUNK
}

/// Nowhere else; nor where a tool watches, which does not see what assembly does.
#[cfg(not(all(target_arch = "x86_64", not(any(miri, fuzzing, sanitized)))))]
unsafe fn bulk(_: *const u8, _: *mut u8, _: usize) -> usize {
    0
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn every_length_at_every_alignment_is_copied_and_nothing_beside_it() {
        let source: Vec<u8> = (1..=255).cycle().take(600).collect();
        for len in (0..200).chain([255, 256, 257, 400]) {
            for (a, b) in (0..33).map(|n| (n, n * 7 % 33)) {
                for copy in [store, load] {
                    let mut out = [0; 600];
                    // SAFETY: both ranges lie inside their arrays, which nobody else uses.
                    unsafe { copy(source[a..].as_ptr(), out[b..].as_mut_ptr(), len) };
                    assert_eq!(out[b..b + len], source[a..a + len], "{len} from {a} to {b}");
                    let beside = out[..b].iter().chain(&out[b + len..]);
                    assert!(beside.copied().all(|byte| byte == 0), "{len} from {a} to {b}");
                }
            }
        }
    }

    /// A thread polls the last byte, as programs do, and then looks at all the others.
    #[test]
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
                    unsafe { store(bytes.as_ptr(), shared.as_ptr().cast_mut().cast(), len) };
                    while seen.load(Ordering::Acquire) != round {
                        std::thread::yield_now();
                    }
                }
            });
            assert!(!broken.into_inner(), "{len} bytes at {offset}");
        }
    }
}
