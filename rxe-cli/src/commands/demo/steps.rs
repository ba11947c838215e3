//! The steps of the demo: operations, sizes, and the memory before and after each.

use serde::{Deserialize, Serialize};

/// One operation of the leading process on the peer's memory or receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) op: Op,
    /// The length of the data in bytes.
    pub(super) size: usize,
    /// The seed of the data pattern.
    pub(super) seed: u32,
}

/// The operations of RC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    /// A COMPARE SWAP whose operand does not match.
    CompareOnly,
    FetchAdd,
}

impl Op {
    const MESSAGES: [Self; 5] =
        [Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read];
    const ATOMICS: [Self; 3] = [Self::CompareSwap, Self::CompareOnly, Self::FetchAdd];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND with immediate",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE with immediate",
            Self::Read => "READ",
            Self::CompareSwap => "COMPARE-AND-SWAP",
            Self::CompareOnly => "COMPARE-AND-SWAP, unequal",
            Self::FetchAdd => "FETCH-AND-ADD",
        }
    }

    /// Returns whether the operation consumes a receive of the peer.
    pub(super) fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    pub(super) fn is_atomic(self) -> bool {
        Self::ATOMICS.contains(&self)
    }

    /// Returns whether the operation returns data to the leading process.
    pub(super) fn fetches(self) -> bool {
        self == Self::Read || self.is_atomic()
    }

    /// Returns the word before and after the atomic, and the atomic's operands.
    pub(super) fn word(self) -> Word {
        const BEFORE: u64 = 0x0123_4567_89ab_cdef;
        const OTHER: u64 = 0xfeed_f00d_dead_beef;
        match self {
            Self::CompareSwap => {
                Word { before: BEFORE, operand: BEFORE, swap: OTHER, after: OTHER }
            }
            Self::CompareOnly => {
                Word { before: BEFORE, operand: BEFORE + 1, swap: OTHER, after: BEFORE }
            }
            // The sum exceeds the largest number, to show that it wraps.
            _ => Word { before: u64::MAX - 4, operand: 7, swap: 0, after: 2 },
        }
    }
}

/// The effect of an atomic on a word.
pub(super) struct Word {
    pub(super) before: u64,
    pub(super) operand: u64,
    pub(super) swap: u64,
    pub(super) after: u64,
}

impl Step {
    /// Returns all steps of the demo for this path MTU in bytes.
    pub(super) fn all(mtu: usize) -> Vec<Self> {
        let sizes = [0, 1, mtu, mtu + 1, LARGEST];
        let messages = Op::MESSAGES.into_iter().flat_map(|op| sizes.map(|size| (op, size)));
        let atomics = Op::ATOMICS.into_iter().map(|op| (op, 8));
        let numbered = messages.chain(atomics).zip(1..);
        numbered.map(|((op, size), seed)| Self { op, size, seed }).collect()
    }

    /// Returns the immediate data, if the operation carries any.
    pub(super) fn imm(self) -> Option<u32> {
        matches!(self.op, Op::SendImm | Op::WriteImm).then_some(0xcafe_0000 | self.seed)
    }

    /// Returns a whole region that contains the step's data.
    pub(super) fn filled(self) -> Vec<u8> {
        let mut all = background();
        pattern(self.seed, &mut all[START..START + self.size]);
        all
    }

    /// Returns a whole region that contains a word.
    pub(super) fn with_word(word: u64) -> Vec<u8> {
        let mut all = background();
        all[START..START + 8].copy_from_slice(&word.to_ne_bytes());
        all
    }
}

/// The most bytes of data in a step.
const LARGEST: usize = 1 << 20;
/// The offset of the data in a region. The bytes around the data must not change.
pub(super) const START: usize = 64;
/// The length of a region in bytes.
pub(super) const REGION: usize = START + LARGEST + START;

/// Returns the contents of a whole region without data.
pub(super) fn background() -> Vec<u8> {
    vec![0xee; REGION]
}

/// Fills `out` with bytes that depend on position and seed.
/// The first byte of each 256 prevents Wireshark from recognising a protocol in the payload of a
/// packet.
fn pattern(seed: u32, out: &mut [u8]) {
    for (i, chunk) in (0_u64..).zip(out.chunks_mut(8)) {
        let word = (i + (u64::from(seed) << 32) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        chunk.copy_from_slice(&(word ^ word >> 32).to_le_bytes()[..chunk.len()]);
    }
    for packet in out.chunks_mut(256) {
        packet[0] = 0xc0 | (seed & 0x0f) as u8;
    }
}

/// Describes the first difference between two regions; `None` if they are equal.
pub(super) fn difference(have: &[u8], want: &[u8]) -> Option<String> {
    let at = have.iter().zip(want).position(|(h, w)| h != w)?;
    let place = match at.checked_sub(START) {
        Some(at) => format!("byte {at} of the data"),
        None => format!("byte {} before the data", START - at),
    };
    Some(format!("{place} is 0x{:02x}, not 0x{:02x}", have[at], want[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_sizes() {
        let steps = Step::all(1024);
        assert_eq!(steps.len(), 5 * 5 + 3);
        for size in [0, 1, 1024, 1025, 1 << 20] {
            assert_eq!(steps.iter().filter(|s| s.size == size).count(), 5, "{size}");
        }
        assert!(steps.iter().all(|s| s.op.is_atomic() == (s.size == 8)));
    }

    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        let step = Step { op: Op::Write, size: 1024, seed: 7 };
        let want = step.filled();
        assert_eq!(difference(&want, &want), None);
        for (at, text) in
            [(0, "byte 64 before"), (START + 1023, "byte 1023 of"), (REGION - 1, "of")]
        {
            let mut have = want.clone();
            have[at] ^= 1;
            assert!(difference(&have, &want).unwrap().contains(text), "{at}");
        }
        let other = Step { seed: 8, ..step }.filled();
        assert!(difference(&other, &want).is_some());
    }
}
