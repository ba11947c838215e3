//! The packets of the peer: some near what the engine expects, others not.

use rxe_core::qp::QpType;
use rxe_core::types::{Key, Psn, Qkey, Qpn};
use rxe_core::wire::{
    Aeth, AtomicEth, Bth, Deth, Ext, Feth, Frame, IpId, NetHeader, OpInfo, OpKind, Opcode,
    PacketRepr, Position, Reth, SendExtra, Service, Syndrome, emit, icrc,
};

use super::world::{Area, GROUP, LEN, MTU, OWN, PEER, QKEY, SRQ, WINDOWS, World};
use crate::fuzz::input::Input;

/// A packet, or several packets of one size that arrive as one buffer.
pub(super) struct Arrival {
    net: NetHeader,
    bytes: Vec<u8>,
    segment: usize,
}

impl Arrival {
    pub(super) fn frame(&self) -> Frame<'_> {
        Frame { segment: self.segment.max(1), ..Frame::single(self.net, &self.bytes) }
    }
}

impl World {
    /// Returns one packet, which may be damaged.
    pub(super) fn packet(&mut self, input: &mut Input<'_>) -> Arrival {
        let index = input.index(self.targets.len());
        let info = opcode(input, self.targets[index].service);
        let net = net(input);
        let payload_len = if info.has_payload { payload_len(input) } else { 0 };
        let mut ext = ext(input, info, payload_len);
        let target = &mut self.targets[index];
        let psn = if info.is_request {
            target.theirs
        } else {
            target.ours[input.index(target.ours.len())]
        };
        let offset = input.pick(&[0, 0, 0, 0, 0, 1, 2, -1, -2, 3, -8, 40, 0x7f_ffff, -0x80_0000]);
        let psn = moved(psn, offset);
        if info.is_request && offset == 0 {
            // Assumes that the request is executed. An answer of the engine corrects this PSN.
            let packets = ext.reth.filter(|_| info.kind == OpKind::ReadRequest);
            let packets = packets.map_or(1, |reth| reth.dma_len.div_ceil(MTU as u32).clamp(1, 64));
            target.theirs = psn.add(packets);
        }
        let mut dest_qp = target.qpn;
        let mut net = net;
        if input.chance(6) {
            dest_qp = input.pick(&[Qpn::MULTICAST, Qpn::GSI, Qpn::SMI, Qpn::from_wire(0x999)]);
            net.dst = GROUP;
        }
        if input.chance(6) {
            ext.deth = ext.deth.map(|_| Deth::new(Qkey::new(input.word()), Qpn::from_wire(1)));
        }
        let bth = Bth {
            solicited: input.chance(64),
            ack_req: !input.chance(64),
            ..Bth::new(info.opcode, dest_qp, psn)
        };
        let payload = vec![input.byte(); payload_len];
        let mut bytes = Vec::new();
        emit::repr(
            &net,
            &mut bytes,
            &PacketRepr { bth, ext, payload: &payload, pad_bytes: [0; 3] },
        );
        if input.chance(40) {
            spoil(input, &net, &mut bytes);
        }
        if input.chance(64) {
            net.id = IpId::Hidden;
        }
        Arrival { net, segment: bytes.len(), bytes }
    }

    /// Delivers a SEND or WRITE of several packets, one of which may be missing or come twice.
    pub(super) fn message(&mut self, input: &mut Input<'_>) {
        let index = input.pick(&[0, 1, 2, 4]);
        let service = match self.targets[index].service {
            QpType::Uc => Service::Uc,
            QpType::XrcRecv => Service::Xrc,
            _ => Service::Rc,
        };
        let last = input.within(0..=5);
        let missing = input.chance(64).then(|| input.within(0..=last));
        let twice = input.chance(32).then(|| input.within(0..=last));
        let write = input.chance(128);
        let extra = input.pick(&[SendExtra::None, SendExtra::Immediate, SendExtra::Invalidate]);
        let tail = input.pick(&[8, 256, 1, 0, 255]);
        let total = last * MTU as u32 + tail as u32;
        let net = net(input);
        let reth = Reth { dma_len: total, ..reth(input, 0) };
        for i in 0..=last {
            let position = Position::of(i, last + 1);
            let opcode = if write {
                Opcode::write(service, position, extra == SendExtra::Immediate)
            } else {
                Opcode::send(service, position, extra)
            };
            let Some(info) = opcode.and_then(Opcode::info) else { return };
            let target = &mut self.targets[index];
            let psn = target.theirs;
            target.theirs = psn.next();
            if missing == Some(i) {
                continue;
            }
            let len = if i == last { tail } else { MTU };
            let ext = Ext { reth: info.has_reth.then_some(reth), ..ext(input, info, len) };
            let bth = Bth { ack_req: i == last, ..Bth::new(info.opcode, target.qpn, psn) };
            let payload = vec![i as u8; len];
            let repr = PacketRepr { bth, ext, payload: &payload, pad_bytes: [0; 3] };
            let mut bytes = Vec::new();
            emit::repr(&net, &mut bytes, &repr);
            for _ in 0..if twice == Some(i) { 2 } else { 1 } {
                self.arrive(&Frame::single(net, &bytes));
            }
        }
    }

    /// Delivers several packets in one buffer, as `UDP_GRO` does, of one size or not.
    pub(super) fn merged(&mut self, input: &mut Input<'_>) {
        let mut all: Option<Arrival> = None;
        for _ in 0..input.within(1..=8) {
            let one = self.packet(input);
            match &mut all {
                None => all = Some(one),
                Some(all) => all.bytes.extend(one.bytes),
            }
        }
        let mut all = all.expect("at least one");
        if input.chance(16) {
            all.segment = usize::from(input.byte());
        }
        self.arrive(&all.frame());
    }
}

fn opcode(input: &mut Input<'_>, service: QpType) -> &'static OpInfo {
    let service = match service {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::Ud => Service::Ud,
        QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
    };
    let any = input.chance(8);
    let fits = |info: &&OpInfo| any || info.service == service || info.service == Service::Cnp;
    let fitting: Vec<_> = Opcode::all().filter(fits).collect();
    input.pick(&fitting)
}

fn net(input: &mut Input<'_>) -> NetHeader {
    let mut net = NetHeader::outgoing(PEER, OWN, 0xc123);
    match input.byte() {
        // ECN: "congestion experienced".
        1..=30 => net.tos = 0b11,
        31..=40 => net.tos = 0b10,
        41..=44 => net.src = GROUP,
        45..=48 => net.dst = PEER,
        _ => {}
    }
    net
}

fn payload_len(input: &mut Input<'_>) -> usize {
    match input.byte() {
        0..=99 => input.pick(&[8, MTU, 0, 1, MTU - 1, MTU + 1, 3, 100]),
        n => usize::from(n),
    }
}

fn reth(input: &mut Input<'_>, payload_len: usize) -> Reth {
    let area =
        input.pick(&[Area::Open, Area::Victim, Area::ReadOnly, Area::Foreign, Area::Windowed]);
    let at = input.pick(&[0, 0, 0, 400, 8, 1, LEN - 8, LEN, LEN - 256, 1200]);
    let va = match input.byte() {
        0..=239 => area.base() + at,
        240..=250 => u64::MAX - at,
        _ => input.bits(),
    };
    let rkey = match input.byte() {
        0..=190 => area.key(),
        191..=250 => input.pick(&WINDOWS),
        _ => Key::new(input.word()),
    };
    let whole = payload_len as u32;
    let dma_len = match input.byte() {
        0..=150 => whole,
        151..=240 => input.pick(&[600, 256, 257, LEN as u32, 1, 0, 2 * MTU as u32]),
        241..=250 => input.pick(&[1 << 31, u32::MAX, (1 << 31) + 1]),
        _ => input.word(),
    };
    Reth { va, rkey, dma_len }
}

fn ext(input: &mut Input<'_>, info: &OpInfo, payload_len: usize) -> Ext {
    let syndromes = [0x00, 0x1f, 0x1f, 0x20, 0x21, 0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x40, 0x80];
    Ext {
        reth: info.has_reth.then(|| reth(input, payload_len)),
        aeth: info.has_aeth.then(|| Aeth {
            syndrome: Syndrome::from_byte(input.pick(&syndromes)),
            msn: u32::from(input.byte()),
        }),
        atomic: info.has_atomic.then(|| {
            let Reth { va, rkey, .. } = reth(input, 8);
            AtomicEth { va, rkey, swap_add: input.bits(), compare: 0x5a5a_5a5a_5a5a_5a5a }
        }),
        atomic_ack: info.has_atomic_ack.then_some(7),
        imm: info.has_imm.then_some(9),
        ieth: info
            .has_ieth
            .then(|| input.pick(&[WINDOWS[1], WINDOWS[0], Area::Open.key()]).value()),
        deth: info.has_deth.then(|| Deth::new(QKEY, Qpn::from_wire(0x203))),
        xrc_srq: info.has_xrceth.then(|| input.pick(&[SRQ, SRQ, SRQ, 8, 0xff00_0007])),
        feth: info
            .has_feth
            .then(|| Feth::parse(&[0, 0, 0, input.pick(&[1, 0, 2, 3, 0x11, 0x21, 0x31])])),
        cnp: None,
    }
}

/// Changes some bits, the length or the ICRC.
fn spoil(input: &mut Input<'_>, net: &NetHeader, bytes: &mut Vec<u8>) {
    for _ in 0..input.within(0..=3) {
        let at = input.index(bytes.len());
        bytes[at] = input.byte();
    }
    if input.chance(32) {
        bytes.truncate(input.index(bytes.len()));
    }
    if let Some(body) = bytes.len().checked_sub(icrc::LEN)
        && !input.chance(16)
    {
        bytes.truncate(body);
        icrc::append(net, bytes, 0);
    }
}

/// Returns the PSN that is `by` after `psn`, or before it if `by` is negative.
fn moved(psn: Psn, by: i32) -> Psn {
    if by < 0 { psn.sub(by.unsigned_abs()) } else { psn.add(by.unsigned_abs()) }
}
