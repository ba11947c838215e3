//! Fuzzes replays: a recording becomes a plan, and a peer answers the packets that the plan sends.
//!
//! The recording is a capture file, a scenario, or packets that the fuzzer creates. The peer
//! answers as recorded, differently, too early, twice, with any packet, or not at all.
//!
//! Invariants: sent packets have a correct ICRC unless the recorded one was wrong; the plan stays
//! within the peer's region; each reported difference is about an answer that was recorded or that
//! came. If a scenario is answered as its own engine did, there is no difference.

use std::collections::HashSet;
use std::iter;
use std::net::IpAddr;
use std::time::Duration;

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{
    Bth, Ethernet, NetHeader, OpInfo, OpKind, Opcode, Service, Syndrome, UDP_PORT, emit, icrc,
};
use rxe_lab::answer::{FirstPsns, Said, Seen};
use rxe_lab::capture::{LinkType, Reader, Start};
use rxe_lab::frame::{Content, Frame, Icrc, decode, decode_bytes};
use rxe_lab::replay::{
    Comparison, Difference, Expected, Plan, Receive, Recording, Region, Responder, Step, Target,
    Wanted,
};
use rxe_lab::scenario::{Bounds, generate};

use super::frame::ext;
use super::input::Input;

/// The most frames of a recording.
const MAX_FRAMES: usize = 300;

/// Small limits, so that the fuzzer tries many inputs.
const BOUNDS: Bounds = Bounds { frames: MAX_FRAMES, bytes: 1 << 18, memory: 1 << 18 };

/// The queue pair and address of the recorded requester, and of the responder.
const ENDS: [(u32, [u8; 4]); 2] = [(0x11, [10, 0, 0, 1]), (0x12, [10, 0, 0, 2])];

/// The live peer that the replay sends to.
const TARGET: Target = Target {
    qpn: Qpn::from_wire(0x77),
    own_qpn: Qpn::from_wire(0x88),
    first_psn: Psn::new(0xff_fff0),
    addr: 0x7000_0000,
    rkey: 0x1234,
};

/// A recording, and the numbers of its frames that have a wrong ICRC.
#[derive(Default)]
struct Made {
    recording: Recording,
    responders: Vec<Responder>,
    wrong: HashSet<u64>,
}

/// Takes options, the peer's decisions and a recording from the bytes, and replays the recording.
///
/// # Panics
/// If an invariant is violated.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte() % 3;
    let region = input.pick(&[1 << 16, 256, 1 << 12, 1 << 20]);
    let count = input.within(1..=300) as usize;
    let qp = input.byte();
    let len = usize::from(input.byte());
    let mut peer = Input::new(input.bytes(len));
    let Some(made) = (match kind {
        0 => captured(input.rest()),
        1 => described(input.rest()),
        _ => Some(packets(&mut input)),
    }) else {
        return;
    };
    let all = made.recording.conversations();
    let qp = match usize::from(qp) {
        0 => all.first().map(|ends| ends.qp),
        255 => None,
        at => Some(all.get(at % 4).map_or(ENDS[0].0, |ends| ends.qp)),
    };
    let Ok(conversation) = made.recording.choose(qp, &made.responders) else { return };
    let ends = conversation.ends;
    let responder = made.responders.iter().find(|it| it.qpn == ends.qp && it.engine.is_some());
    let wanted = Wanted { responder, count, region };
    let plan = match Plan::new(conversation, &wanted) {
        Ok(plan) => plan,
        Err(e) => {
            assert!(e.needed > e.has && e.has == region, "{e:?}");
            return;
        }
    };
    sound(&plan, &wanted);
    // An empty `peer` chooses the recorded answers, so the peer answers as the engine of the
    // scenario did.
    let is_same = kind == 1 && responder.is_some() && peer.is_empty();
    let differences = play(&plan, &made.wrong, &mut peer);
    assert!(!is_same || differences.is_empty(), "{differences:#?}");
}

/// Reads the bytes as a capture file.
fn captured(file: &[u8]) -> Option<Made> {
    let mut reader = Reader::new(file).ok()?;
    let (mut made, mut start) = (Made::default(), Start::default());
    while let Ok(Some(record)) = reader.next() {
        let since = start.since(&record);
        made.add(record.number, record.interface, since, &decode(&record));
        if record.number == MAX_FRAMES as u64 {
            break;
        }
    }
    Some(made)
}

/// Generates the packets of a scenario, which also describes the responder.
fn described(text: &[u8]) -> Option<Made> {
    let generated = generate(&String::from_utf8_lossy(text), BOUNDS).ok()?;
    let mut wrong = HashSet::new();
    for (number, frame) in (1..).zip(&generated.frames) {
        let frame = decode_bytes(LinkType::ETHERNET, &frame.bytes, frame.bytes.len());
        wrong.extend(has_wrong_icrc(&frame).then_some(number));
    }
    let (recording, responders) = generated.recording();
    Some(Made { recording, responders, wrong })
}

impl Made {
    fn add(&mut self, number: u64, interface: u32, since: Duration, frame: &Frame<'_>) {
        self.wrong.extend(has_wrong_icrc(frame).then_some(number));
        self.recording.add(number, interface, since, frame);
    }
}

fn has_wrong_icrc(frame: &Frame<'_>) -> bool {
    match &frame.content {
        Content::Rdma(packets) => packets.iter().any(|packet| packet.icrc == Icrc::Wrong),
        _ => false,
    }
}

/// Draws packets of one connection, with PSNs near the expected ones and addresses near each other.
fn packets(input: &mut Input<'_>) -> Made {
    let mut made = Made::default();
    let service = input.pick(&[Service::Rc, Service::Uc, Service::Ud, Service::Xrc]);
    let infos = |wanted: fn(&OpInfo) -> bool| -> Vec<_> {
        Opcode::all().filter(|info| info.service == service && wanted(info)).collect()
    };
    let requests = infos(|info| info.is_request);
    let answers = infos(|info| !info.is_request);
    let mut next = Psn::new(input.pick(&[0, 0xff_fffc, 0x10_0000]));
    let first = next;
    let mut since = Duration::ZERO;
    for number in 1..=MAX_FRAMES as u64 {
        if input.is_empty() {
            break;
        }
        let is_answer = input.chance(96) && !answers.is_empty();
        let info = input.pick(if is_answer { &answers } else { &requests });
        let psn = match input.byte() {
            far @ 0xf0.. => next + (u32::from(far) << 16),
            near => next + (u32::from(near % 8)).wrapping_sub(u32::from(near / 32)),
        };
        let (bytes, span) = packet(input, info, psn, is_answer);
        if !is_answer && psn == next {
            next = next + span;
        }
        since += Duration::from_micros(u64::from(input.byte()));
        let captured = if input.chance(8) { input.index(bytes.len()) } else { bytes.len() };
        let frame = decode_bytes(LinkType::ETHERNET, &bytes[..captured], bytes.len());
        made.add(number, 0, since, &frame);
    }
    made.responders.extend(input.chance(128).then(|| responder(input, first)));
    made
}

/// Draws a packet in its frame. Returns also how many PSNs the packet takes.
fn packet(input: &mut Input<'_>, info: &OpInfo, psn: Psn, is_answer: bool) -> (Vec<u8>, u32) {
    let (from, to) = if is_answer { (ENDS[1], ENDS[0]) } else { (ENDS[0], ENDS[1]) };
    let net = NetHeader::outgoing(from.1.into(), to.1.into(), UDP_PORT);
    let ack_req = input.chance(128);
    let bth = Bth { ack_req, ..Bth::new(info.opcode, Qpn::from_wire(to.0), psn) };
    let mut ext = ext(input, info);
    let place = u64::from(input.byte());
    let base = input.pick(&[0x1000, 0x1080, 0x2000, u64::MAX - 300]);
    if let Some(reth) = &mut ext.reth
        && input.chance(240)
    {
        reth.va = base + place;
        reth.rkey.0 = 0x100 << (place % 2);
        reth.dma_len = input.pick(&[8, 0, 300, 256, 4096, u32::MAX]);
    }
    if let Some(atomic) = &mut ext.atomic
        && input.chance(240)
    {
        (atomic.va, atomic.rkey.0) = (base + place / 8 * 8, 0x100 << (place % 2));
    }
    if let Some(aeth) = &mut ext.aeth
        && input.chance(240)
    {
        aeth.syndrome =
            Syndrome::from_byte(input.pick(&[0x1f, 0x60, 0x61, 0x62, 0x63, 0x20, 0x7f]));
    }
    let len = if info.has_payload { input.pick(&[8, 0, 4, 100, 256, 1024]) } else { 0 };
    let mut bytes = Vec::new();
    emit::packet_from(&net, &mut bytes, &bth, &ext, &vec![input.byte(); len]);
    if input.chance(8) {
        let at = input.index(bytes.len());
        bytes[at] ^= 1;
    }
    let dma_len = ext.reth.map_or(0, |reth| reth.dma_len);
    let span = if info.kind == OpKind::ReadRequest { dma_len.div_ceil(1024).max(1) } else { 1 };
    let mut frame = Vec::new();
    let checksum = UdpChecksum::None;
    emit_ethernet(&Ethernet::default(), &net, UDP_PORT, checksum, &bytes, &mut frame);
    (frame, span)
}

/// Draws the description of a responder, as a scenario would contain it.
fn responder(input: &mut Input<'_>, first: Psn) -> Responder {
    let receives = (0..input.byte() % 8).map(|_| {
        let at = Duration::from_micros(u64::from(input.word()));
        (at, Receive { len: input.pick(&[0, 40, 300, 4096]), is_usable: !input.chance(32) })
    });
    let receives = receives.collect();
    let start = input.pick(&[0x1000, 0x1040, 0, u64::MAX - 400]);
    let len = input.pick(&[4096, 100, 0, 1 << 18]);
    Responder {
        address: IpAddr::from(ENDS[1].1),
        qpn: ENDS[1].0,
        peer_qpn: Some(ENDS[0].0),
        first_psn: first.value(),
        path_mtu: input.pick(&[Some(1024), Some(256), None]),
        engine: Some(Region { start, len, rkey: 0x100, access: 15 }),
        receives,
    }
}

/// Checks that a plan keeps within the limits, and that its totals are correct.
fn sound(plan: &Plan, wanted: &Wanted<'_>) {
    let (mut sends, mut answers) = (0, 0);
    for step in &plan.steps {
        match step {
            Step::Send(_) => sends += 1,
            Step::Answer(_) => answers += 1,
            Step::Receive(it) => assert!(plan.receives_at + it.len <= wanted.region, "{it:?}"),
        }
    }
    assert_eq!((plan.packets, plan.answers), (sends, answers));
    assert!(plan.packets <= wanted.count as u64 && plan.received <= plan.packets);
    assert!((256..=4096).contains(&plan.path_mtu), "{}", plan.path_mtu);
    for pieces in [&plan.before, &plan.after] {
        let mut end = 0;
        for (offset, bytes) in pieces {
            assert!(*offset >= end && !bytes.is_empty(), "pieces overlap");
            end = offset + bytes.len() as u64;
        }
        assert!(end <= wanted.region, "{end}");
    }
    assert!(plan.notes.iter().all(|note| !note.is_empty() && !note.contains('\n')));
}

/// Plays the plan against a peer that answers as `peer` decides. Returns the differences.
fn play(plan: &Plan, wrong: &HashSet<u64>, peer: &mut Input<'_>) -> Vec<Difference> {
    let net = NetHeader::outgoing([10, 9, 0, 1].into(), [10, 9, 0, 2].into(), UDP_PORT);
    let mut comparison = Comparison::new(plan);
    let mut came = 0;
    for step in &plan.steps {
        match step {
            Step::Receive(_) => continue,
            Step::Send(packet) => {
                let bytes = packet.render(&net, &TARGET);
                assert_eq!(bytes[5..8], TARGET.qpn.value().to_be_bytes()[1..]);
                let is_right = icrc::check(&net, &bytes).is_ok();
                assert!(is_right || wrong.contains(&packet.frame), "frame {}", packet.frame);
                comparison.sent(packet);
                came += answer(&mut comparison, None, peer);
            }
            Step::Answer(expected) => {
                comparison.expect(expected);
                came += answer(&mut comparison, Some(expected), peer);
            }
        }
        // Sometimes waits until the time for answers is over.
        if !peer.chance(64) {
            give_up(&mut comparison, plan);
        }
    }
    give_up(&mut comparison, plan);
    comparison.finish();
    let differences: Vec<_> = iter::from_fn(|| comparison.difference()).collect();
    assert!(differences.iter().all(|it| it.recorded.is_some() || it.came.is_some()));
    assert!(differences.len() as u64 <= plan.answers + came, "{differences:#?} of {came}");
    assert!(comparison.same <= plan.answers && comparison.unrecorded <= came);
    differences
}

fn give_up(comparison: &mut Comparison, plan: &Plan) {
    for _ in 0..=plan.answers {
        if !comparison.is_waiting() {
            return;
        }
        comparison.give_up();
    }
    panic!("it waits for more answers than were recorded");
}

/// Lets the peer answer, or do something else. Returns the number of packets that have come.
fn answer(comparison: &mut Comparison, expected: Option<&Expected>, peer: &mut Input<'_>) -> u64 {
    let recorded = expected.map(|expected| &expected.seen);
    match (peer.byte() % 8, recorded) {
        // Mostly as recorded.
        (0..=2, Some(seen)) => comparison.came(seen.clone()),
        (0..=2, None) | (3, _) => return 0,
        (4, Some(seen)) => {
            comparison.came(seen.clone());
            comparison.came(seen.clone());
            return 2;
        }
        (5, Some(seen)) => {
            let mut seen = seen.clone();
            let by = i32::from(peer.byte()) - 128;
            match &mut seen.said {
                Said::Ack(psn) | Said::Nak(_, psn) | Said::Rnr(psn, _) => *psn += by,
                Said::Read(_, psn, _) | Said::Atomic(psn, _) => *psn += by,
                Said::Request(_, psn, _) | Said::Other(_, psn) => *psn += by,
            }
            seen.payload.iter_mut().take(1).for_each(|byte| *byte ^= 1);
            comparison.came(seen);
        }
        (6, _) => read(comparison, peer.bytes(40)),
        _ => {
            let net = net();
            let infos: Vec<_> = Opcode::all().collect();
            let info = peer.pick(&infos);
            let psn = TARGET.first_psn + u32::from(peer.byte());
            let bth = Bth::new(info.opcode, TARGET.own_qpn, psn);
            let mut bytes = Vec::new();
            let len = if info.has_payload { usize::from(peer.byte()) } else { 0 };
            emit::packet_from(&net, &mut bytes, &bth, &ext(peer, info), &vec![7; len]);
            read(comparison, &bytes);
        }
    }
    1
}

/// Returns the network header of a packet from the peer.
fn net() -> NetHeader {
    NetHeader::outgoing([10, 9, 0, 2].into(), [10, 9, 0, 1].into(), UDP_PORT)
}

fn read(comparison: &mut Comparison, bytes: &[u8]) {
    let psns = FirstPsns { requests: Psn::ZERO, answers: TARGET.first_psn };
    match Seen::read(&net(), bytes, &psns) {
        Ok(seen) => comparison.came(seen),
        Err(why) => comparison.malformed(why),
    }
}
