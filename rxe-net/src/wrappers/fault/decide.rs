//! Decides which packets a rule hits.
//!
//! A decision depends only on the seed, the rule, the direction, the flow, and the packet's
//! position in the flow. It does not depend on time or on other flows: two runs with the same seed
//! do the same to the same packets. A flow is identified by the order in which its queue pair
//! appeared, because queue pair numbers differ from run to run. The position in a flow is the
//! distance of the packet's PSN from the flow's first PSN, and the number of times that this PSN
//! was seen before.

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

/// What the rules do to a packet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    /// The index of the packet's flow, which never changes.
    pub(super) flow: usize,
    /// The actions of the rules that hit the packet, in the order of the rules. Each comes with a
    /// random number for its details.
    pub(super) hits: Vec<(FaultAction, u64)>,
}

/// Decides which packets of one direction the rules hit.
#[derive(Debug)]
pub(super) struct Decider {
    seed: u64,
    rules: Arc<[FaultRule]>,
    direction: Direction,
    pub(super) counts: Arc<FaultCounts>,
    qps: HashMap<QpKey, QpEntry>,
    /// The number of queue pairs seen: those with numbers above 1, and all others.
    appeared: [u32; 2],
    flows: Vec<Flow>,
}

/// A packet's source and destination address and destination queue pair.
type QpKey = (IpAddr, IpAddr, Option<Qpn>);

#[derive(Debug)]
struct QpEntry {
    /// The position of the queue pair in the order of appearance, counted from 1. Zero for QP0, QP1
    /// and bytes that are no valid packet.
    nth: u32,
    /// A number that identifies this queue pair among all others.
    ordinal: u64,
    /// The indices of its two flows: requests and responses.
    flows: [Option<usize>; 2],
}

/// The maximum number of queue pairs told apart. All others count as one per destination, because
/// packets with arbitrary numbers may arrive.
const MAX_QPS: usize = 1 << 14;

/// The number of repeated PSNs that a flow remembers. It exceeds the number of PSNs in a window.
const MAX_REPEATED: usize = 1 << 13;

#[derive(Debug)]
struct Flow {
    first: Option<Psn>,
    /// The largest PSN so far, as a distance from the first.
    largest: Option<u64>,
    /// The number of repetitions of each PSN, by its distance from the first.
    repetitions: HashMap<u64, u64>,
    states: Vec<RuleState>,
}

/// The counts of one rule in one flow.
#[derive(Clone, Debug, Default)]
struct RuleState {
    /// Packets that the rule could have hit.
    seen: u64,
    hits: u64,
    /// Packets of the current burst that are still to be hit.
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

    /// Replaces the rules. Flows keep their indices; the counts of the rules start at 0 again.
    pub(super) fn set_rules(&mut self, rules: Arc<[FaultRule]>) {
        for flow in &mut self.flows {
            flow.states = vec![RuleState::default(); rules.len()];
        }
        self.counts = Arc::new(FaultCounts::new(rules.len()));
        self.rules = rules;
    }

    /// Decides what happens to the next packet. Rules apply in order. If a rule drops the packet,
    /// later rules neither see nor count it.
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

/// The position of a packet in its flow.
struct Place {
    distance: u64,
    repetition: u64,
}

impl Place {
    /// Returns the random numbers for this position. `parts` identifies a rule, a direction and a
    /// flow.
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
        // Bytes that are no valid packet count as repetitions of one PSN.
        let psn = psn.unwrap_or_default();
        let first = *self.first.get_or_insert(psn);
        let Some(largest) = self.largest else {
            self.largest = Some(0);
            return Place { distance: 0, repetition: 0 };
        };
        // PSNs wrap at 24 bits. The distance is a `u64`, so it does not wrap.
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
    /// Returns whether the rule hits the next packet that its filter matches.
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
                // Bursts start rarely enough that `share` of all packets is hit, not `share` of the
                // bursts.
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

/// Returns whether the filter matches this packet.
fn matches(
    only: &PacketFilter,
    net: &NetHeader,
    packet: Option<&Packet<'_>>,
    nth: u32,
    distance: u64,
) -> bool {
    /// Returns whether an entry matches; an empty list matches everything.
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
