//! Base transport header: the first 12 bytes of every packet. IBTA 9.2.

use super::Opcode;
use super::bytes::{join, u32_at};
use super::header_len::BTH as LEN;
use crate::types::{Pkey, Psn, Qpn};

/// The offset in a packet of the high 8 bits of the destination QPN. They identify the range of the
/// QPN ([`Qpn::block`]). For programs that sort packets before parsing them.
pub const QPN_BLOCK: usize = 5;

/// Returns the high 8 bits of a packet's destination QPN, or 0 if the packet is too short. Any
/// process may take packets with 0.
#[inline]
pub fn qpn_block(packet: &[u8]) -> u8 {
    packet.get(QPN_BLOCK).copied().unwrap_or(0)
}

/// A view of a BTH in a packet, which reads single fields in place.
#[derive(Clone, Copy, Debug)]
pub struct BthView<'a>(&'a [u8; LEN]);

impl<'a> BthView<'a> {
    /// Creates a view of the first 12 bytes. Returns `None` if there are fewer.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.first_chunk().map(Self)
    }

    /// Returns the opcode.
    #[inline]
    pub fn opcode(self) -> Opcode {
        Opcode(self.0[0])
    }

    /// Returns whether the packet requests a solicited event.
    #[inline]
    pub fn solicited(self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// Returns the number of pad bytes after the payload, 0 to 3.
    #[inline]
    pub fn pad(self) -> u8 {
        self.0[1] >> 4 & 0x3
    }

    /// Returns the transport header version; 0 is the only defined one.
    #[inline]
    pub fn tver(self) -> u8 {
        self.0[1] & 0xf
    }

    /// Returns the partition key.
    #[inline]
    pub fn pkey(self) -> Pkey {
        Pkey(u16::from_be_bytes([self.0[2], self.0[3]]))
    }

    /// Returns the destination queue pair.
    #[inline]
    pub fn dest_qp(self) -> Qpn {
        Qpn::from_wire(u32_at(self.0, 4))
    }

    /// Returns the packet sequence number.
    #[inline]
    pub fn psn(self) -> Psn {
        Psn::new(u32_at(self.0, 8))
    }

    /// Returns whether the requester requests an acknowledgement.
    #[inline]
    pub fn ack_req(self) -> bool {
        self.0[8] & 0x80 != 0
    }

    /// Returns all fields.
    #[inline]
    pub fn to_value(self) -> Bth {
        Bth::parse(self.0)
    }
}

/// A BTH as a value. It holds every bit, including the reserved ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The opcode.
    pub opcode: Opcode,
    /// Solicited event: the completion notifies a queue that is armed for solicited completions
    /// only.
    pub solicited: bool,
    /// Migration state: set when not migrating. ConnectX sends 1, kernel `rdma_rxe` 0; both are
    /// accepted.
    pub mig_req: bool,
    /// The number of pad bytes after the payload, 0 to 3. [`emit`](super::emit) sets it.
    pub pad: u8,
    /// The transport header version, 4 bits: 0.
    pub tver: u8,
    /// The partition key.
    pub pkey: Pkey,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification: set in a CNP.
    pub becn: bool,
    /// The 6 reserved bits after FECN and BECN. The ICRC does not cover them.
    pub resv6: u8,
    /// The destination queue pair.
    pub dest_qp: Qpn,
    /// Whether the requester requests an acknowledgement.
    pub ack_req: bool,
    /// The 7 reserved bits after AckReq.
    pub resv7: u8,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// The length of a BTH in bytes.
    pub const LEN: usize = LEN;

    /// Creates a header as this engine sends it: MigReq 1, the default partition, all other fields
    /// 0.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            resv6: 0,
            dest_qp,
            ack_req: false,
            resv7: 0,
            psn,
        }
    }

    /// Parses every field.
    #[inline]
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        let view = BthView(bytes);
        Self {
            opcode: view.opcode(),
            solicited: view.solicited(),
            mig_req: bytes[1] & 0x40 != 0,
            pad: view.pad(),
            tver: view.tver(),
            pkey: view.pkey(),
            fecn: bytes[4] & 0x80 != 0,
            becn: bytes[4] & 0x40 != 0,
            resv6: bytes[4] & 0x3f,
            dest_qp: view.dest_qp(),
            ack_req: view.ack_req(),
            resv7: bytes[8] & 0x7f,
            psn: view.psn(),
        }
    }

    /// Returns the encoded header. Bits that do not fit their field are cut off.
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        let flags = u8::from(self.solicited) << 7
            | u8::from(self.mig_req) << 6
            | (self.pad & 0x3) << 4
            | self.tver & 0xf;
        let congestion = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6 | self.resv6 & 0x3f;
        let ask = u8::from(self.ack_req) << 7 | self.resv7 & 0x7f;
        // Word by word, so that each word takes one store.
        let words = [
            u32::from(self.opcode.0) << 24 | u32::from(flags) << 16 | u32::from(self.pkey.value()),
            u32::from(congestion) << 24 | self.dest_qp.value(),
            u32::from(ask) << 24 | self.psn.value(),
        ];
        let [first, second, third] = words.map(u32::to_be_bytes);
        join(&[&first, &second, &third])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_specification_puts_them() {
        let bth = Bth {
            solicited: true,
            pad: 3,
            becn: true,
            ack_req: true,
            ..Bth::new(Opcode::RC_SEND_ONLY, Qpn::from_wire(0x12_3456), Psn::new(0x89_abcd))
        };
        let bytes = [0x04, 0xf0, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0x80, 0x89, 0xab, 0xcd];
        assert_eq!(bth.emit(), bytes);
        let view = BthView::new(&bytes).unwrap();
        assert_eq!((view.dest_qp(), view.psn(), view.pad()), (bth.dest_qp, bth.psn, 3));
        assert!(BthView::new(&bytes[..11]).is_none());
        assert_eq!((qpn_block(&bytes), qpn_block(&bytes[..5])), (bth.dest_qp.block(), 0));
    }

    proptest! {
        #[test]
        fn no_bit_is_lost(bytes: [u8; LEN]) {
            prop_assert_eq!(Bth::parse(&bytes).emit(), bytes);
        }
    }
}
