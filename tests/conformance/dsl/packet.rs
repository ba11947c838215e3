//! One packet of a script, sent by the peer or by a host that pretends to be the peer.
//! `rxe_core::wire::emit` writes the headers. Everything that `emit` never does (a wrong pad count,
//! a cut, a reserved opcode) is changed before the ICRC is computed, so the packet arrives with a
//! correct ICRC and only its contents are wrong.

use std::fmt;
use std::net::IpAddr;

use rxe_core::types::{Key, Pkey, Psn, Qkey, Qpn, RnrTimer};
use rxe_core::wire::{
    Aeth, AtomicEth, Bth, Deth, Ext, Feth, IpId, NakCode, NetHeader, Opcode, PacketRepr, Reth,
    Service, Syndrome, emit, icrc,
};

use super::world::{self, BASE, RQ_PSN, SQ_PSN};

/// A packet of a script. Its addresses default to those of the peer and the QP.
#[derive(Clone)]
pub(crate) struct Pkt {
    opcode: Opcode,
    psn: i32,
    payload: usize,
    ext: Ext,
    ack_req: bool,
    solicited: bool,
    qpn: Option<u32>,
    pkey: Option<u16>,
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    src_port: Option<u16>,
    id: Option<IpId>,
    tos: u8,
    patches: Vec<Patch>,
    /// The unusual features of the packet, in words for the catalogue.
    notes: Vec<String>,
}

#[derive(Clone)]
enum Patch {
    /// Sets bits of a byte: offset, mask and value.
    Bits(usize, u8, u8),
    /// Cuts the bytes before the ICRC to this length.
    Cut(usize),
    /// Appends this many bytes before the ICRC.
    Append(usize),
    /// Cuts the whole packet to this length.
    CutWhole(usize),
    /// Flips a bit after the ICRC was computed.
    Damage(usize),
}

/// Returns the payload of the peer's packets. It differs from the initial contents of memory.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..=0x7f).map(|i| 0x80 | i).cycle().take(len).collect()
}

fn packet(opcode: Opcode, psn: i32, payload: usize, ext: Ext) -> Pkt {
    let xrc = opcode.info().is_some_and(|info| info.has_xrceth);
    let ext = Ext { xrc_srq: xrc.then_some(world::SRQ), ..ext };
    Pkt {
        opcode,
        psn,
        payload,
        ext,
        ack_req: false,
        solicited: false,
        qpn: None,
        pkey: None,
        src: None,
        dst: None,
        src_port: None,
        id: None,
        tos: 0,
        patches: Vec::new(),
        notes: Vec::new(),
    }
}

/// Returns a packet of a SEND. `psn` is relative to the first expected PSN.
pub(crate) fn send(opcode: Opcode, psn: i32, payload: usize) -> Pkt {
    let info = opcode.info().expect("a SEND");
    let ext = Ext {
        imm: info.has_imm.then_some(0x1234_5678),
        ieth: info.has_ieth.then_some(0),
        ..Ext::default()
    };
    packet(opcode, psn, payload, ext)
}

/// Returns a datagram from QP 0x11 with the correct Q_Key.
pub(crate) fn datagram(payload: usize) -> Pkt {
    let deth = Some(Deth::new(world::QKEY, Qpn::from_wire(world::PEER_QPN)));
    packet(Opcode::UD_SEND_ONLY, 0, payload, Ext { deth, ..Ext::default() })
}

/// Returns a datagram with immediate data.
pub(crate) fn datagram_imm(payload: usize) -> Pkt {
    let deth = Some(Deth::new(world::QKEY, Qpn::from_wire(world::PEER_QPN)));
    let ext = Ext { deth, imm: Some(0x1234_5678), ..Ext::default() };
    packet(Opcode::UD_SEND_ONLY_WITH_IMMEDIATE, 0, payload, ext)
}

/// Returns a packet of a WRITE, FLUSH, ATOMIC WRITE or READ.
/// The RETH names `len` bytes at `offset` in the region with all rights.
pub(crate) fn rdma(opcode: Opcode, psn: i32, payload: usize, offset: u64, len: usize) -> Pkt {
    let info = opcode.info().expect("an operation with a RETH");
    let dma_len = u32::try_from(len).expect("a RETH's length");
    let reth = Some(Reth { va: BASE.wrapping_add(offset), rkey: world::ALL, dma_len });
    let ext = Ext {
        reth,
        imm: info.has_imm.then_some(0x1234_5678),
        feth: info.has_feth.then(Feth::default),
        ..Ext::default()
    };
    packet(opcode, psn, payload, ext)
}

/// Returns a WRITE of one packet.
pub(crate) fn write(psn: i32, offset: u64, len: usize) -> Pkt {
    rdma(Opcode::RC_WRITE_ONLY, psn, len, offset, len)
}

/// Returns a READ request.
pub(crate) fn read(psn: i32, offset: u64, len: usize) -> Pkt {
    rdma(Opcode::RC_READ_REQUEST, psn, 0, offset, len)
}

/// Returns a Middle or Last packet, which has only a BTH and payload.
pub(crate) fn bare(opcode: Opcode, psn: i32, payload: usize) -> Pkt {
    send(opcode, psn, payload)
}

/// Returns a FETCH AND ADD of `add` at `offset` in the region with all rights.
pub(crate) fn fetch_add(psn: i32, offset: u64, add: u64) -> Pkt {
    atomic(Opcode::RC_FETCH_ADD, psn, offset, add, 0)
}

/// Returns a COMPARE AND SWAP at `offset` in the region with all rights.
pub(crate) fn compare_swap(psn: i32, offset: u64, compare: u64, swap: u64) -> Pkt {
    atomic(Opcode::RC_COMPARE_SWAP, psn, offset, swap, compare)
}

/// Returns a packet with an AtomicETH and the given opcode.
pub(crate) fn atomic(opcode: Opcode, psn: i32, offset: u64, swap_add: u64, compare: u64) -> Pkt {
    let va = BASE.wrapping_add(offset);
    let atomic = Some(AtomicEth { va, rkey: world::ALL, swap_add, compare });
    packet(opcode, psn, 0, Ext { atomic, ..Ext::default() })
}

/// Returns an acknowledgement. `psn` is relative to the first PSN that the QP sends.
pub(crate) fn acked(psn: i32) -> Pkt {
    syndrome(psn, Syndrome::ACK)
}

/// Returns a NAK.
pub(crate) fn naked(psn: i32, code: NakCode) -> Pkt {
    syndrome(psn, Syndrome::Nak(code))
}

/// Returns an RNR NAK with this timer code.
pub(crate) fn rnr(psn: i32, timer: u8) -> Pkt {
    syndrome(psn, Syndrome::RnrNak { timer: RnrTimer::from_wire(timer) })
}

/// Returns an ACKNOWLEDGE packet with this syndrome.
pub(crate) fn syndrome(psn: i32, syndrome: Syndrome) -> Pkt {
    let aeth = Some(Aeth { syndrome, msn: 1 });
    let byte = syndrome.to_byte();
    packet(Opcode::RC_ACKNOWLEDGE, psn, 0, Ext { aeth, ..Ext::default() })
        .note(format!("syndrome 0x{byte:02x}"))
}

/// Returns a READ RESPONSE packet.
pub(crate) fn response(opcode: Opcode, psn: i32, payload: usize) -> Pkt {
    let aeth = opcode.info().is_some_and(|info| info.has_aeth).then(|| Aeth::ack(1));
    packet(opcode, psn, payload, Ext { aeth, ..Ext::default() })
}

/// Returns an ATOMIC ACKNOWLEDGE packet.
pub(crate) fn atomic_response(psn: i32, value: u64) -> Pkt {
    let ext = Ext { aeth: Some(Aeth::ack(1)), atomic_ack: Some(value), ..Ext::default() };
    packet(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, 0, ext)
}

/// Returns a congestion notification.
pub(crate) fn cnp() -> Pkt {
    packet(Opcode::CNP, 0, 0, Ext::default()).fixed_psn().bits(4, 0x40, 0x40, "BECN")
}

impl Pkt {
    /// Sets the AckReq bit.
    pub(crate) fn ask(mut self) -> Self {
        self.ack_req = true;
        self
    }

    /// Turns an RC packet into the XRC packet of the same operation.
    pub(crate) fn xrc(mut self) -> Self {
        self.opcode = self.opcode.in_connected(Service::Xrc);
        if self.opcode.info().is_some_and(|info| info.has_xrceth) {
            self.ext.xrc_srq = Some(world::SRQ);
        }
        self
    }

    /// Sets the PSN, relative to the first one.
    pub(crate) fn at(mut self, psn: i32) -> Self {
        self.psn = psn;
        self
    }

    pub(crate) fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Sets the destination QP, which is otherwise the QP under test.
    pub(crate) fn dest_qp(mut self, qpn: u32) -> Self {
        self.qpn = Some(qpn);
        self.note(format!("to QP 0x{qpn:x}"))
    }

    pub(crate) fn pkey(mut self, pkey: u16) -> Self {
        self.pkey = Some(pkey);
        self.note(format!("P_Key 0x{pkey:04x}"))
    }

    pub(crate) fn src(mut self, ip: &str) -> Self {
        self.src = Some(ip.parse().expect("an address"));
        self.note(format!("from {ip}"))
    }

    pub(crate) fn dst(mut self, ip: &str) -> Self {
        self.dst = Some(ip.parse().expect("an address"));
        self.note(format!("to {ip}"))
    }

    pub(crate) fn src_port(mut self, port: u16) -> Self {
        self.src_port = Some(port);
        self.note(format!("UDP source port {port}"))
    }

    /// Marks the packet "congestion experienced", as a switch does.
    pub(crate) fn marked(mut self) -> Self {
        self.tos = 0x03;
        self.note("CE".into())
    }

    /// Sets the XRCETH: the number of the shared receive queue and, in the upper 8 bits, the
    /// reserved field.
    pub(crate) fn srq(mut self, word: u32) -> Self {
        self.ext.xrc_srq = Some(word);
        self.note(format!("XRCETH 0x{word:08x}"))
    }

    /// Sets the FETH of a FLUSH.
    pub(crate) fn feth(mut self, feth: u32) -> Self {
        self.ext.feth = Some(Feth::parse(&feth.to_be_bytes()));
        self.note(format!("FETH 0x{feth:x}"))
    }

    /// Sets the IPv4 identification.
    pub(crate) fn ip_id(mut self, id: u16) -> Self {
        self.id = Some(IpId::Known { id, flags: 0x4000 });
        self.note(format!("IP ID 0x{id:04x}"))
    }

    pub(crate) fn rkey(mut self, rkey: Key, what: &str) -> Self {
        if let Some(reth) = &mut self.ext.reth {
            reth.rkey = rkey;
        }
        if let Some(atomic) = &mut self.ext.atomic {
            atomic.rkey = rkey;
        }
        self.note(format!("rkey {what}"))
    }

    /// Sets the absolute virtual address.
    pub(crate) fn va(mut self, va: u64) -> Self {
        if let Some(reth) = &mut self.ext.reth {
            reth.va = va;
        }
        if let Some(atomic) = &mut self.ext.atomic {
            atomic.va = va;
        }
        self
    }

    /// Sets the length in the RETH, whatever the payload.
    pub(crate) fn dma_len(mut self, len: u32) -> Self {
        if let Some(reth) = &mut self.ext.reth {
            reth.dma_len = len;
        }
        self
    }

    pub(crate) fn qkey(mut self, qkey: u32) -> Self {
        if let Some(deth) = &mut self.ext.deth {
            deth.qkey = Qkey::new(qkey);
        }
        self.note(format!("Q_Key 0x{qkey:08x}"))
    }

    pub(crate) fn ieth(mut self, rkey: Key, what: &str) -> Self {
        self.ext.ieth = Some(rkey.value());
        self.note(format!("invalidates {what}"))
    }

    /// Sets the AETH syndrome of a READ RESPONSE or ATOMIC ACKNOWLEDGE.
    pub(crate) fn aeth(mut self, syndrome: Syndrome) -> Self {
        if let Some(aeth) = &mut self.ext.aeth {
            aeth.syndrome = syndrome;
        }
        self.note(format!("syndrome 0x{:02x}", syndrome.to_byte()))
    }

    pub(crate) fn msn(mut self, msn: u32) -> Self {
        if let Some(aeth) = &mut self.ext.aeth {
            aeth.msn = msn;
        }
        self.note(format!("MSN 0x{msn:06x}"))
    }

    /// Sets the pad count, whatever the payload.
    pub(crate) fn pad(self, pad: u8) -> Self {
        self.bits(1, 0x30, pad << 4, &format!("pad count {pad}"))
    }

    pub(crate) fn tver(self, version: u8) -> Self {
        self.bits(1, 0x0f, version, &format!("version {version}"))
    }

    /// Replaces the opcode byte.
    pub(crate) fn opcode_byte(self, opcode: u8) -> Self {
        self.bits(0, 0xff, opcode, &format!("opcode 0x{opcode:02x}"))
    }

    /// Sets bits of the byte at offset `at` from the start of the BTH.
    pub(crate) fn bits(mut self, at: usize, mask: u8, value: u8, what: &str) -> Self {
        self.patches.push(Patch::Bits(at, mask, value));
        self.note(what.into())
    }

    /// Cuts the bytes before the ICRC to `len`.
    pub(crate) fn cut(mut self, len: usize) -> Self {
        self.patches.push(Patch::Cut(len));
        self.note(format!("cut to {len} bytes and the ICRC"))
    }

    /// Appends `len` bytes before the ICRC.
    pub(crate) fn append(mut self, len: usize) -> Self {
        self.patches.push(Patch::Append(len));
        self.note(format!("{len} bytes more before the ICRC"))
    }

    /// Cuts the whole packet to `len` bytes.
    pub(crate) fn cut_whole(mut self, len: usize) -> Self {
        self.patches.push(Patch::CutWhole(len));
        self.note(format!("cut to {len} bytes"))
    }

    /// Flips a bit of byte `at` after the ICRC was computed; `usize::MAX` is the last byte.
    pub(crate) fn damage(mut self, at: usize, what: &str) -> Self {
        self.patches.push(Patch::Damage(at));
        self.note(format!("a bit of the {what} flipped"))
    }

    fn fixed_psn(mut self) -> Self {
        self.psn = 0;
        self
    }

    pub(crate) fn note(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }

    fn is_response(&self) -> bool {
        self.opcode.info().is_some_and(rxe_core::wire::OpInfo::is_response)
    }

    /// Returns the source and destination addresses, where the packet sets them.
    pub(crate) fn said_addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        (self.src, self.dst)
    }

    /// Returns whether the packet goes to the multicast QPN, but not to a multicast address.
    pub(crate) fn is_stray(&self) -> bool {
        self.qpn == Some(Qpn::MULTICAST.value()) && !self.dst.is_some_and(|ip| ip.is_multicast())
    }

    /// Returns whether the packet has no bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.patches.iter().any(|patch| matches!(patch, Patch::CutWhole(0)))
    }

    /// Returns the network header, and the bytes from the BTH to the ICRC.
    /// Unless the packet sets other values, it is addressed to `qpn` with `net`.
    pub(crate) fn render(&self, net: NetHeader, qpn: Qpn) -> (NetHeader, Vec<u8>) {
        let mut net = NetHeader {
            src: self.src.unwrap_or(net.src),
            dst: self.dst.unwrap_or(net.dst),
            src_port: self.src_port.unwrap_or(net.src_port),
            id: self.id.unwrap_or(net.id),
            tos: self.tos,
            ..net
        };
        if net.dst.is_ipv6() {
            net.id = IpId::Absent;
        }
        let base = if self.is_response() { SQ_PSN } else { RQ_PSN };
        let psn = Psn::new(base.wrapping_add_signed(self.psn));
        let mut bth = Bth::new(self.opcode, self.qpn.map_or(qpn, Qpn::from_wire), psn);
        bth.ack_req = self.ack_req;
        bth.solicited = self.solicited;
        if let Some(pkey) = self.pkey {
            bth.pkey = Pkey::new(pkey);
        }
        let payload = pattern(self.payload);
        let repr = PacketRepr { bth, ext: self.ext, payload: &payload, pad_bytes: [0; 3] };
        let mut bytes = Vec::new();
        emit::repr(&net, &mut bytes, &repr);
        for patch in &self.patches {
            let body = bytes.len() - icrc::LEN;
            match *patch {
                Patch::Bits(at, mask, value) => bytes[at] = bytes[at] & !mask | value & mask,
                Patch::Cut(len) => bytes.truncate(len + icrc::LEN),
                Patch::Append(len) => bytes.resize(body + len + icrc::LEN, 0),
                Patch::CutWhole(_) | Patch::Damage(_) => {}
            }
        }
        bytes.truncate(bytes.len() - icrc::LEN);
        icrc::append(&net, &mut bytes, 0);
        for patch in &self.patches {
            match *patch {
                Patch::CutWhole(len) => bytes.truncate(len),
                Patch::Damage(at) => {
                    let at = at.min(bytes.len() - 1);
                    bytes[at] ^= 0x01;
                }
                _ => {}
            }
        }
        (net, bytes)
    }
}

/// The packet as it is written in the catalogue.
impl fmt::Display for Pkt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:+}", rxe_lab::words::opcode(self.opcode), self.psn)?;
        if self.payload > 0 {
            write!(f, ", {} B", self.payload)?;
        }
        let at = self.ext.reth.map(|r| (r.va, Some(r.dma_len)));
        if let Some((va, len)) = at.or(self.ext.atomic.map(|a| (a.va, None))) {
            match va.wrapping_sub(BASE) {
                offset if offset < 1 << 32 => write!(f, ", at +0x{offset:x}")?,
                _ => write!(f, ", at 0x{va:x}")?,
            }
            if let Some(len) = len.filter(|&len| len as usize != self.payload) {
                write!(f, ", RETH length {len}")?;
            }
        }
        if self.ack_req {
            f.write_str(", AckReq")?;
        }
        if self.solicited {
            f.write_str(", SE")?;
        }
        for note in &self.notes {
            write!(f, ", {note}")?;
        }
        Ok(())
    }
}
