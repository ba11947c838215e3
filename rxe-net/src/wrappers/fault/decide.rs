//! Decides which packets a rule hits.
//!
//! A decision depends on the seed, the rule, the direction, the flow, and where in the flow the packet
//! stands. It depends neither on time nor on what happens in other flows: two runs with one seed do the
//! same to the same packets. Flows are told apart by the order in which their queue pairs appeared,
//! because queue pair numbers differ from run to run. The place in the flow is the distance of the
//! packet's PSN from the flow's first, and how often this PSN was there before.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::{NetHeader, Packet};

use super::report::FaultCounts;
use super::rules::{
    FaultAction, FaultAmount, FaultRule, OpcodeFilter, PacketFilter, PsnFilter, QpFilter,
};
use crate::rng::Rng;
use crate::wrappers::pcap::Direction;

/// What happens to a packet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    /// The packet's flow: an index that stays the same.
    pub(super) flow: usize,
    /// What hits it, in the order of the rules, with randomness for the details.
    pub(super) hits: Vec<(FaultAction, u64)>,
}

/// Decides for one direction.
#[derive(Debug)]
pub(super) struct Decider {
    seed: u64,
    rules: Arc<[FaultRule]>,
    direction: Direction,
    pub(super) counts: Arc<FaultCounts>,
    qps: HashMap<QpKey, QpEntry>,
    /// Queue pairs seen, those with numbers above 1, and others.
    appeared: [u32; 2],
    flows: Vec<Flow>,
}

/// The addresses of a packet, and the queue pair that it goes to.
type QpKey = (IpAddr, IpAddr, Option<Qpn>);

#[derive(Debug)]
struct QpEntry {
    /// The how many-th it was to appear, counted from 1; 0 for QP0, QP1 and what is no packet.
    nth: u32,
    /// What tells it from all others.
    ordinal: u64,
    /// The indices of its flows: requests, and responses.
    flows: [Option<usize>; 2],
}

/// More queue pairs than this are treated as one: packets with arbitrary numbers may arrive.
const MAX_QPS: usize = 1 << 14;

/// PSNs of a flow whose repetitions are counted. More than a window has.
const MAX_REPEATED: usize = 1 << 13;

#[derive(Debug)]
struct Flow {
    first: Option<Psn>,
    /// The largest PSN so far, as distance from the first.
    largest: Option<u64>,
    /// How often PSNs came again, by their distances.
    repetitions: HashMap<u64, u64>,
    states: Vec<RuleState>,
}

/// What one rule has done in one flow.
#[derive(Clone, Debug, Default)]
struct RuleState {
    /// Packets that it could have hit.
    seen: u64,
    hits: u64,
    /// Packets of the present burst that are still to be hit.
    burst_left: u32,
}

impl Decider {
    pub(super) fn new(
        seed: u64,
        rules: Arc<[FaultRule]>,
        direction: Direction,
        counts: Arc<FaultCounts>,
    ) -> Self {
        let (qps, flows) = (HashMap::new(), Vec::new());
        Self { seed, rules, direction, counts, qps, appeared: [0; 2], flows }
    }

    /// Replaces the rules. Flows keep their numbers; the counts of the rules begin anew.
    pub(super) fn set_rules(&mut self, rules: Arc<[FaultRule]>) {
        for flow in &mut self.flows {
            flow.states = vec![RuleState::default(); rules.len()];
        }
        self.counts = Arc::new(FaultCounts::new(rules.len()));
        self.rules = rules;
    }

    /// Decides about the next packet. Rules are applied in order; a packet that is dropped is not seen
    /// by later ones.
    pub(super) fn decide(&mut self, net: &NetHeader, bytes: &[u8]) -> Fate {
        let packet = Packet::parse(bytes).ok();
        let response = packet.as_ref().is_some_and(|packet| packet.info().is_response());
        let dest_qp = packet.as_ref().map(Packet::dest_qp);
        let key = (net.src, net.dst, dest_qp);
        let rules = Arc::clone(&self.rules);
        let entry = self.entry(key, dest_qp);
        let (nth, ordinal) = (entry.nth, entry.ordinal);
        let index = match entry.flows[usize::from(response)] {
            Some(index) => index,
            None => {
                let index = self.flows.len();
                self.flows.push(Flow::new(rules.len()));
                self.entry(key, dest_qp).flows[usize::from(response)] = Some(index);
                index
            }
        };
        let flow = &mut self.flows[index];
        let place = flow.place(packet.as_ref().map(Packet::psn));
        let mut fate = Fate { flow: index, hits: Vec::new() };
        for (number, rule) in rules.iter().enumerate() {
            if rule.direction.is_some_and(|only| only != self.direction)
                || rule.action == FaultAction::MarkEcn && !matches!(net.tos & 3, 1 | 2)
                || !matches(&rule.only, net, packet.as_ref(), nth, place.distance)
            {
                continue;
            }
            let way = u64::from(self.direction == Direction::Inbound);
            let parts = [number as u64, way, ordinal, u64::from(response)];
            let mut rng = place.rng(self.seed, &parts);
            let hit = flow.states[number].hit(rule, &mut rng);
            self.counts.count(number, self.direction, hit);
            if hit {
                fate.hits.push((rule.action, rng.next()));
                if rule.action == FaultAction::Drop {
                    break;
                }
            }
        }
        fate
    }

    fn entry(&mut self, key: QpKey, dest_qp: Option<Qpn>) -> &mut QpEntry {
        let full = self.qps.len() >= MAX_QPS && !self.qps.contains_key(&key);
        let key = if full { (key.1, key.1, None) } else { key };
        let appeared = &mut self.appeared;
        self.qps.entry(key).or_insert_with(|| {
            let counted = key.2.is_some() && dest_qp.is_some_and(|qpn| qpn.value() > 1);
            let count = &mut appeared[usize::from(!counted)];
            *count = count.saturating_add(1);
            let ordinal = u64::from(*count) << 1 | u64::from(counted);
            QpEntry { nth: if counted { *count } else { 0 }, ordinal, flows: [None; 2] }
        })
    }
}

/// Where in its flow a packet stands.
struct Place {
    distance: u64,
    repetition: u64,
}

impl Place {
    /// Randomness for this place, of one rule, one direction and one flow.
    fn rng(&self, seed: u64, parts: &[u64]) -> Rng {
        let parts = parts.iter().copied().chain([self.distance, self.repetition]);
        Rng::new(parts.fold(seed, |state, part| Rng::new(state ^ part).next()))
    }
}

impl Flow {
    fn new(rules: usize) -> Self {
        let states = vec![RuleState::default(); rules];
        Self { first: None, largest: None, repetitions: HashMap::new(), states }
    }

    fn place(&mut self, psn: Option<Psn>) -> Place {
        // What is no packet always has the same place, again and again.
        let psn = psn.unwrap_or_default();
        let first = *self.first.get_or_insert(psn);
        let Some(largest) = self.largest else {
            self.largest = Some(0);
            return Place { distance: 0, repetition: 0 };
        };
        // PSNs have 24 bits; the distance has more, so that it does not wrap.
        let newest = first.add(u32::try_from(largest & 0xff_ffff).unwrap_or(0));
        let distance = largest.saturating_add_signed(i64::from(psn.diff(newest)));
        if distance > largest {
            self.largest = Some(distance);
            return Place { distance, repetition: 0 };
        }
        if self.repetitions.len() >= MAX_REPEATED {
            self.repetitions.retain(|old, _| largest - *old < MAX_REPEATED as u64 / 2);
        }
        let repetition = self.repetitions.entry(distance).or_insert(0);
        *repetition += 1;
        Place { distance, repetition: *repetition }
    }
}

impl RuleState {
    /// Whether the rule hits the next packet that it could hit.
    fn hit(&mut self, rule: &FaultRule, rng: &mut Rng) -> bool {
        self.seen += 1;
        if self.seen <= rule.after {
            return false;
        }
        let hit = match rule.amount {
            FaultAmount::First(count) => self.hits < count,
            FaultAmount::Share(_) if self.burst_left > 0 => {
                self.burst_left -= 1;
                true
            }
            FaultAmount::Share(share) => {
                // A burst begins rarely enough for the share to be that of the packets.
                let (share, all) = (u64::from(share), u64::from(FaultAmount::MILLION));
                let length = u64::from(rule.burst.max(1));
                let begins = rng.below(share + length * all.saturating_sub(share)) < share;
                if begins {
                    self.burst_left = rule.burst.saturating_sub(1);
                }
                begins
            }
        };
        self.hits += u64::from(hit);
        hit
    }
}

/// Whether the filter lets a rule hit this packet.
fn matches(
    only: &PacketFilter,
    net: &NetHeader,
    packet: Option<&Packet<'_>>,
    nth: u32,
    distance: u64,
) -> bool {
    /// An empty list fits everything.
    fn any<T>(list: &[T], fits: impl FnMut(&T) -> bool) -> bool {
        list.is_empty() || list.iter().any(fits)
    }
    any(&only.destinations, |ip| *ip == net.dst)
        && any(&only.qps, |qp| match *qp {
            QpFilter::Number(qpn) => packet.is_some_and(|packet| packet.dest_qp() == qpn),
            QpFilter::Nth(wanted) => wanted == nth,
        })
        && any(&only.opcodes, |opcode| {
            packet.is_some_and(|packet| match *opcode {
                OpcodeFilter::Is(opcode) => packet.opcode() == opcode,
                OpcodeFilter::Kind(kind) => packet.info().kind == kind,
            })
        })
        && any(&only.psns, |&PsnFilter { relative, first, last }| {
            packet.is_some_and(|packet| {
                let psn = if relative { distance } else { u64::from(packet.psn().value()) };
                (u64::from(first)..=u64::from(last)).contains(&psn)
            })
        })
}
