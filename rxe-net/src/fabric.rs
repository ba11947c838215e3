//! A simulated network in memory. [`Fabric`] applies the rules of [`crate::wrappers::fault`] to
//! packets and cuts links. It has no clock and no thread: its caller passes the time, so the same
//! seed and the same calls give the same result.
//!
//! [`SwitchedNetwork`] adds a switch with finite links and queues ([`Egress`]). On Linux, a `Hub`
//! connects several devices of one process in real time: each gets a `FabricPort`, which is a
//! backend.
//!
//! Invariant: without rules, packets arrive in the order in which they were sent.

mod egress;
#[cfg(target_os = "linux")]
mod port;
mod switched;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::IpAddr;

use rxe_core::types::Time;
use rxe_core::wire::{Frame, IpId, NetHeader, TxBatch};

pub use egress::{Egress, EgressCounters, EgressQueue, Marking, Passage};
#[cfg(target_os = "linux")]
pub use port::{FabricPort, Hub};
pub use switched::{LinkConfig, SwitchCounters, SwitchedNetwork};

use crate::wrappers::fault::{FaultPath, FaultRule, PathCounters};
use crate::wrappers::pcap::Direction;

/// The maximum number of packets in one merged frame, as with UDP_GRO.
const MAX_MERGED: u16 = 64;
/// The maximum size of one merged frame in bytes, below the limit of 64 KiB for a UDP datagram.
const MAX_MERGED_BYTES: usize = 65_000;

/// Counts of the packets that a [`Fabric`] has handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricCounters {
    /// Packets that entered the network, and what the rules did to them.
    pub path: PathCounters,
    /// Packets that were delivered.
    pub delivered: u64,
    /// Packets that were lost because the link between their addresses was cut.
    pub cut: u64,
}

/// A simulated network. Packets enter with [`Fabric::send`] and leave with [`Fabric::pop`].
#[derive(Debug)]
pub struct Fabric {
    path: FaultPath,
    merge: bool,
    hide_ids: bool,
    cuts: HashSet<(IpAddr, IpAddr)>,
    delivered: u64,
    cut: u64,
}

/// One or more packets that have arrived as one frame.
#[derive(Clone, Debug)]
pub struct Delivery {
    at: Time,
    net: NetHeader,
    segment: usize,
    bytes: Vec<u8>,
}

impl Delivery {
    /// Returns the time at which the packets arrived.
    pub fn at(&self) -> Time {
        self.at
    }

    /// Returns the packets.
    pub fn frame(&self) -> Frame<'_> {
        Frame { segment: self.segment, ..Frame::single(self.net, &self.bytes) }
    }
}

impl Fabric {
    /// Creates a network with these rules, whose random decisions follow from `seed`. Every packet
    /// counts as outbound: rules for inbound packets hit none.
    pub fn new(seed: u64, rules: &[FaultRule]) -> Self {
        let path = FaultPath::new(seed, rules, Direction::Outbound);
        let cuts = HashSet::new();
        Self { path, merge: false, hide_ids: false, cuts, delivered: 0, cut: 0 }
    }

    /// Sets whether consecutive packets that arrive simultaneously are merged, as UDP_GRO does.
    pub fn merge(&mut self, on: bool) {
        self.merge = on;
    }

    /// Sets whether IPv4 packets lose their identification, as when a UDP socket receives them.
    pub fn hide_ids(&mut self, on: bool) {
        self.hide_ids = on;
    }

    /// Replaces the rules for packets sent from now on.
    pub fn set_rules(&mut self, rules: &[FaultRule]) {
        self.path.set_rules(rules);
    }

    /// Cuts the link between `a` and `b`: packets sent from now on are lost, in both directions.
    /// Packets in transit still arrive.
    pub fn cut(&mut self, a: IpAddr, b: IpAddr) {
        self.cuts.extend([(a, b), (b, a)]);
    }

    /// Like [`Fabric::cut`], for packets from `from` to `to` only.
    pub fn cut_one_way(&mut self, from: IpAddr, to: IpAddr) {
        self.cuts.insert((from, to));
    }

    /// Restores all links.
    pub fn heal_all(&mut self) {
        self.cuts.clear();
    }

    /// Restores the link between `a` and `b`, in both directions.
    pub fn heal(&mut self, a: IpAddr, b: IpAddr) {
        self.cuts.remove(&(a, b));
        self.cuts.remove(&(b, a));
    }

    /// Returns the counts so far.
    pub fn counters(&self) -> FabricCounters {
        FabricCounters { path: self.path.counters(), delivered: self.delivered, cut: self.cut }
    }

    /// Sends all pending packets of the batch.
    pub fn send(&mut self, now: Time, batch: &mut TxBatch) {
        for frame in batch.frames() {
            self.send_frame(now, &frame);
        }
        batch.mark_sent(batch.pending().len());
    }

    /// Sends the packets of a frame.
    pub fn send_frame(&mut self, now: Time, frame: &Frame<'_>) {
        for (mut net, bytes) in frame.packets() {
            if self.cuts.contains(&(net.src, net.dst)) {
                self.cut += 1;
                continue;
            }
            if self.hide_ids && matches!(net.id, IpId::Known { .. }) {
                net.id = IpId::Hidden;
            }
            self.path.take_packet(now, net, bytes);
        }
    }

    /// Returns the time at which the next packet is due.
    pub fn next_delivery(&self) -> Option<Time> {
        self.path.next_delivery()
    }

    /// Removes the next packet that is due at `now`, or several if they are merged.
    pub fn pop(&mut self, now: Time) -> Option<Delivery> {
        let at = self.next_delivery()?;
        let (net, mut bytes) = self.path.pop(now)?;
        let segment = bytes.len();
        let mut count = 1;
        while self.merge
            && bytes.len() == segment * usize::from(count)
            && let Some((next, more)) = self.path.peek(at)
            && *next == net.nth(count)
            && more.len() <= segment
            && count < MAX_MERGED
            && bytes.len() + more.len() <= MAX_MERGED_BYTES
        {
            bytes.extend_from_slice(more);
            self.path.pop(at);
            count += 1;
        }
        self.delivered += u64::from(count);
        Some(Delivery { at, net, segment, bytes })
    }

    /// Passes all packets that are due at `now` to `sink`, one by one. Returns their number.
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
}
