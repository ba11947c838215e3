//! Flush extended transport header: the range and the placement of a FLUSH. IBTA A19.

use super::bytes::u32_at;
use super::header_len::WORD as LEN;

/// A FETH as a value. It holds every bit, including the reserved ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Feth {
    /// Placement type, 4 bits: 1 for global visibility, 2 for persistence, 3 for both.
    pub placement: u8,
    /// Selectivity, 2 bits: [`Feth::RANGE`] or [`Feth::REGION`].
    pub selectivity: u8,
    /// The 26 reserved bits.
    pub resv26: u32,
}

impl Feth {
    /// Selectivity: the range of the RETH.
    pub const RANGE: u8 = 0;
    /// Selectivity: the whole memory region that the RETH's key names.
    pub const REGION: u8 = 1;

    /// Parses every field.
    #[inline]
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        let (word, low) = (u32_at(bytes, 0), bytes[3]);
        Self { placement: low & 0xf, selectivity: low >> 4 & 0x3, resv26: word >> 6 }
    }

    /// Returns the encoded header.
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        let low = (self.selectivity & 0x3) << 4 | self.placement & 0xf;
        (self.resv26 << 6 | u32::from(low)).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_specification_puts_them() {
        let feth = Feth { placement: 2, selectivity: Feth::REGION, resv26: 1 };
        assert_eq!(feth.emit(), [0, 0, 0, 0x52]);
    }

    proptest! {
        #[test]
        fn no_bit_is_lost(bytes: [u8; LEN]) {
            prop_assert_eq!(Feth::parse(&bytes).emit(), bytes);
        }
    }
}
