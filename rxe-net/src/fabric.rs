//! A simulated network in memory. [`Fabric`] loses, duplicates, reorders, damages and delays
//! packets, and cuts links. It has no clock and no thread: its caller passes the time, so the same
//! seed and the same calls give the same result.
//!
//! [`Star`] adds a switch with finite links and queues ([`Egress`]). On Linux, a `Hub` connects
//! several devices of one process in real time: each gets a `FabricPort`, which is a backend.
//!
//! Invariants: without impairments, packets between two addresses arrive in the order in which they
//! were sent; no packet is delivered before the minimum delay has passed.

mod egress;
#[cfg(target_os = "linux")]
mod port;
mod star;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use rxe_core::types::Time;
use rxe_core::wire::{Frame, IpId, NetHeader, TxBatch};

pub use egress::{Egress, EgressCounters, EgressQueue, Marking, Passage};
#[cfg(target_os = "linux")]
pub use port::{FabricPort, Hub};
pub use star::{LinkConfig, Star, StarCounters};

use crate::rng::Rng;

/// The impairments of the network. The default is a perfect network without delay.
#[derive(Clone, Debug, PartialEq)]
pub struct Impairments {
    /// The probability (0 to 1) that a packet is lost.
    pub loss: f64,
    /// The probability that a packet arrives twice.
    pub duplicate: f64,
    /// The probability that a packet is delayed, so that later ones overtake it.
    pub reorder: f64,
    /// The maximum extra delay of a reordered packet and of the second copy of a duplicate.
    pub reorder_by: Duration,
    /// The probability that bits of a packet flip, or that the packet is truncated.
    pub corrupt: f64,
    /// The range of the time from sending to delivery, chosen per frame.
    pub delay: RangeInclusive<Duration>,
    /// Whether consecutive packets of a burst are delivered as one frame, as by UDP_GRO.
    pub merge: bool,
    /// Whether IPv4 packets are delivered without their ID, as by a UDP socket.
    pub hide_ids: bool,
}

impl Default for Impairments {
    fn default() -> Self {
        Self {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_micros(200),
            corrupt: 0.0,
            delay: Duration::ZERO..=Duration::ZERO,
            merge: true,
            hide_ids: false,
        }
    }
}

/// The number of packets that a [`Fabric`] has handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricCounters {
    /// Packets sent into the network.
    pub sent: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets delayed so that others overtake them.
    pub reordered: u64,
    /// Packets with flipped bits or a truncated end. A packet truncated to nothing is not
    /// delivered.
    pub corrupted: u64,
    /// Packets lost because the link between their addresses was cut.
    pub cut: u64,
}

/// A simulated network: packets go in with [`Fabric::send`] and come out with [`Fabric::pop`].
#[derive(Debug)]
pub struct Fabric {
    rng: Rng,
    impairments: Impairments,
    queue: BinaryHeap<Queued>,
    /// The delivery time of the last packet in order between two addresses.
    latest: HashMap<(IpAddr, IpAddr), Time>,
    cuts: HashSet<(IpAddr, IpAddr)>,
    /// The number of deliveries scheduled so far. Deliveries due at the same time leave in this
    /// order.
    order: u64,
    counters: FabricCounters,
}

/// Delivered packets: one, or several of a burst.
#[derive(Clone, Debug)]
pub struct Delivery {
    at: Time,
    net: NetHeader,
    segment: usize,
    bytes: Vec<u8>,
}

impl Delivery {
    /// Returns the time of the delivery.
    pub fn at(&self) -> Time {
        self.at
    }

    /// Returns the packets as a frame.
    pub fn frame(&self) -> Frame<'_> {
        Frame { segment: self.segment.max(1), ..Frame::single(self.net, &self.bytes) }
    }
}

impl Fabric {
    /// Creates a network whose random decisions depend on `seed`.
    pub fn new(seed: u64, impairments: Impairments) -> Self {
        Self {
            rng: Rng::new(seed),
            impairments,
            queue: BinaryHeap::new(),
            latest: HashMap::new(),
            cuts: HashSet::new(),
            order: 0,
            counters: FabricCounters::default(),
        }
    }

    /// Changes the impairments for packets sent from now on.
    pub fn set_impairments(&mut self, impairments: Impairments) {
        self.impairments = impairments;
    }

    /// Returns the current impairments.
    pub fn impairments(&self) -> &Impairments {
        &self.impairments
    }

    /// Cuts the link between `a` and `b`: packets sent from now on are lost, in both directions.
    /// Packets on the way still arrive.
    pub fn cut(&mut self, a: IpAddr, b: IpAddr) {
        self.cuts.extend([(a, b), (b, a)]);
    }

    /// Like [`Fabric::cut`], for packets from `from` to `to` only.
    pub fn cut_one_way(&mut self, from: IpAddr, to: IpAddr) {
        self.cuts.insert((from, to));
    }

    /// Ends all cuts.
    pub fn heal_all(&mut self) {
        self.cuts.clear();
    }

    /// Ends the cuts between `a` and `b`.
    pub fn heal(&mut self, a: IpAddr, b: IpAddr) {
        self.cuts.remove(&(a, b));
        self.cuts.remove(&(b, a));
    }

    /// Returns the counters.
    pub fn counters(&self) -> FabricCounters {
        self.counters
    }

    /// Sends all pending packets of the batch.
    pub fn send(&mut self, now: Time, batch: &mut TxBatch) {
        for frame in batch.frames() {
            self.send_frame(now, &frame);
        }
        batch.mark_sent(batch.pending().len());
    }

    /// Sends one frame. The fate of each packet is decided separately.
    pub fn send_frame(&mut self, now: Time, frame: &Frame<'_>) {
        // The delivery that the next packet of this frame can join.
        let mut open: Option<Queued> = None;
        let delay = self.delay();
        for (net, bytes) in frame.packets() {
            self.counters.sent += 1;
            let net = NetHeader { id: self.visible(net.id), ..net };
            if self.cuts.contains(&(net.src, net.dst)) {
                self.counters.cut += 1;
                continue;
            }
            let fate = self.fate();
            if let Fate::Lost = fate {
                self.counters.lost += 1;
                self.queue.extend(open.take());
                continue;
            }
            let due = now + delay;
            let in_order = self.in_order(&net, due);
            if self.rng.chance(self.impairments.duplicate) {
                self.counters.duplicated += 1;
                let at = in_order + self.hold_back();
                let copy = self.queued(at, net, bytes.to_vec());
                self.queue.push(copy);
            }
            match fate {
                Fate::Whole => match &mut open {
                    Some(q) if q.takes(in_order, bytes) => q.0.bytes.extend_from_slice(bytes),
                    _ => {
                        self.queue.extend(open.take());
                        let mut next = self.queued(in_order, net, bytes.to_vec());
                        next.0.segment = frame.segment;
                        if self.impairments.merge {
                            open = Some(next);
                        } else {
                            self.queue.push(next);
                        }
                    }
                },
                Fate::Late => {
                    self.counters.reordered += 1;
                    self.queue.extend(open.take());
                    let at = in_order + self.hold_back();
                    let late = self.queued(at, net, bytes.to_vec());
                    self.queue.push(late);
                }
                Fate::Damaged => {
                    self.counters.corrupted += 1;
                    self.queue.extend(open.take());
                    let mut bytes = bytes.to_vec();
                    self.rng.damage(&mut bytes);
                    if !bytes.is_empty() {
                        let damaged = self.queued(in_order, net, bytes);
                        self.queue.push(damaged);
                    }
                }
                Fate::Lost => {}
            }
        }
        self.queue.extend(open);
    }

    /// Returns the time of the next delivery, if any is scheduled.
    pub fn next_delivery(&self) -> Option<Time> {
        self.queue.peek().map(|q| q.0.at)
    }

    /// Returns the next delivery that is due at `now`.
    pub fn pop(&mut self, now: Time) -> Option<Delivery> {
        if self.next_delivery()? > now {
            return None;
        }
        let Queued(delivery, _) = self.queue.pop()?;
        self.counters.delivered += delivery.frame().packets().count() as u64;
        Some(delivery)
    }

    /// Hands all packets that are due at `now` to `sink`, one by one. Returns their number.
    pub fn deliver(&mut self, now: Time, mut sink: impl FnMut(NetHeader, &[u8])) -> usize {
        let mut count = 0;
        while let Some(delivery) = self.pop(now) {
            for (net, bytes) in delivery.frame().packets() {
                sink(net, bytes);
                count += 1;
            }
        }
        count
    }

    /// Draws the fate of a packet.
    fn fate(&mut self) -> Fate {
        if self.rng.chance(self.impairments.loss) {
            Fate::Lost
        } else if self.rng.chance(self.impairments.corrupt) {
            Fate::Damaged
        } else if self.rng.chance(self.impairments.reorder) {
            Fate::Late
        } else {
            Fate::Whole
        }
    }

    fn delay(&mut self) -> Duration {
        let (min, max) = (*self.impairments.delay.start(), *self.impairments.delay.end());
        min + self.up_to(max.saturating_sub(min))
    }

    /// Returns the extra delay of a reordered packet: at least a nanosecond, so that the order
    /// changes.
    fn hold_back(&mut self) -> Duration {
        Duration::from_nanos(1) + self.up_to(self.impairments.reorder_by)
    }

    fn up_to(&mut self, limit: Duration) -> Duration {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        if nanos == 0 { limit } else { Duration::from_nanos(self.rng.below(nanos + 1)) }
    }

    /// Returns when a packet due at `due` is delivered without overtaking earlier ones.
    fn in_order(&mut self, net: &NetHeader, due: Time) -> Time {
        let latest = self.latest.entry((net.src, net.dst)).or_default();
        *latest = due.max(*latest);
        *latest
    }

    fn queued(&mut self, at: Time, net: NetHeader, bytes: Vec<u8>) -> Queued {
        self.order += 1;
        Queued(Delivery { at, net, segment: bytes.len(), bytes }, self.order)
    }

    fn visible(&self, id: IpId) -> IpId {
        match id {
            IpId::Known { .. } if self.impairments.hide_ids => IpId::Hidden,
            id => id,
        }
    }
}

enum Fate {
    Whole,
    Late,
    Damaged,
    Lost,
}

/// A delivery in the heap, with its order among deliveries of the same time. The heap pops its
/// greatest element first, so earlier deliveries compare as greater.
#[derive(Debug)]
struct Queued(Delivery, u64);

impl Queued {
    /// Returns whether the next packet of the same frame can join this delivery.
    fn takes(&self, at: Time, bytes: &[u8]) -> bool {
        let Delivery { segment, bytes: have, at: due, .. } = &self.0;
        *due == at && have.len() % segment == 0 && bytes.len() <= *segment
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.0.at, other.1).cmp(&(self.0.at, self.1))
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Queued {}
