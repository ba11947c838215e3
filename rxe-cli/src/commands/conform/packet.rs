//! Packets to the peer.
//! `rxe_core::wire::emit` writes the headers. Values that it never writes (a wrong pad count, a
//! reserved opcode, a wrong length) are patched in before the ICRC is computed, so that the packet
//! has a right ICRC and only the patched value matters.

use std::fmt;

use rxe_core::types::{Key, Pkey, Psn, Qkey, Qpn, RnrTimer};
use rxe_core::wire::{
    Aeth, AtomicEth, Bth, Deth, Ext, Feth, NakCode, NetHeader, Opcode, PacketRepr, Position, Reth,
    Service, Syndrome, emit, icrc,
};
use rxe_lab::answer::FirstPsns;

/// The attributes of the peer's queue pair and region that packets to it need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) qpn: Qpn,
    /// The local queue pair number.
    pub(super) own_qpn: Qpn,
    /// The first PSN that the peer expects, and the first that it sends.
    pub(super) rq_psn: Psn,
    pub(super) sq_psn: Psn,
    /// The address and the rkey of the peer's region.
    pub(super) addr: u64,
    pub(super) rkey: u32,
    /// The shared receive queue that XRC packets name; `None` for other services.
    pub(super) xrc_srq: Option<u32>,
}

impl Target {
    /// Returns the PSNs from which the PSNs of the peer's packets are counted.
    pub(super) fn psns(&self) -> FirstPsns {
        FirstPsns { requests: self.sq_psn, answers: self.rq_psn }
    }
}

/// A packet. Its PSN counts from the first one, its address from the start of the peer's region.
#[derive(Clone)]
pub(super) struct Pkt {
    opcode: Opcode,
    psn: i32,
    payload: Vec<u8>,
    ext: Ext,
    /// The offset in the region of the address in the RETH or AtomicETH.
    offset: u64,
    /// The rkey, if it is not the region's.
    rkey: Option<u32>,
    rkey_xor: u32,
    srq_xor: u32,
    ack_req: bool,
    qpn_xor: u32,
    pkey: Pkey,
    patches: Vec<Patch>,
    /// The unusual properties of the packet, in words.
    notes: Vec<String>,
}

#[derive(Clone, Copy)]
enum Patch {
    /// Sets bits of a byte: offset, mask and value.
    Bits(usize, u8, u8),
    /// Appends bytes before the ICRC.
    Append(usize),
    /// Flips a bit of the byte at this offset after the ICRC was computed. An offset beyond the
    /// packet means the last byte.
    Damage(usize),
    /// Sets bits of a byte after the ICRC was computed: offset and bits.
    Late(usize, u8),
}

/// Returns a payload of `len` bytes. No byte is 0x11, which fills the peer's memory.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..=0x7f).map(|i| 0x80 | i).cycle().take(len).collect()
}

fn packet(opcode: Opcode, psn: i32, payload: usize, ext: Ext) -> Pkt {
    Pkt {
        opcode,
        psn,
        payload: pattern(payload),
        ext,
        offset: 0,
        rkey: None,
        rkey_xor: 0,
        srq_xor: 0,
        ack_req: false,
        qpn_xor: 0,
        pkey: Pkey::DEFAULT,
        patches: Vec::new(),
        notes: Vec::new(),
    }
}

/// Returns a packet without an address: a SEND, or a later packet of a WRITE.
/// Immediate data and the IETH are present if the opcode has them.
pub(super) fn bare(opcode: Opcode, psn: i32, payload: usize) -> Pkt {
    let info = opcode.info();
    let ext = Ext {
        imm: info.is_some_and(|i| i.has_imm).then_some(0x1234_5678),
        ieth: info.is_some_and(|i| i.has_ieth).then_some(0),
        ..Ext::default()
    };
    packet(opcode, psn, payload, ext)
}

/// Returns a SEND ONLY packet.
pub(super) fn send(psn: i32, payload: usize) -> Pkt {
    bare(Opcode::RC_SEND_ONLY, psn, payload)
}

/// Returns a packet with a RETH for `len` bytes at `offset`.
pub(super) fn rdma(opcode: Opcode, psn: i32, payload: usize, offset: u64, len: u32) -> Pkt {
    let imm = opcode.info().is_some_and(|i| i.has_imm).then_some(0x1234_5678);
    let reth = Some(Reth { va: 0, rkey: Key::new(0), dma_len: len });
    let mut pkt = packet(opcode, psn, payload, Ext { reth, imm, ..Ext::default() });
    pkt.offset = offset;
    pkt
}

/// Returns a WRITE ONLY packet.
pub(super) fn write(psn: i32, offset: u64, len: u32) -> Pkt {
    rdma(Opcode::RC_WRITE_ONLY, psn, len as usize, offset, len)
}

/// Returns a READ REQUEST packet.
pub(super) fn read(psn: i32, offset: u64, len: u32) -> Pkt {
    rdma(Opcode::RC_READ_REQUEST, psn, 0, offset, len)
}

fn atomic(opcode: Opcode, psn: i32, offset: u64, swap_add: u64, compare: u64) -> Pkt {
    let atomic = Some(AtomicEth { va: 0, rkey: Key::new(0), swap_add, compare });
    let mut pkt = packet(opcode, psn, 0, Ext { atomic, ..Ext::default() });
    pkt.offset = offset;
    pkt
}

/// Returns a FETCH ADD packet.
pub(super) fn fetch_add(psn: i32, offset: u64, add: u64) -> Pkt {
    atomic(Opcode::RC_FETCH_ADD, psn, offset, add, 0)
}

/// Returns a COMPARE SWAP packet.
pub(super) fn compare_swap(psn: i32, offset: u64, compare: u64, swap: u64) -> Pkt {
    atomic(Opcode::RC_COMPARE_SWAP, psn, offset, swap, compare)
}

/// Returns an ATOMIC WRITE packet of `len` bytes. The specification allows only 8.
pub(super) fn atomic_write(psn: i32, offset: u64, len: u32) -> Pkt {
    rdma(Opcode::RC_ATOMIC_WRITE, psn, len as usize, offset, len)
}

/// Returns a FLUSH packet for `len` bytes with this FETH.
/// The FETH has the placement type in bits 3 to 0 and the selectivity in bits 5 and 4.
pub(super) fn flush(psn: i32, offset: u64, len: u32, feth: u32) -> Pkt {
    let mut pkt = rdma(Opcode::RC_FLUSH, psn, 0, offset, len);
    pkt.ext.feth = Some(Feth::parse(&feth.to_be_bytes()));
    pkt.note(format!("FETH 0x{feth:x}"))
}

/// Returns a UD SEND ONLY packet with this Q_Key.
pub(super) fn datagram(payload: usize, qkey: u32) -> Pkt {
    let deth = Some(Deth::new(Qkey::new(qkey), Qpn::from_wire(0)));
    packet(Opcode::UD_SEND_ONLY, 0, payload, Ext { deth, ..Ext::default() })
        .note(format!("Q_Key 0x{qkey:x}"))
}

/// Returns an ACKNOWLEDGE packet. Its PSN counts from the first that the peer sends.
pub(super) fn syndrome(psn: i32, syndrome: Syndrome) -> Pkt {
    let aeth = Some(Aeth { syndrome, msn: 1 });
    packet(Opcode::RC_ACKNOWLEDGE, psn, 0, Ext { aeth, ..Ext::default() })
        .note(rxe_lab::words::syndrome(syndrome))
}

/// Returns an ACK packet.
pub(super) fn ack(psn: i32) -> Pkt {
    syndrome(psn, Syndrome::ACK)
}

/// Returns a NAK packet.
pub(super) fn nak(code: NakCode, psn: i32) -> Pkt {
    syndrome(psn, Syndrome::Nak(code))
}

/// Returns an RNR NAK packet with this encoded timer.
pub(super) fn rnr(psn: i32, timer: u8) -> Pkt {
    syndrome(psn, Syndrome::RnrNak { timer: RnrTimer::from_wire(timer) })
}

/// Returns a READ RESPONSE packet.
pub(super) fn response(position: Position, psn: i32, payload: usize) -> Pkt {
    let opcode = Opcode::read_response(position);
    let aeth = opcode.info().is_some_and(|i| i.has_aeth).then(|| Aeth::ack(1));
    packet(opcode, psn, payload, Ext { aeth, ..Ext::default() })
}

/// Returns an ATOMIC ACKNOWLEDGE packet.
pub(super) fn atomic_response(psn: i32, value: u64) -> Pkt {
    let ext = Ext { aeth: Some(Aeth::ack(1)), atomic_ack: Some(value), ..Ext::default() };
    packet(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, 0, ext)
}

impl Pkt {
    /// Sets AckReq.
    pub(super) fn ask(mut self) -> Self {
        self.ack_req = true;
        self
    }

    /// Converts an RC packet into an XRC packet if the target is an XRC queue pair.
    pub(super) fn for_target(mut self, target: &Target) -> Self {
        let is_rc = self.opcode.info().is_some_and(|info| info.service == Service::Rc);
        if let Some(srq) = target.xrc_srq.filter(|_| is_rc) {
            self.opcode = self.opcode.in_connected(Service::Xrc);
            let names = self.opcode.info().is_some_and(|info| info.has_xrceth);
            self.ext.xrc_srq = names.then_some(srq ^ self.srq_xor);
        }
        self
    }

    /// Flips bits of the XRCETH.
    pub(super) fn srq_xor(mut self, bits: u32, what: &str) -> Self {
        self.srq_xor = bits;
        self.note(what.into())
    }

    /// Replaces the payload.
    pub(super) fn with(mut self, payload: Vec<u8>) -> Self {
        self.payload = payload;
        self
    }

    /// Uses an rkey that differs from the region's.
    pub(super) fn wrong_rkey(mut self) -> Self {
        // The upper 24 bits of an rkey are its index.
        self.rkey_xor = 0x005a_5a00;
        self.note("wrong rkey".into())
    }

    /// Uses this rkey.
    pub(super) fn under(mut self, rkey: u32) -> Self {
        self.rkey = Some(rkey);
        self.note(format!("rkey 0x{rkey:x}"))
    }

    /// Sets the IETH to this rkey.
    pub(super) fn invalidates(mut self, rkey: u32) -> Self {
        self.ext.ieth = Some(rkey);
        self.note(format!("invalidates 0x{rkey:x}"))
    }

    /// Sets the IETH to an rkey that does not exist.
    pub(super) fn invalidate_unknown(mut self) -> Self {
        self.ext.ieth = Some(0x5a5a_5a5a);
        self.note("invalidates an unknown key".into())
    }

    /// Addresses another queue pair number.
    pub(super) fn wrong_qpn(mut self) -> Self {
        self.qpn_xor = 0x00_4000;
        self.note("to a QP that does not exist".into())
    }

    pub(super) fn pkey(mut self, pkey: u16) -> Self {
        self.pkey = Pkey::new(pkey);
        self.note(format!("P_Key 0x{pkey:04x}"))
    }

    /// Sets the pad count, whatever the payload.
    pub(super) fn pad(self, pad: u8) -> Self {
        self.bits(1, 0x30, pad << 4, &format!("pad count {pad}"))
    }

    pub(super) fn version(self, version: u8) -> Self {
        self.bits(1, 0x0f, version, &format!("version {version}"))
    }

    /// Replaces the opcode byte.
    pub(super) fn opcode_byte(self, opcode: u8) -> Self {
        self.bits(0, 0xff, opcode, &format!("opcode 0x{opcode:02x}"))
    }

    /// Sets the bits of `mask` in the byte at `at`, counted from the BTH, to `value`.
    pub(super) fn bits(mut self, at: usize, mask: u8, value: u8, what: &str) -> Self {
        self.patches.push(Patch::Bits(at, mask, value));
        self.note(what.into())
    }

    /// Appends `len` zero bytes before the ICRC.
    pub(super) fn append(mut self, len: usize) -> Self {
        self.patches.push(Patch::Append(len));
        self.note(format!("{len} bytes more before the ICRC"))
    }

    /// Flips a bit of byte `at` after the ICRC was computed; `usize::MAX` means the last byte.
    pub(super) fn damage(mut self, at: usize, what: &str) -> Self {
        self.patches.push(Patch::Damage(at));
        self.note(format!("a bit of the {what} flipped on the way"))
    }

    /// Sets bits of byte `at` after the ICRC was computed.
    pub(super) fn late_bits(mut self, at: usize, bits: u8, what: &str) -> Self {
        self.patches.push(Patch::Late(at, bits));
        self.note(format!("{what} set on the way"))
    }

    fn note(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }

    /// Returns the bytes from BTH to ICRC.
    pub(super) fn render(&self, net: &NetHeader, target: &Target) -> Vec<u8> {
        let response = self.opcode.info().is_some_and(rxe_core::wire::OpInfo::is_response);
        let base = if response { target.sq_psn } else { target.rq_psn };
        let psn = Psn::new(base.value().wrapping_add_signed(self.psn));
        let qpn = Qpn::from_wire(target.qpn.value() ^ self.qpn_xor);
        let bth = Bth { ack_req: self.ack_req, pkey: self.pkey, ..Bth::new(self.opcode, qpn, psn) };
        let mut ext = self.ext;
        let va = target.addr.wrapping_add(self.offset);
        let rkey = Key::new(self.rkey.unwrap_or(target.rkey) ^ self.rkey_xor);
        if let Some(reth) = &mut ext.reth {
            (reth.va, reth.rkey) = (va, rkey);
        }
        if let Some(atomic) = &mut ext.atomic {
            (atomic.va, atomic.rkey) = (va, rkey);
        }
        if let Some(deth) = &mut ext.deth {
            deth.src_qp = target.own_qpn;
        }
        let mut bytes = Vec::new();
        let repr = PacketRepr { bth, ext, payload: &self.payload, pad_bytes: [0; 3] };
        emit::repr(net, &mut bytes, &repr);
        bytes.truncate(bytes.len() - icrc::LEN);
        for patch in &self.patches {
            match *patch {
                Patch::Bits(at, mask, value) => bytes[at] = bytes[at] & !mask | value & mask,
                Patch::Append(len) => bytes.resize(bytes.len() + len, 0),
                Patch::Damage(_) | Patch::Late(..) => {}
            }
        }
        icrc::append(net, &mut bytes, 0);
        for patch in &self.patches {
            match *patch {
                Patch::Damage(at) => {
                    let at = at.min(bytes.len() - 1);
                    bytes[at] ^= 0x01;
                }
                Patch::Late(at, bits) => bytes[at] |= bits,
                Patch::Bits(..) | Patch::Append(_) => {}
            }
        }
        bytes
    }
}

/// Writes the packet in words: `WRITE ONLY +0, 8 B, at +0x0, AckReq`.
impl fmt::Display for Pkt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:+}", rxe_lab::words::opcode(self.opcode), self.psn)?;
        if !self.payload.is_empty() {
            write!(f, ", {} B", self.payload.len())?;
        }
        if self.ext.reth.is_some() || self.ext.atomic.is_some() {
            write!(f, ", at {:x}", Hex(self.offset))?;
        }
        if let Some(reth) = self.ext.reth.filter(|r| r.dma_len as usize != self.payload.len()) {
            write!(f, ", RETH length {}", reth.dma_len)?;
        }
        if self.ack_req {
            f.write_str(", AckReq")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, ", {note}"))
    }
}

/// An offset from the start of the region, which may be negative.
struct Hex(u64);

impl fmt::LowerHex for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signed = self.0.cast_signed();
        write!(f, "{}0x{:x}", if signed < 0 { '-' } else { '+' }, signed.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target {
        qpn: Qpn::from_wire(0x12),
        own_qpn: Qpn::from_wire(0x34),
        rq_psn: Psn::new(0xff_ffff),
        sq_psn: Psn::new(0x2000),
        addr: 0x10_0000,
        rkey: 0x77,
        xrc_srq: None,
    };

    fn net() -> NetHeader {
        let [own, peer] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        NetHeader::outgoing(own, peer, rxe_core::wire::UDP_PORT)
    }

    #[test]
    fn a_packet_is_what_it_says_with_a_right_icrc() {
        let bytes = write(1, 8, 12).ask().render(&net(), &TARGET);
        let packet = rxe_core::wire::Packet::parse(&bytes).unwrap();
        assert_eq!((packet.psn(), packet.ack_req()), (Psn::ZERO, true), "PSNs wrap");
        let reth = packet.reth().unwrap();
        assert_eq!((reth.va, reth.rkey.value(), reth.dma_len), (0x10_0008, 0x77, 12));
        assert_eq!(packet.payload(), pattern(12));
        assert_eq!(icrc::check(&net(), &bytes), Ok(()));
        let answer = ack(3).render(&net(), &TARGET);
        let answer = rxe_core::wire::Packet::parse(&answer).unwrap();
        assert_eq!(answer.psn(), Psn::new(0x2003), "answers count from the peer's first PSN");
    }

    #[test]
    fn faults_are_made_before_the_icrc_and_damage_after_it() {
        let good = |pkt: Pkt| icrc::check(&net(), &pkt.render(&net(), &TARGET)).is_ok();
        assert!(
            good(send(0, 8).version(1)) && good(send(0, 8).pad(3)) && good(send(0, 8).append(2))
        );
        assert!(!good(send(0, 8).damage(usize::MAX, "ICRC")));
        assert!(good(send(0, 8).late_bits(4, 0xff, "BECN")), "not covered");
    }

    #[test]
    fn requests_to_an_xrc_queue_pair_name_its_queue_and_answers_do_not() {
        let target = Target { xrc_srq: Some(7), ..TARGET };
        let packet = |pkt: Pkt| pkt.for_target(&target).render(&net(), &target);
        let bytes = packet(write(0, 0, 8).srq_xor(0xff00_0000, "reserved bits"));
        let request = rxe_core::wire::Packet::parse(&bytes).unwrap();
        assert_eq!(request.opcode(), Opcode::XRC_WRITE_ONLY);
        assert_eq!(request.ext().xrc_srq, Some(0xff00_0007));
        assert_eq!(request.reth().unwrap().rkey.value(), 0x77);
        let bytes = packet(ack(0));
        assert_eq!(
            rxe_core::wire::Packet::parse(&bytes).unwrap().opcode(),
            Opcode::XRC_ACKNOWLEDGE
        );
        assert_eq!(
            write(0, 0, 8).for_target(&target).to_string(),
            "XRC WRITE ONLY +0, 8 B, at +0x0"
        );
    }

    #[test]
    fn a_packet_in_words() {
        let pkt = write(0, 8_u64.wrapping_neg(), 8).ask().wrong_rkey();
        assert_eq!(pkt.to_string(), "WRITE ONLY +0, 8 B, at -0x8, AckReq, wrong rkey");
        assert_eq!(read(-1, 16, 600).to_string(), "READ REQUEST -1, at +0x10, RETH length 600");
    }
}
