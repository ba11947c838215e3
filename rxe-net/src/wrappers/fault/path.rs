//! One direction of a link with faults. Packets enter it, and leave it when they are due. The path
//! has no clock: its user passes the time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::types::Time;
use rxe_core::wire::{Frame, NetHeader};

use super::decide::Decider;
use super::report::FaultCounts;
use super::rules::{FaultAction, FaultRule};
use crate::rng::Rng;
use crate::wrappers::pcap::Direction;

/// A packet and the time at which it is due.
#[derive(Debug)]
struct Delivery {
    at: Time,
    /// Breaks ties: packets that are due simultaneously leave in this order.
    order: u64,
    net: NetHeader,
    bytes: Vec<u8>,
}

/// One direction of a simulated link: the packets in transit and their faults.
#[derive(Debug)]
pub struct FaultPath {
    decider: Decider,
    /// The maximum number of packets in transit. Others are lost, as from a full queue.
    room: usize,
    queue: BinaryHeap<Delivery>,
    order: u64,
    /// The latest due time of each flow. Later packets of the flow are not due before.
    latest: Vec<Time>,
    held: Vec<Held>,
    counters: PathCounters,
}

/// Counts what happened to the packets of a [`FaultPath`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Packets that entered the path.
    pub sent: u64,
    /// Packets that were dropped by a rule or because the path was full.
    pub lost: u64,
    /// Packets that were duplicated.
    pub duplicated: u64,
    /// Packets that were held back so that later ones overtake them.
    pub reordered: u64,
    /// Packets with flipped bits or a truncated end.
    pub corrupted: u64,
    /// Packets that were marked "congestion experienced".
    pub marked: u64,
}

/// A packet that waits for others to overtake it.
#[derive(Debug)]
struct Held {
    flow: usize,
    /// The number of packets of the flow that are still to overtake this one.
    left: u32,
    until: Time,
    net: NetHeader,
    bytes: Vec<u8>,
}

impl FaultPath {
    /// Creates a path with these rules and room for any number of packets. The same seed and the
    /// same packets give the same faults.
    pub fn new(seed: u64, rules: &[FaultRule], direction: Direction) -> Self {
        let counts = Arc::new(FaultCounts::new(rules.len()));
        Self::with_counts(seed, rules.into(), direction, counts, usize::MAX)
    }

    pub(super) fn with_counts(
        seed: u64,
        rules: Arc<[FaultRule]>,
        direction: Direction,
        counts: Arc<FaultCounts>,
        room: usize,
    ) -> Self {
        let decider = Decider::new(seed, rules, direction, counts);
        let (queue, latest, held) = (BinaryHeap::new(), Vec::new(), Vec::new());
        Self { decider, room, queue, order: 0, latest, held, counters: PathCounters::default() }
    }

    /// Replaces the rules for packets that enter from now on. The counts behind `amount` and
    /// `after` start at 0 again.
    pub fn set_rules(&mut self, rules: &[FaultRule]) {
        self.decider.set_rules(rules.into());
    }

    /// Returns the counts of what happened to packets so far.
    pub fn counters(&self) -> PathCounters {
        self.counters
    }

    /// Adds the packets of a frame to the path.
    pub fn take(&mut self, now: Time, frame: &Frame<'_>) {
        for (net, bytes) in frame.packets() {
            self.take_packet(now, net, bytes);
        }
    }

    /// Adds a packet to the path: its headers, and its bytes from BTH to ICRC.
    pub(crate) fn take_packet(&mut self, now: Time, mut net: NetHeader, bytes: &[u8]) {
        self.counters.sent += 1;
        let fate = self.decider.decide(&net, bytes);
        if self.queue.len() + self.held.len() >= self.room {
            self.counters.lost += 1;
            return self.decider.counts.count_overflow();
        }
        let mut bytes = bytes.to_vec();
        let (mut delay, mut copies, mut overtaken_by) = (Duration::ZERO, 1, 0);
        // Counted in a copy: if a later rule drops the packet, only the loss counts.
        let mut counters = self.counters;
        for (action, random) in fate.hits {
            let mut rng = Rng::new(random);
            match action {
                FaultAction::Drop => {
                    self.counters.lost += 1;
                    return;
                }
                FaultAction::Duplicate => {
                    counters.duplicated += 1;
                    copies += 1;
                }
                FaultAction::Reorder { by } => {
                    counters.reordered += 1;
                    overtaken_by = by;
                }
                FaultAction::Delay { base, jitter } => {
                    let range = u64::try_from(jitter.as_nanos() * 2).unwrap_or(u64::MAX);
                    let extra = Duration::from_nanos(rng.below(range.saturating_add(1)));
                    delay += base.saturating_sub(jitter) + extra;
                }
                FaultAction::Corrupt => {
                    counters.corrupted += 1;
                    rng.damage(&mut bytes);
                }
                FaultAction::MarkEcn => {
                    counters.marked += 1;
                    net.tos |= 3;
                }
            }
        }
        self.counters = counters;
        if bytes.is_empty() {
            return;
        }
        let due = now + delay;
        if self.latest.len() <= fate.flow {
            self.latest.resize(fate.flow + 1, Time::ZERO);
        }
        let latest = &mut self.latest[fate.flow];
        let due = due.max(*latest);
        *latest = due;
        for _ in 1..copies {
            self.push(due, net, bytes.clone());
        }
        if overtaken_by > 0 {
            let until = due + FaultAction::HELD_AT_MOST;
            let held = Held { flow: fate.flow, left: overtaken_by, until, net, bytes };
            return self.held.push(held);
        }
        self.push(due, net, bytes);
        self.overtake(fate.flow, due);
    }

    /// Returns the time at which the next packet is due.
    pub fn next_delivery(&self) -> Option<Time> {
        let held = self.held.iter().map(|held| held.until);
        held.chain(self.queue.peek().map(|next| next.at)).min()
    }

    /// Removes the next packet that is due at `now`. Returns its headers, and its bytes from BTH to
    /// ICRC.
    pub fn pop(&mut self, now: Time) -> Option<(NetHeader, Vec<u8>)> {
        while let Some(at) = self.held.iter().position(|held| held.until <= now) {
            let Held { until, net, bytes, .. } = self.held.remove(at);
            self.push(until, net, bytes);
        }
        if self.queue.peek()?.at > now {
            return None;
        }
        self.queue.pop().map(|due| (due.net, due.bytes))
    }

    /// Returns the next packet that is due at `now` without removing it. Call [`FaultPath::pop`]
    /// with this time or a later one before, so that held packets are queued.
    pub(crate) fn peek(&self, now: Time) -> Option<(&NetHeader, &[u8])> {
        let next = self.queue.peek().filter(|next| next.at <= now)?;
        Some((&next.net, &next.bytes))
    }

    /// Notes that a packet of this flow, due at `due`, overtakes the flow's held packets.
    fn overtake(&mut self, flow: usize, due: Time) {
        for held in self.held.iter_mut().filter(|held| held.flow == flow) {
            held.left -= 1;
        }
        while let Some(at) = self.held.iter().position(|held| held.left == 0) {
            let Held { net, bytes, .. } = self.held.remove(at);
            self.push(due, net, bytes);
        }
    }

    fn push(&mut self, at: Time, net: NetHeader, bytes: Vec<u8>) {
        self.order += 1;
        self.queue.push(Delivery { at, order: self.order, net, bytes });
    }
}

/// The heap pops its greatest element first, so earlier deliveries compare as greater.
impl Ord for Delivery {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Delivery {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Delivery {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Delivery {}
