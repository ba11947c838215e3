//! Atomic and atomic acknowledge extended transport headers. IBTA 9.3.4 and 9.5.3.

use super::bytes::{join, u32_at, u64_at};
use super::header_len::ATOMIC_ETH as LEN;
use crate::types::Key;

/// An AtomicETH as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AtomicEth {
    /// The virtual address in the responder's memory region, a multiple of 8.
    pub va: u64,
    /// The remote key of the region.
    pub rkey: Key,
    /// The value to swap in, or the addend.
    pub swap_add: u64,
    /// The value to compare with; unused by FETCH AND ADD.
    pub compare: u64,
}

impl AtomicEth {
    /// Parses every field.
    #[inline]
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        Self {
            va: u64_at(bytes, 0),
            rkey: Key(u32_at(bytes, 8)),
            swap_add: u64_at(bytes, 12),
            compare: u64_at(bytes, 20),
        }
    }

    /// Returns the encoded header.
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        join(&[
            &self.va.to_be_bytes(),
            &self.rkey.value().to_be_bytes(),
            &self.swap_add.to_be_bytes(),
            &self.compare.to_be_bytes(),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_specification_puts_them() {
        let mut bytes = [0; LEN];
        (bytes[7], bytes[11], bytes[19], bytes[27]) = (1, 2, 3, 4);
        let want = AtomicEth { va: 1, rkey: Key(2), swap_add: 3, compare: 4 };
        assert_eq!(AtomicEth::parse(&bytes), want);
    }

    proptest! {
        #[test]
        fn no_bit_is_lost(bytes: [u8; LEN]) {
            prop_assert_eq!(AtomicEth::parse(&bytes).emit(), bytes);
        }
    }
}
