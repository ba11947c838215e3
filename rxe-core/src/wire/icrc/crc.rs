//! The CRC-32 of bytes, computed by the faster of two methods.
//!
//! crc32fast uses carry-less multiplication, which a processor executes within a few cycles. An
//! emulated processor (QEMU without KVM) executes it by a loop over the bits, so tables are faster
//! there.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use crc32fast::Hasher;

use super::poly::passed;
use crate::types::Time;

/// Whether tables are the faster method.
static BY_TABLES: AtomicBool = AtomicBool::new(false);

/// Continues the CRC `crc` with `bytes`.
#[inline]
pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
    if BY_TABLES.load(Ordering::Relaxed) {
        return by_tables(crc, bytes);
    }
    by_instruction(crc, bytes)
}

/// Measures both methods, and uses the faster one for all further ICRCs of the process. `now` is
/// the clock. This takes a few microseconds, or some hundred on an emulated processor. Both methods
/// give equal ICRCs.
pub fn choose(mut now: impl FnMut() -> Time) {
    const ROUNDS: usize = 4;
    let bytes = [0x5a; 4096];
    let mut least = |way: fn(u32, &[u8]) -> u32| {
        let rounds = (0..ROUNDS).map(|_| {
            let start = now();
            black_box(way(0, black_box(&bytes)));
            now().since(start)
        });
        rounds.min()
    };
    let (instruction, tables) = (least(by_instruction), least(by_tables));
    BY_TABLES.store(tables < instruction, Ordering::Relaxed);
}

#[inline]
fn by_instruction(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// The number of bytes that are looked up in one step.
const SLICES: usize = 16;

/// The change of the register for each difference in a byte. Table `n` is for the register after
/// `n` further bytes.
static TABLES: [[u32; 256]; SLICES] = {
    let mut tables = [[0; 256]; SLICES];
    let mut bytes = 0;
    while bytes < SLICES {
        tables[bytes] = passed(bytes);
        bytes += 1;
    }
    tables
};

#[inline(never)]
fn by_tables(crc: u32, bytes: &[u8]) -> u32 {
    let mut register = !crc;
    let (slices, rest) = bytes.as_chunks::<SLICES>();
    for slice in slices {
        // A number stays in registers; a copy of the bytes in memory would have to be read right
        // after it was written.
        let slice = u128::from_le_bytes(*slice) ^ u128::from(register);
        register = 0;
        for (place, byte) in slice.to_le_bytes().into_iter().enumerate() {
            register ^= TABLES[SLICES - 1 - place][usize::from(byte)];
        }
    }
    for byte in rest {
        let [low, ..] = register.to_le_bytes();
        register = register >> 8 ^ TABLES[0][usize::from(low ^ byte)];
    }
    !register
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Concurrent tests may use either method: both give equal results.
    #[test]
    fn the_faster_way_is_taken() {
        for [instruction, tables] in [[9, 5], [5, 9], [5, 5]] {
            let (mut calls, mut time) = (0, Time::ZERO);
            choose(|| {
                let took = if calls < 8 { instruction } else { tables };
                // Every second reading of the clock is the end of a round.
                time = time + Duration::from_micros(if calls % 2 == 1 { took } else { 70 });
                calls += 1;
                time
            });
            assert_eq!(BY_TABLES.load(Ordering::Relaxed), tables < instruction);
        }
    }

    #[test]
    fn both_ways_give_the_same() {
        let bytes: Vec<u8> = (0..100u8).map(|i| i.wrapping_mul(37) ^ 0xa5).collect();
        assert_eq!(by_tables(0, b"123456789"), 0xcbf4_3926, "the check value of CRC-32");
        for len in 0..=bytes.len() {
            for crc in [0, 0x2144_df1c, u32::MAX] {
                assert_eq!(
                    by_tables(crc, &bytes[..len]),
                    by_instruction(crc, &bytes[..len]),
                    "{len}"
                );
            }
        }
    }
}
