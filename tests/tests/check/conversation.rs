//! Conversations of two engines in virtual time, with known faults, as captured at either end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use rxe_core::queue::{Remote, SendOp, Sge};
use rxe_core::types::{Key, Mtu, Psn, Time};
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{Ethernet, OpKind, UDP_PORT, icrc};
use rxe_tests::lone::{End, Place, Said};
use rxe_tests::sim::rng::Rng;

use crate::broken::{Broken, Bug};

/// The time that a packet takes, in nanoseconds.
const DELAY: u64 = 20_000;
const KEY: Key = Key(0x100);
const BASE: u64 = 0x10_0000;
const SIZE: usize = 1 << 16;

/// What happens to a packet of a conversation.
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
}

pub(crate) const FAULTS: [Fault; 8] = [
    Fault::None,
    Fault::DropRequest,
    Fault::DropResponse,
    Fault::DuplicateRequest,
    Fault::DuplicateResponse,
    Fault::CorruptRequest,
    Fault::CorruptResponse,
    Fault::DelayRequest,
];

/// Two hosts or one address, the service, what happens to two packets, and what one end does wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) one_address: bool,
    pub(crate) is_reliable: bool,
    /// Whether the responder gives credits.
    pub(crate) gives_credits: bool,
    pub(crate) faults: [Fault; 2],
    pub(crate) bug: Option<Bug>,
}

/// A packet that a fault is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Victim {
    /// Whether the fault came about.
    pub(crate) hit: bool,
    /// Whether it is a response with data.
    pub(crate) is_data: bool,
    pub(crate) psn: Psn,
    pub(crate) has_arrived: bool,
    /// Whether a later request arrived before it.
    pub(crate) is_passed: bool,
}

impl Fault {
    /// Whether it is for requests, or for responses.
    fn is_for(self, is_response: bool) -> bool {
        match self {
            Self::None => false,
            Self::DropRequest
            | Self::DuplicateRequest
            | Self::CorruptRequest
            | Self::DelayRequest => !is_response,
            Self::DropResponse | Self::DuplicateResponse | Self::CorruptResponse => is_response,
        }
    }
}

/// A conversation as captured at either end.
pub(crate) struct Conversation {
    pub(crate) taps: [Vec<u8>; 2],
    pub(crate) victims: [Victim; 2],
    /// Whether a request was sent again, as seen at either end. The responder's end has no trace of it
    /// if it is the first one that arrives, and in order.
    pub(crate) sent_again: [bool; 2],
    /// The PSN of the first packet that shows the bug.
    pub(crate) bug_at: Option<Psn>,
}

impl Conversation {
    /// Whether what two faults have done can be told apart: they hit other packets, and not neighbours.
    pub(crate) fn is_apart(&self) -> bool {
        let [first, second] = &self.victims;
        !first.hit || !second.hit || first.psn.diff(second.psn).abs() > 1
    }
}

/// Adds a frame to a pcap with nanoseconds.
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

/// A conversation between two hosts, or between two queue pairs of one address.
pub(crate) fn converse(plan: &Plan) -> Conversation {
    let Plan { seed, one_address, is_reliable, gives_credits, faults, bug } = *plan;
    let mut rng = Rng::new(seed);
    let mtu = rng.pick(&[Mtu::M256, Mtu::M1024, Mtu::M4096]);
    let psns = (Psn::new(rng.word()), Psn::new(rng.word()));
    let ip = |n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n));
    let places: [Place; 2] = [(ip(1), 0x11), (ip(2 - u8::from(one_address)), 0x12)];
    let new = if is_reliable { End::new } else { End::unreliable };
    let mut ends =
        [new(places[0], places[1], mtu, psns), new(places[1], places[0], mtu, (psns.1, psns.0))];
    for end in &ends {
        end.register(KEY, BASE, SIZE);
    }
    let sge = |length| Sge { addr: BASE, length, lkey: KEY };
    for id in 0..40 {
        ends[1].receive(id, sge(20_000));
    }
    // Some messages at once, some one after another.
    let mut todo: Vec<_> = (0..rng.within(3..=12)).collect();
    let at_once = rng.index(todo.len() + 1);
    // Without the first packet, the analyst cannot know that there was one.
    let places = [1 + rng.index(12), 1 + Rng::new(!seed).index(12)];
    let mut victims = [Victim::default(); 2];
    let mut taps = [Vec::new(), Vec::new()];
    // When a packet arrives, in which order, at which end.
    let mut way: BTreeMap<(u64, u64), (usize, Said)> = BTreeMap::new();
    let (mut now, mut count, mut matching) = (1_000_u64, 0, [0; 2]);
    let mut seen = BTreeSet::new();
    let mut sent_again = [false; 2];
    let mut newest: Option<Psn> = None;
    let mut broken = Broken::new(bug, gives_credits);
    let sends = bug.is_some_and(Bug::is_of_credits);
    let post = |end: &End, rng: &mut Rng| {
        let remote = Remote { addr: BASE, rkey: KEY };
        let len = rng.pick(&[0, 1, 100, 1024, 5000, 12_000]);
        match rng.below(if is_reliable { 4 } else { 2 }) {
            // Nothing else needs credits.
            1.. if sends && rng.chance(2, 3) => end.send(SendOp::Send { imm: None }, sge(len)),
            0 => end.send(SendOp::Send { imm: None }, sge(len)),
            1 => end.send(SendOp::Write { remote, imm: None }, sge(len)),
            2 => end.send(SendOp::Read { remote }, sge(len)),
            _ => end.send(SendOp::FetchAdd { remote, add: 3 }, sge(8)),
        }
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
                let is_response = info.is_response();
                let is_read = info.kind == OpKind::ReadRequest;
                sent_again[0] |=
                    !is_response && !seen.insert((is_read, said.packet().psn().value()));
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
                        Fault::DelayRequest => at += 3000,
                        Fault::None => {}
                    }
                }
                if lost {
                    continue;
                }
                count += 1;
                way.insert((at, count), (1 - side, said));
                // The link takes time for each.
                now += 200;
            }
        }
        let arrives = way.first_key_value().map(|((at, _), _)| *at);
        let timers = ends.iter().filter_map(|end| end.engine.poll_timeout());
        let timer = timers.map(Time::as_nanos).min();
        if arrives.is_none() && ends[0].completions().len() < 100 && timer.is_none() {
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
            if side == 1 && icrc::check(&said.net, &said.bytes).is_ok() {
                let psn = packet.psn();
                sent_again[1] |= newest.is_some_and(|newest| !psn.after(newest));
                newest = newest.filter(|newest| !psn.after(*newest)).or(Some(psn));
                for victim in &mut victims {
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
    Conversation { taps, victims, sent_again, bug_at: broken.hit }
}
