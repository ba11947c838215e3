//! Conversations of two engines in virtual time, with known faults, as captured at either end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use rxe_core::queue::{Remote, SendOp, Sge};
use rxe_core::types::{Key, Mtu, Psn, Time};
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{Ethernet, NakCode, OpKind, Service, Syndrome, UDP_PORT, icrc};
use rxe_tests::lone::{End, Place, Said};
use rxe_tests::sim::rng::Rng;

use crate::broken::{Broken, Bug};

/// The transit time of a packet, in nanoseconds.
const DELAY: u64 = 20_000;
const KEY: Key = Key(0x100);
const BASE: u64 = 0x10_0000;
const SIZE: usize = 1 << 16;

/// The fault of a packet of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    None,
    DropRequest,
    DropResponse,
    DuplicateRequest,
    DuplicateResponse,
    CorruptRequest,
    CorruptResponse,
    DelayRequest,
    /// The response is overtaken by later responses.
    DelayResponse,
    /// The response arrives after its request was sent again.
    LateResponse,
    /// The responder has no receives until it has sent an RNR NAK.
    NoReceive,
    /// The network marks the request "congestion experienced".
    MarkRequest,
}

pub(crate) const FAULTS: [Fault; 12] = [
    Fault::None,
    Fault::DropRequest,
    Fault::DropResponse,
    Fault::DuplicateRequest,
    Fault::DuplicateResponse,
    Fault::CorruptRequest,
    Fault::CorruptResponse,
    Fault::DelayRequest,
    Fault::DelayResponse,
    Fault::LateResponse,
    Fault::NoReceive,
    Fault::MarkRequest,
];

/// The transport service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Rc,
    Uc,
    Xrc,
}

/// The number of the shared receive queue of XRC.
const SRQ: u32 = 0x21;

/// The parameters of a conversation: two hosts or one address, the transport service, the faults of
/// two packets, and the bug of one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) one_address: bool,
    pub(crate) transport: Transport,
    /// Whether the responder gives credits.
    pub(crate) gives_credits: bool,
    pub(crate) faults: [Fault; 2],
    pub(crate) bug: Option<Bug>,
}

/// The packet that a fault hits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Victim {
    /// Whether the fault occurred.
    pub(crate) hit: bool,
    /// Whether the packet is a response with data.
    pub(crate) is_data: bool,
    pub(crate) psn: Psn,
    pub(crate) has_arrived: bool,
    /// Whether a later packet in its direction arrived before it.
    pub(crate) is_passed: bool,
}

impl Fault {
    /// Returns whether the fault hits packets of this direction: responses or requests.
    fn is_for(self, is_response: bool) -> bool {
        match self {
            Self::None | Self::NoReceive => false,
            Self::MarkRequest
            | Self::DropRequest
            | Self::DuplicateRequest
            | Self::CorruptRequest
            | Self::DelayRequest => !is_response,
            Self::DropResponse
            | Self::DuplicateResponse
            | Self::CorruptResponse
            | Self::DelayResponse
            | Self::LateResponse => is_response,
        }
    }
}

/// A conversation as captured at either end.
pub(crate) struct Conversation {
    pub(crate) taps: [Vec<u8>; 2],
    pub(crate) victims: [Victim; 2],
    /// Whether a request was sent again, as seen at either end. The responder's end cannot see it
    /// if the repetition is the first to arrive, and in order.
    pub(crate) sent_again: [bool; 2],
    /// Whether a NAK for a PSN sequence error was sent, and has arrived.
    pub(crate) has_nak: bool,
    /// The numbers of requests that arrived marked, and of CNPs that answered them.
    pub(crate) marked: u64,
    pub(crate) cnps: u64,
    /// The PSN of the first packet that shows the bug.
    pub(crate) bug_at: Option<Psn>,
}

impl Conversation {
    /// Returns whether the effects of two faults can be distinguished: they hit different packets
    /// that are not adjacent.
    pub(crate) fn is_apart(&self) -> bool {
        let [first, second] = &self.victims;
        !first.hit || !second.hit || first.psn.diff(second.psn).abs() > 1
    }
}

/// Adds a frame to a pcap file with nanoseconds.
pub(crate) fn capture(file: &mut Vec<u8>, now: u64, said: &Said) {
    if file.is_empty() {
        let head = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 1 << 18, 1];
        file.extend(head.iter().flat_map(|word| word.to_le_bytes()));
    }
    let mut frame = Vec::new();
    let none = UdpChecksum::None;
    emit_ethernet(&Ethernet::default(), &said.net, UDP_PORT, none, &said.bytes, &mut frame);
    let len = u32::try_from(frame.len()).unwrap();
    let [seconds, nanos] =
        [now / 1_000_000_000, now % 1_000_000_000].map(|n| u32::try_from(n).unwrap());
    file.extend([seconds, nanos, len, len].iter().flat_map(|word| word.to_le_bytes()));
    file.extend(frame);
}

/// Runs a conversation between two hosts, or between two queue pairs of one address.
pub(crate) fn converse(plan: &Plan) -> Conversation {
    let Plan { seed, one_address, transport, gives_credits, faults, bug } = *plan;
    let is_reliable = transport != Transport::Uc;
    let mut rng = Rng::new(seed);
    let mtu = rng.pick(&[Mtu::M256, Mtu::M1024, Mtu::M4096]);
    let psns = (Psn::new(rng.word()), Psn::new(rng.word()));
    let ip = |n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n));
    let places: [Place; 2] = [(ip(1), 0x11), (ip(2 - u8::from(one_address)), 0x12)];
    let back = (psns.1, psns.0);
    let mut ends = match transport {
        Transport::Rc => {
            [End::new(places[0], places[1], mtu, psns), End::new(places[1], places[0], mtu, back)]
        }
        Transport::Uc => [
            End::unreliable(places[0], places[1], mtu, psns),
            End::unreliable(places[1], places[0], mtu, back),
        ],
        Transport::Xrc => [
            End::initiator(places[0], places[1], mtu, psns),
            End::target(places[1], places[0], mtu, back, SRQ),
        ],
    };
    for end in &ends {
        end.register(KEY, BASE, SIZE);
    }
    let sge = |length| Sge { addr: BASE, length, lkey: KEY };
    let receive = |end: &End| (0..40).for_each(|id| end.receive(id, sge(20_000)));
    let mut waits_for_rnr = faults.contains(&Fault::NoReceive);
    if !waits_for_rnr {
        receive(&ends[1]);
    }
    // Some messages are posted together, the others one after another.
    let mut todo: Vec<_> = (0..rng.within(3..=12)).collect();
    let at_once = rng.index(todo.len() + 1);
    // Without the first packet of a capture, the analyst cannot know that it existed.
    let places = [1 + rng.index(12), 1 + Rng::new(!seed).index(12)];
    let mut victims = [Victim::default(); 2];
    let mut taps = [Vec::new(), Vec::new()];
    // The packets in flight by arrival time and order, with their destination.
    let mut way: BTreeMap<(u64, u64), (usize, Said)> = BTreeMap::new();
    let (mut now, mut count, mut matching) = (1_000_u64, 0, [0; 2]);
    let mut seen = BTreeSet::new();
    let mut sent_again = [false; 2];
    let mut newest: Option<Psn> = None;
    // A response that is held back.
    let mut held: Option<Said> = None;
    let (mut has_nak, mut marked, mut cnps) = (false, 0, 0);
    let mut broken = Broken::new(bug, gives_credits && !waits_for_rnr);
    let sends = bug.is_some_and(Bug::is_of_credits);
    let post = |end: &End, rng: &mut Rng| {
        let remote = Remote { addr: BASE, rkey: KEY };
        let len = rng.pick(&[0, 1, 100, 1024, 5000, 12_000]);
        let (op, sge) = match rng.below(if is_reliable { 4 } else { 2 }) {
            // Only SENDs need credits.
            1.. if sends && rng.chance(2, 3) => (SendOp::Send { imm: None }, sge(len)),
            0 => (SendOp::Send { imm: None }, sge(len)),
            1 => (SendOp::Write { remote, imm: None }, sge(len)),
            2 => (SendOp::Read { remote }, sge(len)),
            _ => (SendOp::FetchAdd { remote, add: 3 }, sge(8)),
        };
        end.send_to(op, sge, (transport == Transport::Xrc).then_some(SRQ));
    };
    for _ in 0..at_once {
        todo.pop();
        post(&ends[0], &mut rng);
    }
    loop {
        for (side, tap) in taps.iter_mut().enumerate() {
            ends[side].now = Time::from_nanos(now);
            ends[side].engine.handle_timeout(Time::from_nanos(now));
            for mut said in ends[side].sent() {
                broken.pass(side, now, &mut said);
                capture(tap, now, &said);
                let info = said.packet().info();
                if info.service == Service::Cnp {
                    cnps += 1;
                    way.insert((now + DELAY, count), (1 - side, said));
                    count += 1;
                    continue;
                }
                let is_response = info.is_response();
                let syndrome = said.packet().ext().aeth.map(|aeth| aeth.syndrome);
                let sequence = Syndrome::Nak(NakCode::PsnSequenceError);
                has_nak |= syndrome == Some(sequence);
                if waits_for_rnr && matches!(syndrome, Some(Syndrome::RnrNak { .. })) {
                    waits_for_rnr = false;
                    receive(&ends[1]);
                    for (fault, victim) in faults.iter().zip(&mut victims) {
                        if *fault == Fault::NoReceive {
                            *victim = Victim { hit: true, psn: said.packet().psn(), ..*victim };
                        }
                    }
                }
                let is_read = info.kind == OpKind::ReadRequest;
                let again = !is_response && !seen.insert((is_read, said.packet().psn().value()));
                sent_again[0] |= again;
                if again && let Some(late) = held.take() {
                    way.insert((now + 5000, count), (0, late));
                    count += 1;
                }
                let mut at = now + DELAY;
                let (mut lost, mut is_hit) = (false, false);
                for (nth, fault) in faults.into_iter().enumerate() {
                    let wanted = fault.is_for(is_response);
                    matching[nth] += usize::from(wanted);
                    if !wanted || matching[nth] != places[nth] + 1 || is_hit {
                        continue;
                    }
                    is_hit = true;
                    victims[nth] = Victim {
                        hit: true,
                        is_data: is_response && info.kind != OpKind::Acknowledge,
                        psn: said.packet().psn(),
                        ..Victim::default()
                    };
                    match fault {
                        Fault::DropRequest | Fault::DropResponse => lost = true,
                        Fault::DuplicateRequest | Fault::DuplicateResponse => {
                            way.insert((at + 1000, count), (1 - side, said.clone()));
                        }
                        Fault::CorruptRequest | Fault::CorruptResponse => {
                            *said.bytes.last_mut().unwrap() ^= 0x10;
                        }
                        Fault::DelayRequest | Fault::DelayResponse => at += 3000,
                        Fault::LateResponse => {
                            held = Some(said.clone());
                            lost = true;
                        }
                        Fault::MarkRequest => {
                            said.net.tos |= 3;
                            marked += 1;
                        }
                        Fault::None | Fault::NoReceive => {}
                    }
                }
                if lost {
                    continue;
                }
                count += 1;
                way.insert((at, count), (1 - side, said));
                // The link needs time for each packet.
                now += 200;
            }
        }
        let arrives = way.first_key_value().map(|((at, _), _)| *at);
        let timers = ends.iter().filter_map(|end| end.engine.poll_timeout());
        let timer = timers.map(Time::as_nanos).min();
        if arrives.is_none() && ends[0].completions().len() < 100 && timer.is_none() {
            if let Some(late) = held.take() {
                // A later response has answered its request too.
                way.insert((now + 5000, count), (0, late));
                count += 1;
                continue;
            }
            if todo.pop().is_none() {
                break;
            }
            post(&ends[0], &mut rng);
            continue;
        }
        let next = arrives.into_iter().chain(timer).min().unwrap();
        now = now.max(next);
        while let Some(entry) = way.first_entry().filter(|entry| entry.key().0 <= now) {
            let (side, said) = entry.remove();
            capture(&mut taps[side], now, &said);
            broken.arrives(side, now, &said);
            let packet = said.packet();
            let is_sound = icrc::check(&said.net, &said.bytes).is_ok();
            if side == 0 && is_sound && packet.info().is_response() {
                let psn = packet.psn();
                for (victim, fault) in victims.iter_mut().zip(faults) {
                    if victim.hit && fault.is_for(true) {
                        victim.is_passed |= !victim.has_arrived && psn.after(victim.psn);
                        victim.has_arrived |= psn == victim.psn;
                    }
                }
            }
            if side == 1 && is_sound {
                let psn = packet.psn();
                sent_again[1] |= newest.is_some_and(|newest| !psn.after(newest));
                newest = newest.filter(|newest| !psn.after(*newest)).or(Some(psn));
                for (victim, fault) in victims.iter_mut().zip(faults) {
                    if fault.is_for(true) {
                        continue;
                    }
                    victim.has_arrived |= psn == victim.psn;
                    victim.is_passed |= victim.hit && !victim.has_arrived && psn.after(victim.psn);
                }
            }
            ends[side].now = Time::from_nanos(now);
            ends[side].take(&said);
            let _ = ends[side].completions();
        }
        assert!(now < 60_000_000_000, "seed {seed}: it does not end");
    }
    Conversation { taps, victims, sent_again, has_nak, marked, cnps, bug_at: broken.hit }
}
