//! The network of a run: fault rules, the transport of packets between engines, and the log.

use std::mem::discriminant;
use std::net::IpAddr;
use std::time::Duration;

use rxe_core::engine::Engine;
use rxe_core::types::Time;
use rxe_core::wire::{Frame, IpId, NetHeader, OpKind, Packet, TxBatch, TxLimits, icrc};
use rxe_net::{Fabric, FabricCounters, FaultAction, FaultAmount, FaultRule};

use super::ladder::Ladder;
use super::rng::Rng;
use crate::shared_memory::{Record, SharedMemory};

/// The properties of the network, drawn before the run begins.
#[derive(Clone, Debug)]
pub struct Network {
    /// The fault rules.
    pub faults: Vec<FaultRule>,
    /// Whether consecutive packets that arrive simultaneously are delivered as one frame.
    pub merge: bool,
    /// Whether IPv4 packets arrive without their identification, as from a UDP socket.
    pub hide_ids: bool,
    /// The seed of the network's decisions.
    pub seed: u64,
    /// The limits of the engines' bursts and batches.
    pub tx: TxLimits,
    /// The number of deliveries that an engine handles before it may send.
    pub per_turn: usize,
    /// How packets are passed between the engines and the network.
    pub road: Road,
}

/// How packets are passed between an engine and the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Road {
    /// In batches of whole packets.
    Batches,
    /// Through shared-memory rings, one to the network and one to the engine. The first accepts
    /// this number of packets at a time. Packets that the network has damaged come as whole frames.
    Rings(usize),
}

impl Network {
    /// Draws a network whose only fault is a delay that keeps the order.
    pub fn draw(rng: &mut Rng) -> Self {
        let (base, jitter) = rng.pick(&[(0, 0), (3, 0), (3, 2), (22, 18)]);
        let (base, jitter) = (Duration::from_micros(base), Duration::from_micros(jitter));
        let delay = FaultAction::Delay { base, jitter };
        let mut faults = vec![FaultRule::new(delay, FaultAmount::ALL)];
        let (merge, hide_ids) = (rng.chance(2, 3), rng.chance(1, 2));
        let tx = TxLimits {
            burst_segments: rng.pick(&[1, 1, 2, 64, 64]),
            batch_bytes: rng.pick(&[1, 5000, 256 << 10]),
            ..TxLimits::default()
        };
        if rng.chance(1, 5) {
            let marked = FaultAmount::Share(rng.pick(&[10_000, 100_000, 500_000]));
            faults.push(FaultRule::new(FaultAction::MarkEcn, marked));
        }
        Self {
            faults,
            merge,
            hide_ids,
            seed: rng.bits(),
            tx,
            per_turn: rng.pick(&[1, 3, 1000, 1000]),
            road: Road::Batches,
        }
    }

    /// Puts shared-memory rings between the engines and the network.
    pub fn over_rings(&mut self) {
        let room = Rng::new(self.seed ^ 0x0419).pick(&[1, 2, 7, 1000, usize::MAX]);
        self.road = Road::Rings(room);
    }

    /// Adds up to 20 % each of loss, duplication, reordering and damage.
    pub fn spoil(&mut self, rng: &mut Rng) {
        let reorder = FaultAction::Reorder { by: rng.pick(&[1, 3, 20]) };
        for action in [FaultAction::Drop, FaultAction::Duplicate, reorder, FaultAction::Corrupt] {
            let of = rng.pick(&[1, 10, 60, 201]);
            self.spoil_with(action, rng.below32(of));
        }
    }

    /// Adds a fault of `of_1000` of 1,000 packets.
    pub fn spoil_with(&mut self, action: FaultAction, of_1000: u32) {
        if of_1000 > 0 {
            self.faults.push(FaultRule::new(action, FaultAmount::Share(of_1000 * 1000)));
        }
    }

    /// Returns whether this fault happens to some packets, whatever its parameters.
    pub fn has(&self, action: FaultAction) -> bool {
        let is_it = |rule: &FaultRule| discriminant(&rule.action) == discriminant(&action);
        self.faults.iter().any(is_it)
    }

    /// Returns whether some packets are marked "congestion experienced".
    pub fn marks(&self) -> bool {
        self.has(FaultAction::MarkEcn)
    }

    /// Returns the longest time that a packet may be in flight.
    pub fn longest(&self) -> Duration {
        let time = |rule: &FaultRule| match rule.action {
            FaultAction::Delay { base, jitter } => base + jitter,
            FaultAction::Reorder { .. } => FaultAction::HELD_AT_MOST,
            _ => Duration::ZERO,
        };
        self.faults.iter().map(time).sum()
    }

    /// Returns whether packets are lost, duplicated, reordered or damaged.
    pub fn is_bad(&self) -> bool {
        self.good().len() < self.faults.len()
    }

    /// Returns the rules that only delay and mark.
    pub fn good(&self) -> Vec<FaultRule> {
        let good = |rule: &&FaultRule| {
            matches!(rule.action, FaultAction::Delay { .. } | FaultAction::MarkEcn)
        };
        self.faults.iter().filter(good).cloned().collect()
    }
}

/// The network at work.
#[derive(Debug)]
pub struct Wire {
    /// Carries packets.
    pub fabric: Fabric,
    /// The log.
    pub ladder: Ladder,
    sides: Vec<IpAddr>,
    batch: TxBatch,
    /// The rings from an engine and to an engine, for [`Road::Rings`].
    rings: Option<[SharedMemory; 2]>,
    per_turn: usize,
    /// Damaged packets that only the whole ICRC would have detected; see [`Wire::deliver`].
    pub weak_icrc: u64,
    /// A hash of all packets that were sent.
    pub trace: u64,
}

impl Wire {
    /// Creates the network between these addresses. `record`: write a log.
    pub fn new(network: &Network, sides: Vec<IpAddr>, record: bool) -> Self {
        let mut fabric = Fabric::new(network.seed, &network.faults);
        fabric.merge(network.merge);
        fabric.hide_ids(network.hide_ids);
        Self {
            fabric,
            ladder: Ladder::new(record, record || network.hide_ids),
            sides,
            batch: TxBatch::new(network.tx),
            rings: match network.road {
                Road::Batches => None,
                Road::Rings(room) => Some([SharedMemory::with_room(room), SharedMemory::default()]),
            },
            per_turn: network.per_turn,
            weak_icrc: 0,
            trace: 0,
        }
    }

    /// Returns the counters of the network.
    pub fn counters(&self) -> FabricCounters {
        self.fabric.counters()
    }

    /// Hands packets that have arrived to `take`, with their side. Returns whether there were any.
    ///
    /// If the IPv4 identification is hidden, only 15 bits of the ICRC can be checked: about one of
    /// 33,000 damaged packets passes, as on a real UDP socket. Such a packet is counted and not
    /// delivered. So if an engine accepts a damaged packet, the engine has a bug.
    pub fn deliver(&mut self, now: Time, mut take: impl FnMut(usize, &Frame<'_>)) -> bool {
        let mut any = false;
        for _ in 0..self.per_turn {
            let Some(delivery) = self.fabric.pop(now) else { break };
            any = true;
            let frame = delivery.frame();
            let to = self.to(&frame.net);
            let mut passes = true;
            for (net, bytes) in frame.packets() {
                if self.ladder.is_used() && !self.ladder.arrived(now, to, bytes) {
                    passes &= !(net.id == IpId::Hidden && icrc::check(&net, bytes).is_ok());
                }
            }
            if !passes {
                self.weak_icrc += 1;
                continue;
            }
            let mut take = |frame: &Frame<'_>| {
                if frame.net.dst.is_multicast() {
                    (0..self.sides.len()).for_each(|side| take(side, frame));
                } else {
                    take(to, frame);
                }
            };
            match &mut self.rings {
                Some([_, ring]) => ring.carry(Record::Coalesced, frame.packets(), &mut take),
                None => take(&frame),
            }
        }
        any
    }

    /// Takes the packets that one side's engine sends, and calls `look` with each.
    /// Returns whether there were any.
    ///
    /// # Errors
    /// The error of `look`.
    pub fn transmit(
        &mut self,
        now: Time,
        from: usize,
        engine: &mut Engine,
        mut look: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<bool, String> {
        let Self { fabric, ladder, sides, batch, rings, trace, .. } = self;
        let mut sent = |net: &NetHeader, bytes: &[u8]| {
            *trace = mix(*trace, bytes, now);
            if ladder.is_used() {
                let to = sides.iter().position(|ip| *ip == net.dst);
                ladder.sent(now, from, to.unwrap_or(usize::MAX), bytes);
            }
            look(bytes)
        };
        let mut any = false;
        match rings {
            Some([ring, _]) => {
                any = ring.transmit(now, engine, batch, |net, bytes| {
                    fabric.send_frame(now, &Frame::single(*net, bytes));
                    sent(net, bytes)
                })?;
            }
            None => engine.poll_transmit(now, batch),
        }
        any |= !batch.is_empty();
        for frame in batch.frames() {
            for (net, bytes) in frame.packets() {
                sent(&net, bytes)?;
            }
        }
        fabric.send(now, batch);
        Ok(any)
    }

    fn to(&self, net: &NetHeader) -> usize {
        self.sides.iter().position(|ip| *ip == net.dst).unwrap_or(usize::MAX)
    }
}

/// Checks that a queue pair in the error state may send a packet.
/// Such a queue pair may only acknowledge requests and notify of congestion.
///
/// # Errors
/// The packet is of another kind.
pub fn check_err(packet: &Packet<'_>) -> Result<(), String> {
    match packet.info().kind {
        OpKind::Acknowledge | OpKind::Cnp => Ok(()),
        _ => Err(format!("a queue pair in ERR sent {}", packet.opcode().name())),
    }
}

fn mix(trace: u64, bytes: &[u8], now: Time) -> u64 {
    let tail = bytes.last_chunk::<4>().map_or(0, |icrc| u32::from_le_bytes(*icrc));
    let word = u64::from(tail) ^ now.as_nanos().rotate_left(32) ^ bytes.len() as u64;
    (trace ^ word).wrapping_mul(0x0000_0100_0000_01b3)
}
