use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::*;
use crate::mem::copy;

type Copy = unsafe fn(*const u8, *mut u8, usize) -> Result<(), MemoryFault>;

/// The copy routines of builds without assembly.
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

/// Stores as a processor would whose widest registers have `WIDTH` bytes.
unsafe fn store_by<const WIDTH: u32>(
    from: *const u8,
    to: *mut u8,
    len: usize,
) -> Result<(), MemoryFault> {
    // SAFETY: the caller's promise.
    unsafe { arch::store(to, from, len, WIDTH.min(arch::width())) }.result().map(|_| ())
}

/// Loads as a processor would whose widest registers have `WIDTH` bytes.
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
    // Miri interprets every step, so it gets fewer cases.
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

/// One thread polls the last byte, as programs do, and then checks all other bytes.
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
                unsafe { store(bytes.as_ptr(), shared.as_ptr().cast_mut().cast(), len) }.unwrap();
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
        let fault = |addr: usize| MemoryFault { addr: addr as u64, cause: FaultCause::Unmapped };
        let mut out = [0; 200];
        // SAFETY: memory that is mapped or faults, and a buffer of 200 bytes.
        unsafe {
            for at in [PAGE - 100, PAGE - 8, PAGE - 1, PAGE, PAGE + 3] {
                // The first unmapped byte, or the first byte of the copy if that is unmapped too.
                let first = fault(missing.max(page.addr() + at));
                let read = load(page.add(at), out.as_mut_ptr(), 200).unwrap_err();
                let written = store([7; 200].as_ptr(), page.add(at), 200).unwrap_err();
                for got in [read, written] {
                    // For an access that crosses into the unmapped page, the processor may report
                    // the start of the page.
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
