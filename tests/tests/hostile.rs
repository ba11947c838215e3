//! Packets of a stranger or a broken peer. Each kind is dropped and counted with its reason, or
//! refused with the specification's NAK. No packet causes a panic or changes memory without
//! permission.

#![expect(clippy::cast_possible_truncation, reason = "test bytes and small lengths")]

use std::net::{IpAddr, Ipv4Addr};

use rxe_core::engine::Event;
use rxe_core::mem::Buffer;
use rxe_core::qp::QpState;
use rxe_core::queue::{Remote, SendOp, Sge, Status};
use rxe_core::types::{Key, Mtu, Pkey, Psn, Qpn};
use rxe_core::wire::{
    Aeth, AtomicEth, Bth, DropReason, Ext, Feth, NakCode, Opcode, PacketRepr, Reth, Syndrome, icrc,
};
use rxe_tests::lone::{End, Place, Said};
use rxe_tests::sim::memory::{Area, Arena, Layout};
use rxe_tests::sim::rng::Rng;

const OWN: Place = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 0x11);
const PEER: Place = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 0x22);
const START: Psn = Psn::new(0xff_fff0);
const ANSWERS: Psn = Psn::new(0x00_1000);
const KEY: Key = Key::new(0x1234_5600);
const BASE: u64 = 0x7000_0000_0000;
const LEN: usize = 8192;

/// Creates a queue pair that expects [`START`] next. It has 8 KiB of zeros with all rights for the
/// peer, and a receive of 1,000 bytes in the upper half.
fn target() -> (End, Buffer) {
    let end = End::new(OWN, PEER, Mtu::M1024, (ANSWERS, START));
    let memory = end.register(KEY, BASE, LEN);
    end.receive(1, Sge { addr: BASE + 4096, length: 1000, lkey: KEY });
    (end, memory)
}

fn header(opcode: Opcode) -> Bth {
    Bth { ack_req: true, ..Bth::new(opcode, Qpn::from_wire(OWN.1), START) }
}

fn packet<'p>(opcode: Opcode, ext: Ext, payload: &'p [u8]) -> PacketRepr<'p> {
    PacketRepr { bth: header(opcode), ext, payload, pad_bytes: [0; 3] }
}

fn reth(va: u64, len: usize) -> Ext {
    let reth = Reth { va, rkey: KEY, dma_len: len as u32 };
    Ext { reth: Some(reth), ..Ext::default() }
}

/// Returns a valid WRITE of 100 bytes.
fn write(payload: &[u8]) -> PacketRepr<'_> {
    packet(Opcode::RC_WRITE_ONLY, reth(BASE, payload.len()), payload)
}

/// Checks that the engine drops the packet for this reason, sends nothing, and changes no byte.
fn is_dropped(end: &mut End, memory: &Buffer, said: &Said, reason: DropReason) {
    let before = end.engine.counters().dropped(reason);
    end.take(said);
    assert_eq!(end.engine.counters().dropped(reason), before + 1, "{:?}", end.events());
    let dropped = |event: &Event| matches!(event, Event::Dropped { reason: r, .. } if *r == reason);
    assert!(end.events().iter().all(dropped));
    assert_eq!(end.sent().len(), 0);
    assert_eq!(bytes(memory), [0; LEN]);
    assert_eq!(end.qp.state(), QpState::Rts);
}

/// Checks that the engine refuses the packet with this NAK, and changes no byte.
#[track_caller]
fn is_refused(end: &mut End, memory: &Buffer, said: &Said, code: NakCode) {
    end.take(said);
    let answers = end.sent();
    assert_eq!(answers.len(), 1, "{:?}", end.events());
    let answer = answers[0].packet();
    assert_eq!(answer.aeth().map(|aeth| aeth.syndrome), Some(Syndrome::Nak(code)));
    assert_eq!(answer.psn(), START);
    assert_eq!(bytes(memory), [0; LEN]);
    let fatal = code != NakCode::PsnSequenceError;
    assert_eq!(end.qp.state() == QpState::Err, fatal);
}

fn bytes(memory: &Buffer) -> [u8; LEN] {
    let mut all = [0; LEN];
    memory.span(0, LEN as u64).unwrap().read(&mut all).unwrap();
    all
}

#[test]
fn what_the_tests_spoil_is_good_unspoiled() {
    let (mut end, memory) = target();
    end.take(&end.said(&write(&[7; 100])));
    assert_eq!(end.sent().len(), 1);
    assert_eq!(bytes(&memory)[..101], [[7; 100].as_slice(), &[0]].concat());
}

#[test]
fn truncated_frames() {
    let (mut end, memory) = target();
    let whole = end.said(&write(&[7; 100]));
    for len in 0..whole.bytes.len() {
        let said = Said { bytes: whole.bytes[..len].to_vec(), ..whole };
        // The length is not a multiple of 4, or too short for the headers, or the ICRC is wrong.
        let reason = match len {
            0..32 => DropReason::Truncated,
            _ if len % 4 != 0 => DropReason::BadLength,
            _ => DropReason::IcrcMismatch,
        };
        is_dropped(&mut end, &memory, &said, reason);
    }
}

#[test]
fn wrong_icrc() {
    let (mut end, memory) = target();
    let whole = end.said(&write(&[7; 100]));
    for at in 28..whole.bytes.len() {
        let mut said = whole.clone();
        said.bytes[at] ^= 0x10;
        is_dropped(&mut end, &memory, &said, DropReason::IcrcMismatch);
    }
}

#[test]
fn an_icrc_made_for_other_addresses() {
    let (mut end, memory) = target();
    let mut net = end.from_peer();
    net.src_port ^= 1;
    let said = Said { net: end.from_peer(), ..Said::new(net, &write(&[7; 100])) };
    is_dropped(&mut end, &memory, &said, DropReason::IcrcMismatch);
}

#[test]
fn wrong_version() {
    let (mut end, memory) = target();
    for tver in 1..16 {
        let mut repr = write(&[7; 100]);
        repr.bth.tver = tver;
        let said = end.said(&repr);
        is_dropped(&mut end, &memory, &said, DropReason::BadVersion);
    }
}

/// Returns the valid WRITE with another opcode byte and a correct ICRC.
fn with_opcode(end: &End, opcode: u8) -> Said {
    let mut said = end.said(&write(&[7; 100]));
    said.bytes[0] = opcode;
    fix_icrc(&mut said);
    said
}

fn fix_icrc(said: &mut Said) {
    let Some(body) = said.bytes.len().checked_sub(4) else { return };
    said.bytes.truncate(body);
    icrc::append(&said.net, &mut said.bytes, 0);
}

#[test]
fn unknown_opcodes() {
    let (mut end, memory) = target();
    let unknown = (0..=255).filter(|&code| Opcode(code).info().is_none());
    for code in unknown {
        let said = with_opcode(&end, code);
        is_dropped(&mut end, &memory, &said, DropReason::UnknownOpcode);
    }
}

#[test]
fn opcodes_of_other_services() {
    let (mut end, memory) = target();
    for code in [Opcode::UD_SEND_ONLY, Opcode(0x24), Opcode(0x2a)] {
        let said = with_opcode(&end, code.0);
        is_dropped(&mut end, &memory, &said, DropReason::WrongService);
    }
}

#[test]
fn queue_pairs_that_are_not_there() {
    let (mut end, memory) = target();
    for (qpn, reason) in [
        (0, DropReason::QpnZero),
        (1, DropReason::UnknownQp),
        (0x12, DropReason::UnknownQp),
        (0xff_fffe, DropReason::UnknownQp),
        (0xff_ffff, DropReason::BadMulticast),
    ] {
        let mut repr = write(&[7; 100]);
        repr.bth.dest_qp = Qpn::from_wire(qpn);
        let said = end.said(&repr);
        is_dropped(&mut end, &memory, &said, reason);
    }
}

#[test]
fn wrong_source_address() {
    let (mut end, memory) = target();
    let mut net = end.from_peer();
    net.src = Ipv4Addr::new(10, 0, 0, 3).into();
    is_dropped(&mut end, &memory, &Said::new(net, &write(&[7; 100])), DropReason::WrongSource);
}

#[test]
fn wrong_p_key() {
    let (mut end, memory) = target();
    for pkey in [0, 1, 0x7ffe, 0x8001, 0xfffe] {
        let mut repr = write(&[7; 100]);
        repr.bth.pkey = Pkey::new(pkey);
        let said = end.said(&repr);
        is_dropped(&mut end, &memory, &said, DropReason::WrongPkey);
    }
}

#[test]
fn a_psn_far_ahead_is_a_gap_reported_once() {
    for ahead in [1, 2, 1000, (1 << 23) - 1] {
        let (mut end, memory) = target();
        let mut repr = write(&[7; 100]);
        repr.bth.psn = START.add(ahead);
        let said = end.said(&repr);
        is_refused(&mut end, &memory, &said, NakCode::PsnSequenceError);
        end.events();
        is_dropped(&mut end, &memory, &said, DropReason::GapAlreadyReported);
    }
}

#[test]
fn a_psn_far_behind_is_acknowledged_again_and_not_carried_out() {
    let (mut end, memory) = target();
    for behind in [1, 2, 1000, 1 << 23] {
        let mut repr = write(&[7; 100]);
        repr.bth.psn = START.sub(behind);
        let said = end.said(&repr);
        end.take(&said);
        let answers = end.sent();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].packet().psn(), START.sub(1));
        assert_eq!(bytes(&memory), [0; LEN]);
    }
    for repr in [
        packet(Opcode::RC_READ_REQUEST, reth(BASE, 100), &[]),
        packet(Opcode::RC_FETCH_ADD, atomic(BASE), &[]),
    ] {
        let mut repr = repr;
        repr.bth.psn = START.sub(5);
        let said = end.said(&repr);
        is_dropped(&mut end, &memory, &said, DropReason::DuplicateUnanswerable);
    }
}

fn atomic(va: u64) -> Ext {
    let atomic = AtomicEth { va, rkey: KEY, swap_add: 1, compare: 0 };
    Ext { atomic: Some(atomic), ..Ext::default() }
}

#[test]
fn lengths_that_contradict_opcode_mtu_or_reth() {
    let full = [7; 1024];
    let imm = Some(1);
    let cases: &[(&str, PacketRepr<'_>)] = &[
        (
            "a RETH longer than a WRITE ONLY",
            packet(Opcode::RC_WRITE_ONLY, reth(BASE, 101), &full[..100]),
        ),
        (
            "a RETH shorter than a WRITE ONLY",
            packet(Opcode::RC_WRITE_ONLY, reth(BASE, 99), &full[..100]),
        ),
        ("a RETH of 4 GiB", packet(Opcode::RC_WRITE_FIRST, reth(BASE, 0xffff_ffff), &full)),
        (
            "a WRITE FIRST below the MTU",
            packet(Opcode::RC_WRITE_FIRST, reth(BASE, 2000), &full[..1000]),
        ),
        ("a WRITE FIRST that is all", packet(Opcode::RC_WRITE_FIRST, reth(BASE, 1024), &full)),
        ("a WRITE FIRST that is too much", packet(Opcode::RC_WRITE_FIRST, reth(BASE, 1000), &full)),
        ("a WRITE ONLY above the MTU", packet(Opcode::RC_WRITE_ONLY, reth(BASE, 1025), &[7; 1025])),
        ("a SEND ONLY above the MTU", packet(Opcode::RC_SEND_ONLY, Ext::default(), &[7; 1025])),
        ("a SEND FIRST below the MTU", packet(Opcode::RC_SEND_FIRST, Ext::default(), &full[..4])),
        ("a SEND FIRST without payload", packet(Opcode::RC_SEND_FIRST, Ext::default(), &[])),
        ("a READ of 4 GiB", packet(Opcode::RC_READ_REQUEST, reth(BASE, 0xffff_ffff), &[])),
        (
            "a WRITE ONLY WITH IMMEDIATE that is too short",
            packet(Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, Ext { imm, ..reth(BASE, 9) }, &full[..8]),
        ),
    ];
    for (what, repr) in cases {
        println!("{what}");
        let (mut end, memory) = target();
        let said = end.said(repr);
        is_refused(&mut end, &memory, &said, NakCode::InvalidRequest);
    }
}

#[test]
fn a_send_longer_than_the_receive_posted_for_it() {
    let (mut end, memory) = target();
    let said = end.said(&packet(Opcode::RC_SEND_ONLY, Ext::default(), &[7; 1001]));
    is_refused(&mut end, &memory, &said, NakCode::InvalidRequest);
    assert_eq!(end.completions()[0].status, Status::LocalLength);
}

#[test]
fn a_pad_larger_than_the_payload_and_a_payload_where_none_belongs() {
    let (mut end, memory) = target();
    let mut said = end.said(&write(&[]));
    said.bytes[1] |= 0x10;
    fix_icrc(&mut said);
    is_dropped(&mut end, &memory, &said, DropReason::BadPad);

    let mut said = end.said(&packet(Opcode::RC_READ_REQUEST, reth(BASE, 100), &[]));
    said.bytes.extend([0; 8]);
    fix_icrc(&mut said);
    is_dropped(&mut end, &memory, &said, DropReason::UnexpectedPayload);
}

#[test]
fn middles_and_lasts_that_continue_nothing() {
    let imm = Ext { imm: Some(1), ..Ext::default() };
    for (opcode, ext) in [
        (Opcode::RC_SEND_MIDDLE, Ext::default()),
        (Opcode::RC_SEND_LAST, Ext::default()),
        (Opcode::RC_SEND_LAST_WITH_IMMEDIATE, imm),
        (Opcode::RC_WRITE_MIDDLE, Ext::default()),
        (Opcode::RC_WRITE_LAST, Ext::default()),
        (Opcode::RC_WRITE_LAST_WITH_IMMEDIATE, imm),
    ] {
        let (mut end, memory) = target();
        let said = end.said(&packet(opcode, ext, &[7; 1024]));
        is_refused(&mut end, &memory, &said, NakCode::InvalidRequest);
    }
}

#[test]
fn a_message_in_the_middle_of_another() {
    for opcode in [Opcode::RC_SEND_ONLY, Opcode::RC_SEND_MIDDLE, Opcode::RC_READ_REQUEST] {
        let (mut end, _) = target();
        end.take(&end.said(&packet(Opcode::RC_WRITE_FIRST, reth(BASE, 2048), &[0; 1024])));
        end.sent();
        let ext = if opcode == Opcode::RC_READ_REQUEST { reth(BASE, 8) } else { Ext::default() };
        let payload: &[u8] = if opcode == Opcode::RC_READ_REQUEST { &[] } else { &[7; 1024] };
        let mut repr = packet(opcode, ext, payload);
        repr.bth.psn = START.next();
        end.take(&end.said(&repr));
        let answer = end.sent().remove(0);
        let syndrome = answer.packet().aeth().unwrap().syndrome;
        assert_eq!(syndrome, Syndrome::Nak(NakCode::InvalidRequest), "{opcode}");
    }
}

#[test]
fn memory_that_the_peer_may_not_touch() {
    let wrong = |ext: Ext| {
        let reth = ext.reth.map(|reth| Reth { rkey: Key::new(reth.rkey.value() ^ 0x100), ..reth });
        Ext { reth, ..ext }
    };
    let end_of_all = u64::MAX - 50;
    for ext in [
        wrong(reth(BASE, 100)),
        reth(BASE - 1, 100),
        reth(BASE + LEN as u64 - 99, 100),
        reth(BASE + LEN as u64, 100),
        reth(0, 100),
        reth(end_of_all, 100),
        reth(u64::MAX, 100),
    ] {
        for opcode in [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST] {
            let (mut end, memory) = target();
            let payload: &[u8] = if opcode == Opcode::RC_WRITE_ONLY { &[7; 100] } else { &[] };
            let said = end.said(&packet(opcode, ext, payload));
            is_refused(&mut end, &memory, &said, NakCode::RemoteAccessError);
        }
    }
    // The whole range is checked, not only the bytes of this packet.
    let (mut end, memory) = target();
    let beyond = reth(BASE + LEN as u64 - 2048, 4096);
    let said = end.said(&packet(Opcode::RC_WRITE_FIRST, beyond, &[7; 1024]));
    is_refused(&mut end, &memory, &said, NakCode::RemoteAccessError);
}

#[test]
fn atomics_that_are_misaligned_or_out_of_bounds() {
    for (va, code) in [
        (BASE + 4, NakCode::InvalidRequest),
        (BASE + LEN as u64, NakCode::RemoteAccessError),
        (BASE - 8, NakCode::RemoteAccessError),
        (u64::MAX - 7, NakCode::RemoteAccessError),
    ] {
        let (mut end, memory) = target();
        let said = end.said(&packet(Opcode::RC_FETCH_ADD, atomic(va), &[]));
        is_refused(&mut end, &memory, &said, code);
    }
}

#[test]
fn answers_to_what_was_never_asked() {
    let (mut end, memory) = target();
    let ack = |syndrome| Ext { aeth: Some(Aeth { syndrome, msn: 0 }), ..Ext::default() };
    for syndrome in [Syndrome::ACK, Syndrome::Nak(NakCode::RemoteAccessError)] {
        for psn in [ANSWERS, ANSWERS.add(1000), ANSWERS.add((1 << 23) - 1)] {
            let mut repr = packet(Opcode::RC_ACKNOWLEDGE, ack(syndrome), &[]);
            repr.bth.psn = psn;
            let said = end.said(&repr);
            is_dropped(&mut end, &memory, &said, DropReason::GhostAck);
        }
        let mut repr = packet(Opcode::RC_ACKNOWLEDGE, ack(syndrome), &[]);
        repr.bth.psn = ANSWERS.sub(1);
        let said = end.said(&repr);
        is_dropped(&mut end, &memory, &said, DropReason::StaleResponse);
    }
}

/// Creates a queue pair with an outstanding READ of 100 bytes.
fn reader() -> (End, Buffer) {
    let (mut end, memory) = target();
    let remote = Remote { addr: 0x5000, rkey: Key::new(9) };
    end.send(SendOp::Read { remote }, Sge { addr: BASE, length: 100, lkey: KEY });
    assert_eq!(end.sent().len(), 1);
    (end, memory)
}

#[test]
fn read_data_of_the_wrong_length() {
    for len in [0, 99, 101, 1024, 1025] {
        let (mut end, memory) = reader();
        let data = vec![7; len];
        let aeth = Ext { aeth: Some(Aeth::ack(1)), ..Ext::default() };
        let mut repr = packet(Opcode::RC_READ_RESPONSE_ONLY, aeth, &data);
        repr.bth.psn = ANSWERS;
        end.take(&end.said(&repr));
        assert_eq!(end.completions()[0].status, Status::BadResponse, "{len}");
        assert_eq!(bytes(&memory), [0; LEN]);
    }
}

#[test]
fn an_answer_of_another_kind_than_the_request() {
    let (mut end, memory) = reader();
    let ext = Ext { aeth: Some(Aeth::ack(1)), atomic_ack: Some(7), ..Ext::default() };
    let mut repr = packet(Opcode::RC_ATOMIC_ACKNOWLEDGE, ext, &[]);
    repr.bth.psn = ANSWERS;
    let said = end.said(&repr);
    is_dropped(&mut end, &memory, &said, DropReason::UnexpectedResponse);
}

#[test]
fn a_reserved_syndrome() {
    let (mut end, memory) = reader();
    for byte in [0x40, 0x65, 0x7f, 0x80, 0xff] {
        let syndrome = Syndrome::from_byte(byte);
        assert_eq!(syndrome, Syndrome::Reserved(byte));
        let ext = Ext { aeth: Some(Aeth { syndrome, msn: 0 }), ..Ext::default() };
        let mut repr = packet(Opcode::RC_ACKNOWLEDGE, ext, &[]);
        repr.bth.psn = ANSWERS;
        let said = end.said(&repr);
        is_dropped(&mut end, &memory, &said, DropReason::ReservedSyndrome);
    }
}

/// A queue pair, memory of which a peer may change only parts, and the initial contents of that
/// memory.
struct Fortress {
    end: End,
    layout: Layout,
    arena: Arena,
    before: Vec<u8>,
}

impl Fortress {
    fn new(rng: &mut Rng) -> Self {
        let end = End::new(OWN, PEER, Mtu::M256, (ANSWERS, START));
        let mut layout = Layout::new(rng);
        for area in Area::ALL {
            layout.allocate(rng, area, 2000, 1);
        }
        let before = layout.initial();
        let arena = Arena::new(&layout, &before, &end.memory);
        Self { end, layout, arena, before }
    }

    /// Returns a packet that could come from the peer.
    fn plausible(&self, rng: &mut Rng) -> Said {
        let all: Vec<_> = Opcode::all().collect();
        let rc: Vec<_> = all.iter().filter(|info| info.opcode.0 < 0x20).collect();
        let info = rng.pick(&rc);
        let area = rng.pick(&Area::ALL);
        let whole = self.layout.area_range(area).len() as u64;
        let va = self.layout.start(area) + rng.below(whole + 16);
        let len = rng.pick(&[0, 1, 8, 255, 256, 257, 600, 1 << 20]);
        let rkey = self.layout.key(area);
        let payload_len = if info.has_payload { rng.pick(&[0, 1, 8, 255, 256, 257]) } else { 0 };
        let payload: Vec<u8> = (0..payload_len).map(|_| rng.word() as u8).collect();
        let ext = Ext {
            reth: info.has_reth.then_some(Reth { va, rkey, dma_len: len }),
            aeth: info.has_aeth.then(|| Aeth {
                syndrome: Syndrome::from_byte(rng.pick(&[0, 0x1f, 0x21, 0x60, 0x61, 0x62, 0x80])),
                msn: rng.below32(8),
            }),
            atomic: info.has_atomic.then_some(AtomicEth {
                va: va & !7,
                rkey,
                swap_add: rng.bits(),
                compare: rng.bits(),
            }),
            atomic_ack: info.has_atomic_ack.then(|| rng.bits()),
            imm: info.has_imm.then(|| rng.word()),
            ieth: info.has_ieth.then_some(rkey.value()),
            feth: info.has_feth.then(|| Feth::parse(&rng.word().to_be_bytes())),
            deth: None,
            xrc_srq: None,
            cnp: None,
        };
        // The PSN is near the expected one, for requests and for responses.
        let from = if info.is_request { START } else { ANSWERS };
        let psn = from.add(rng.pick(&[0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 40])).sub(rng.pick(&[0, 0, 5]));
        let bth = Bth {
            ack_req: rng.chance(1, 2),
            solicited: rng.chance(1, 2),
            ..Bth::new(info.opcode, Qpn::from_wire(OWN.1), psn)
        };
        self.end.said(&PacketRepr { bth, ext, payload: &payload, pad_bytes: [0; 3] })
    }

    /// Checks that only memory that the peer may change has changed.
    fn stands(&self) {
        let mut now = vec![0; self.before.len()];
        self.arena.read(0, &mut now);
        let mut want = self.before.clone();
        for area in [Area::Open, Area::Victim] {
            let range = self.layout.area_range(area);
            want[range.clone()].copy_from_slice(&now[range]);
        }
        // READ data and receives are in the open area.
        assert!(now == want, "bytes changed that the peer may not change");
    }

    /// Posts a receive and a request on the queue pair.
    fn work(&mut self, rng: &mut Rng) {
        let lkey = self.layout.key(Area::Open);
        let addr = self.layout.start(Area::Open);
        let sge = |length| Sge { addr, length, lkey };
        let remote = Remote { addr: 0x9000, rkey: Key::new(0x900) };
        for id in 0..4 {
            self.end.receive(id, sge(rng.pick(&[0, 8, 300, 1000])));
        }
        self.end.send(SendOp::Read { remote }, sge(600));
        self.end.send(SendOp::FetchAdd { remote, add: 1 }, sge(8));
        self.end.send(SendOp::Write { remote, imm: None }, sge(300));
        self.end.sent();
    }
}

#[test]
fn arbitrary_bytes_are_each_dropped_under_a_reason() {
    let mut rng = Rng::new(1);
    let mut fortress = Fortress::new(&mut rng);
    fortress.work(&mut rng);
    for round in 0..20_000 {
        let len = rng.index(200);
        let mut said = Said {
            net: fortress.end.from_peer(),
            bytes: (0..len).map(|_| rng.word() as u8).collect(),
        };
        if rng.chance(1, 2) && len >= 12 {
            // This makes the packet pass the first checks.
            said.bytes[0] &= 0x1f;
            said.bytes[1] &= 0xf0;
            said.bytes[2..4].fill(0xff);
            said.bytes[5..8].copy_from_slice(&OWN.1.to_be_bytes()[1..]);
        }
        let before: u64 = fortress.end.engine.counters().drops().map(|(_, n)| n).sum();
        fortress.end.take(&said);
        let after: u64 = fortress.end.engine.counters().drops().map(|(_, n)| n).sum();
        assert_eq!(after, before + 1, "round {round}: {said:?}");
        assert!(fortress.end.sent().is_empty());
    }
    fortress.stands();
    assert_eq!(fortress.end.events().len(), 1024, "only the newest are kept");
}

#[test]
fn mutated_packets_with_a_right_icrc_do_no_harm() {
    let mut rng = Rng::new(2);
    let mut fortress = Fortress::new(&mut rng);
    let mut reached = [0; 4];
    for round in 0..30_000 {
        if round % 40 == 0 || fortress.end.qp.state() == QpState::Err {
            fortress.end.completions();
            fortress.end.renew();
            fortress.work(&mut rng);
        }
        let mut said = fortress.plausible(&mut rng);
        for _ in 0..rng.pick(&[0, 0, 1, 1, 3]) {
            let body = said.bytes.len() - 4;
            let (at, bit) = (rng.index(body), rng.below(8));
            said.bytes[at] ^= 1 << bit;
        }
        if rng.chance(1, 10) {
            said.bytes.truncate(4 + rng.index(said.bytes.len() - 4));
        }
        fix_icrc(&mut said);
        let before = fortress.end.engine.counters().clone();
        fortress.end.take(&said);
        if rng.chance(1, 4) {
            continue;
        }
        let answers = fortress.end.sent();
        // One packet can at most request a READ of the whole area. Outstanding requests may be
        // retransmitted too.
        assert!(answers.len() < 4 * 16 + 100, "{} packets for one", answers.len());
        let counters = fortress.end.engine.counters();
        let drops = |c: &rxe_core::engine::Counters| c.drops().map(|(_, n)| n).sum::<u64>();
        reached[0] += u64::from(drops(counters) > drops(&before));
        reached[1] += counters.naks_sent - before.naks_sent;
        reached[2] += counters.request_failed - before.request_failed;
        let is_good = |said: &Said| {
            let aeth = said.packet().aeth();
            aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
        };
        reached[3] += u64::from(answers.iter().any(is_good));
    }
    fortress.stands();
    println!("dropped, NAKed, failed, answered: {reached:?}");
    assert!(reached.iter().all(|&n| n > 100), "{reached:?}");
}
