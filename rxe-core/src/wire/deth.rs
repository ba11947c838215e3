//! Datagram extended transport header. IBTA 9.3.2.

use super::bytes::{join, u32_at};
use super::header_len::DETH as LEN;
use crate::types::{Qkey, Qpn};

/// A DETH as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Deth {
    /// The Q_Key, which must match that of the destination queue pair.
    pub qkey: Qkey,
    /// The 8 reserved bits above the source QP.
    pub resv8: u8,
    /// The QPN of the sender.
    pub src_qp: Qpn,
}

impl Deth {
    /// Creates a header as this engine sends it.
    pub const fn new(qkey: Qkey, src_qp: Qpn) -> Self {
        Self { qkey, resv8: 0, src_qp }
    }

    /// Parses every field.
    #[inline]
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        Self {
            qkey: Qkey(u32_at(bytes, 0)),
            resv8: bytes[4],
            src_qp: Qpn::from_wire(u32_at(bytes, 4)),
        }
    }

    /// Returns the encoded header.
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        let last = u32::from(self.resv8) << 24 | self.src_qp.value();
        join(&[&self.qkey.value().to_be_bytes(), &last.to_be_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_specification_puts_them() {
        let deth = Deth::new(Qkey::GSI, Qpn::from_wire(0x01_0203));
        assert_eq!(deth.emit(), [0x80, 0x01, 0, 0, 0, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn no_bit_is_lost(bytes: [u8; LEN]) {
            prop_assert_eq!(Deth::parse(&bytes).emit(), bytes);
        }
    }
}
