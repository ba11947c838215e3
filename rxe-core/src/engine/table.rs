//! The queue pairs by number. Numbers are chosen on this side, so nobody can make them collide: a
//! multiplication spreads them well enough, and costs a tenth of what the standard hash does.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::qp::Qp;
use crate::types::Qpn;

pub(super) type QpTable = HashMap<Qpn, Box<Qp>, BuildHasherDefault<QpnHasher>>;

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct QpnHasher(u64);

/// 2⁶⁴ divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        // The product is best mixed in its high bits; the table's places come from the low ones.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(SPREAD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, RandomState};

    #[test]
    fn numbers_of_any_stride_are_spread_over_places_and_tags() {
        let table = BuildHasherDefault::<QpnHasher>::default();
        let random = RandomState::new();
        for stride in [1, 2, 16, 256, 4096, 0x1_0000] {
            let count = |hash: &dyn Fn(Qpn) -> u64| {
                let numbers = (1..=200u32).filter_map(|i| Qpn::new(i * stride + 0x11));
                let hashes: Vec<_> = numbers.map(hash).collect();
                let places: HashSet<_> = hashes.iter().map(|h| h & 0x1ff).collect();
                let tags: HashSet<_> = hashes.iter().map(|h| h >> 57).collect();
                (places.len(), tags.len())
            };
            let ours = count(&|qpn| table.hash_one(qpn));
            let theirs = count(&|qpn| random.hash_one(qpn));
            let close = |ours: usize, theirs: usize| 4 * ours > 3 * theirs;
            assert!(close(ours.0, theirs.0) && close(ours.1, theirs.1), "{stride}: {ours:?}");
        }
    }
}
