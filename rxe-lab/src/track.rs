//! Finds retransmitted, missing and late packets by the PSNs of each queue pair. IBTA 9.7.
//!
//! A flow is identified by its two addresses and the destination QP. Requests of RC, XRC and UC
//! have consecutive PSNs; a READ request takes as many PSNs as it has response packets, which
//! depends on the path MTU. The path MTU is learned from the packets between the two addresses.
//! Each capture point is followed separately, so a frame captured at two points (`tcpdump -i any`)
//! is not taken for a retransmission.
//!
//! Memory is bounded by [`MAX_FLOWS`] flows and [`MAX_GAPS`] gaps per flow.

use std::collections::HashMap;
use std::fmt;

use rxe_core::types::Psn;
use rxe_core::wire::{OpKind, Position, Service, Syndrome};

use crate::frame::{Address, Frame, Transport};
use crate::point::Point;

/// The most flows that are followed; packets of further flows get no mark.
pub const MAX_FLOWS: usize = 1 << 16;

/// The most gaps that are kept for a flow; beyond that the oldest is dropped.
pub const MAX_GAPS: usize = 32;

/// A PSN at least this far from the expected one begins another conversation.
const RESTART: i32 = 1 << 18;

/// What the earlier packets of its flow tell about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A packet with this PSN was seen before.
    Retransmitted,
    /// At least this many packets before the packet were not seen.
    Gap(u32),
    /// The packet fills a gap, or its PSN is below that of the first packet of the flow.
    /// It was reordered, or it is a retransmission whose first copy was not captured.
    Late,
    /// The packet acknowledges nothing new.
    DuplicateAck,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retransmitted => f.write_str("retransmitted"),
            Self::Gap(1) => f.write_str("out of order: 1 packet missing before it"),
            Self::Gap(n) => write!(f, "out of order: {n} packets missing before it"),
            Self::Late => f.write_str("out of order: fills a gap"),
            Self::DuplicateAck => f.write_str("duplicate ACK"),
        }
    }
}

/// Follows all flows of a capture.
#[derive(Debug, Default)]
pub struct Tracker {
    flows: HashMap<Key, Flow>,
    /// Path MTUs in bytes, by pairs of addresses in ascending order.
    mtus: HashMap<(Address, Address), usize>,
}

/// The packets of one direction to one queue pair, captured at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    src: Address,
    dst: Address,
    dest_qp: u32,
    point: Point,
}

/// The state of one flow: its requests, and its responses to the peer's requests.
#[derive(Debug, Default)]
struct Flow {
    requests: Sequence,
    /// The highest PSN of a READ or atomic response.
    /// The other values tell whether its message continues and how many uncaptured packets may follow
    /// in its frame.
    response: Option<(Psn, bool, u32)>,
    response_gaps: Gaps,
    /// The PSN of the last positive acknowledgement.
    acked: Option<Psn>,
}

/// The requests of a flow.
#[derive(Debug, Default)]
struct Sequence {
    /// The highest PSN so far.
    /// The other values are the bytes that its request reads and the number of uncaptured packets that
    /// may follow in its frame.
    last: Option<(Psn, u32, u32)>,
    gaps: Gaps,
}

/// Ranges of skipped PSNs.
#[derive(Debug, Default)]
struct Gaps {
    /// The first PSN and the count of each.
    ranges: Vec<(Psn, u32)>,
    /// The lowest PSN of the flow, until it is too far back to be compared with.
    lowest: Option<Psn>,
}

impl Tracker {
    /// Returns the mark of the next packet of the capture.
    /// `interface` is the interface on which its frame was captured.
    pub fn observe(
        &mut self,
        interface: u32,
        frame: &Frame<'_>,
        packet: &Transport<'_>,
    ) -> Option<Mark> {
        let (src, dst) = frame.ends?;
        let info = packet.info?;
        if !matches!(info.service, Service::Rc | Service::Xrc | Service::Uc)
            || packet.wrong.is_some()
            || packet.icrc == crate::frame::Icrc::Wrong
        {
            return None;
        }
        let pair = (src.min(dst), src.max(dst));
        let is_full = matches!(info.position, Position::First | Position::Middle);
        let is_one = packet.unseen.most(None) == 0;
        if is_full && is_one && (self.mtus.len() < MAX_FLOWS || self.mtus.contains_key(&pair)) {
            let mtu = self.mtus.entry(pair).or_default();
            *mtu = packet.payload_len.max(*mtu);
        }
        let unseen = packet.most_unseen(self.mtus.get(&pair).copied());
        let dest_qp = packet.bth.dest_qp.value();
        let key = Key { src, dst, dest_qp, point: Point::of(interface, frame) };
        if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&key) {
            return None;
        }
        let flow = self.flows.entry(key).or_default();
        let psn = packet.bth.psn;
        match info.kind {
            OpKind::Acknowledge => {
                let positive = matches!(packet.ext.aeth?.syndrome, Syndrome::Ack { .. });
                if positive { flow.acknowledged(psn) } else { None }
            }
            OpKind::ReadResponse | OpKind::AtomicAcknowledge => {
                flow.responded(psn, !info.ends, unseen)
            }
            _ => {
                let read = match (info.kind, packet.ext.reth) {
                    (OpKind::ReadRequest, Some(reth)) => reth.dma_len,
                    _ => 0,
                };
                flow.requests.next(psn, (read, unseen), || self.mtus.get(&pair).copied())
            }
        }
    }

    /// Returns whether flows may have been ignored because there are too many.
    pub fn is_full(&self) -> bool {
        self.flows.len() >= MAX_FLOWS
    }
}

impl Flow {
    fn acknowledged(&mut self, psn: Psn) -> Option<Mark> {
        match self.acked {
            Some(last) if (-RESTART..=0).contains(&psn.diff(last)) => Some(Mark::DuplicateAck),
            _ => {
                self.acked = Some(psn);
                None
            }
        }
    }

    fn responded(&mut self, psn: Psn, goes_on: bool, unseen: u32) -> Option<Mark> {
        let Some((last, within, hidden)) = self.response else {
            self.response = Some((psn, goes_on, unseen));
            self.response_gaps.begin(psn);
            return None;
        };
        let ahead = psn.diff(last);
        if (-RESTART..=0).contains(&ahead) {
            return Some(self.response_gaps.fill(psn));
        }
        self.response = Some((psn, goes_on, unseen));
        self.response_gaps.reach(psn);
        // A PSN may be skipped between messages: it belonged to an ACK or to the response of a
        // WRITE.
        if !within || ahead.abs() > RESTART {
            return None;
        }
        let missing = (ahead.unsigned_abs() - 1).saturating_sub(hidden);
        (missing > 0).then(|| self.response_gaps.open(psn - missing, missing))
    }
}

impl Sequence {
    fn next(
        &mut self,
        psn: Psn,
        (read, unseen): (u32, u32),
        mtu: impl FnOnce() -> Option<usize>,
    ) -> Option<Mark> {
        let Some((last, last_read, hidden)) = self.last else {
            self.last = Some((psn, read, unseen));
            self.gaps.begin(psn);
            return None;
        };
        let (least, most) = if last_read == 0 { (1, 1 + hidden) } else { psns(last_read, mtu()) };
        let ahead = psn.diff(last + least);
        if (-RESTART..0).contains(&ahead) {
            return Some(self.gaps.fill(psn));
        }
        self.last = Some((psn, read, unseen));
        self.gaps.reach(psn);
        let slack = most - least;
        match ahead.unsigned_abs().checked_sub(slack) {
            None | Some(0) => None,
            _ if ahead.abs() > RESTART => {
                self.gaps.begin(psn);
                None
            }
            Some(missing) => Some(self.gaps.open(last + most, missing)),
        }
    }
}

impl Gaps {
    /// Begins a flow. What was sent before its first packet is unknown.
    fn begin(&mut self, first: Psn) {
        *self = Self { ranges: Vec::new(), lowest: Some(first) };
    }

    /// Notes the newest PSN. Earlier flows may have had PSNs that far behind it.
    fn reach(&mut self, psn: Psn) {
        self.lowest.take_if(|lowest| psn.diff(*lowest).abs() > RESTART);
    }

    /// Adds a gap of `count` PSNs.
    fn open(&mut self, first: Psn, count: u32) -> Mark {
        if self.ranges.len() == MAX_GAPS {
            self.ranges.remove(0);
        }
        self.ranges.push((first, count));
        Mark::Gap(count)
    }

    /// Returns the mark of a PSN below the highest seen, and removes it from its gap.
    fn fill(&mut self, psn: Psn) -> Mark {
        if let Some(lowest) = self.lowest.filter(|lowest| psn.before(*lowest)) {
            self.lowest = Some(psn);
            let between = lowest.diff(psn).unsigned_abs() - 1;
            if between > 0 {
                self.open(psn.next(), between);
            }
            return Mark::Late;
        }
        let within = |&(first, count): &(Psn, u32)| {
            u32::try_from(psn.diff(first)).is_ok_and(|place| place < count)
        };
        let Some(at) = self.ranges.iter().position(within) else { return Mark::Retransmitted };
        let (first, count) = self.ranges.swap_remove(at);
        let before = psn.diff(first).unsigned_abs();
        let rest = [(first, before), (psn.next(), count - before - 1)];
        self.ranges.extend(rest.into_iter().filter(|(_, count)| *count > 0));
        Mark::Late
    }
}

/// Returns the least and the most PSNs taken by a request that reads `read` bytes.
fn psns(read: u32, mtu: Option<usize>) -> (u32, u32) {
    const SMALLEST_MTU: u32 = 256;
    let mtu = mtu.and_then(|mtu| u32::try_from(mtu).ok()).filter(|mtu| *mtu > 0);
    match mtu {
        Some(mtu) => {
            let count = read.div_ceil(mtu).max(1);
            (count, count)
        }
        None => (read.div_ceil(4096).max(1), read.div_ceil(SMALLEST_MTU).max(1)),
    }
}

#[cfg(test)]
mod tests;
