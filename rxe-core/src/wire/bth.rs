//! Base transport header: the first 12 bytes of every packet. IBTA 9.2.

use super::Opcode;
use super::bytes::{join, u32_at};
use super::header_len::BTH as LEN;
use crate::types::{Pkey, Psn, Qpn};

/// Where in a packet the destination QPN's high 8 bits stand, which name its block
/// ([`Qpn::block`]): for programs that sort packets before they are parsed.
pub const QPN_BLOCK: usize = 5;

/// The block of a packet's destination QPN; 0, whose packets anybody may take, if the packet is too
/// short to have one.
#[inline]
pub fn qpn_block(packet: &[u8]) -> u8 {
    packet.get(QPN_BLOCK).copied().unwrap_or(0)
}

/// A BTH in a packet: reads single fields where they stand.
#[derive(Clone, Copy, Debug)]
pub struct BthView<'a>(&'a [u8; LEN]);

impl<'a> BthView<'a> {
    /// A view of the first 12 bytes; `None` if there are fewer.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.first_chunk().map(Self)
    }

    /// What kind of packet this is.
    #[inline]
    pub fn opcode(self) -> Opcode {
        Opcode(self.0[0])
    }

    /// Solicited event.
    #[inline]
    pub fn solicited(self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// Pad bytes after the payload, 0 to 3.
    #[inline]
    pub fn pad(self) -> u8 {
        self.0[1] >> 4 & 0x3
    }

    /// Transport header version; 0 is the only one there is.
    #[inline]
    pub fn tver(self) -> u8 {
        self.0[1] & 0xf
    }

    /// Partition key.
    #[inline]
    pub fn pkey(self) -> Pkey {
        Pkey(u16::from_be_bytes([self.0[2], self.0[3]]))
    }

    /// Destination queue pair.
    #[inline]
    pub fn dest_qp(self) -> Qpn {
        Qpn::from_wire(u32_at(self.0, 4))
    }

    /// Packet sequence number.
    #[inline]
    pub fn psn(self) -> Psn {
        Psn::new(u32_at(self.0, 8))
    }

    /// Whether the requester wants an acknowledgement.
    #[inline]
    pub fn ack_req(self) -> bool {
        self.0[8] & 0x80 != 0
    }

    /// All fields.
    #[inline]
    pub fn to_value(self) -> Bth {
        Bth::parse(self.0)
    }
}

/// A BTH as a value. It holds every bit, the reserved ones too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What kind of packet this is.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion wakes who waits for solicited ones.
    pub solicited: bool,
    /// Migration state: set when not migrating. ConnectX sends 1, kernel rxe 0; both are accepted.
    pub mig_req: bool,
    /// Pad bytes after the payload, 0 to 3. [`emit`](super::emit) sets it itself.
    pub pad: u8,
    /// Transport header version, 4 bits: 0.
    pub tver: u8,
    /// Partition key.
    pub pkey: Pkey,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification: set in a CNP.
    pub becn: bool,
    /// The 6 reserved bits beside FECN and BECN. Not covered by the ICRC.
    pub resv6: u8,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// The requester wants an acknowledgement.
    pub ack_req: bool,
    /// The 7 reserved bits beside AckReq.
    pub resv7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Its bytes.
    pub const LEN: usize = LEN;

    /// A header as this engine sends it: MigReq 1, the default partition, everything else 0.
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

    /// Reads every field.
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

    /// The header's bytes. Bits that do not fit their field are cut off.
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        let flags = u8::from(self.solicited) << 7
            | u8::from(self.mig_req) << 6
            | (self.pad & 0x3) << 4
            | self.tver & 0xf;
        let congestion = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6 | self.resv6 & 0x3f;
        let ask = u8::from(self.ack_req) << 7 | self.resv7 & 0x7f;
        // Word by word: that is a store each.
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
