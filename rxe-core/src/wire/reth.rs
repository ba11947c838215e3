//! RDMA extended transport header: a range of the responder's memory. IBTA 9.3.3.

use super::bytes::{join, u32_at, u64_at};
use super::header_len::RETH as LEN;
use crate::types::Key;

/// A RETH as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reth {
    /// The virtual address in the responder's memory region.
    pub va: u64,
    /// The remote key of the region.
    pub rkey: Key,
    /// The DMA length: the bytes of the whole message or, in a FLUSH, of the range.
    pub dma_len: u32,
}

impl Reth {
    /// Parses every field.
    #[inline]
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        Self { va: u64_at(bytes, 0), rkey: Key(u32_at(bytes, 8)), dma_len: u32_at(bytes, 12) }
    }

    /// Returns the encoded header.
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        join(&[
            &self.va.to_be_bytes(),
            &self.rkey.value().to_be_bytes(),
            &self.dma_len.to_be_bytes(),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_specification_puts_them() {
        let reth = Reth { va: 0x0102_0304_0506_0708, rkey: Key(0x090a_0b0c), dma_len: 0x0d0e_0f10 };
        assert_eq!(reth.emit(), std::array::from_fn(|i| (1..=16).nth(i).unwrap()));
    }

    proptest! {
        #[test]
        fn no_bit_is_lost(bytes: [u8; LEN]) {
            prop_assert_eq!(Reth::parse(&bytes).emit(), bytes);
        }
    }
}
