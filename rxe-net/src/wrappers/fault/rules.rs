//! The rules of fault injection, as data.

use std::net::IpAddr;
use std::time::Duration;

use rxe_core::types::Qpn;
use rxe_core::wire::{OpKind, Opcode};

use crate::wrappers::pcap::Direction;

/// A rule of fault injection: an action, how often it happens, and to which packets.
///
/// A *flow* is the requests, or the responses, that one address sends to one queue pair. `amount`,
/// `after` and `burst` count the packets of each flow separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// What happens to a packet that is hit.
    pub action: FaultAction,
    /// How many packets of each flow are hit.
    pub amount: FaultAmount,
    /// The direction that the rule applies to, or `None` for both.
    pub direction: Option<Direction>,
    /// The packets that can be hit.
    pub only: PacketFilter,
    /// The number of matching packets of a flow that pass before the first can be hit.
    pub after: u64,
    /// The number of consecutive packets that each hit covers. At least 1; used for
    /// [`FaultAmount::Share`] only.
    pub burst: u32,
}

impl FaultRule {
    /// Creates a rule for all packets in both directions, without bursts.
    pub fn new(action: FaultAction, amount: FaultAmount) -> Self {
        let only = PacketFilter::default();
        Self { action, amount, direction: None, only, after: 0, burst: 1 }
    }
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The packet is lost.
    Drop,
    /// The packet arrives twice.
    Duplicate,
    /// The packet is held back until `by` later packets of its flow have passed. If fewer follow,
    /// it is held for [`FaultAction::HELD_AT_MOST`].
    Reorder {
        /// The number of packets that overtake this one. At least 1.
        by: u32,
    },
    /// The packet is delayed. The packets of its flow stay in order.
    Delay {
        /// The middle of the range of delays.
        base: Duration,
        /// The maximum difference between a delay and `base`. At most `base`.
        jitter: Duration,
    },
    /// One to four bits of the packet flip or, one time in eight, its end is cut off.
    Corrupt,
    /// The packet is marked "congestion experienced" (RFC 3168). Only packets that were sent as ECN
    /// capable can be hit.
    MarkEcn,
}

impl FaultAction {
    /// The maximum time for which a packet is held back to be overtaken.
    pub const HELD_AT_MOST: Duration = Duration::from_millis(1);
}

/// How many packets of a flow are hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAmount {
    /// This number of packets in a million, chosen by the seed. At most [`FaultAmount::MILLION`].
    Share(u32),
    /// This number of packets: the first ones that can be hit.
    First(u64),
}

impl FaultAmount {
    /// The share that stands for all packets.
    pub const MILLION: u32 = 1_000_000;
    /// Every packet.
    pub const ALL: Self = Self::Share(Self::MILLION);

    /// Returns this share of the packets, in percent from 0 to 100.
    pub const fn percent(percent: u32) -> Self {
        Self::Share(percent * (Self::MILLION / 100))
    }
}

/// Selects packets. At least one entry of each list must match; an empty list matches all packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// The destination queue pair.
    pub qps: Vec<QpFilter>,
    /// The opcode.
    pub opcodes: Vec<OpcodeFilter>,
    /// The packet sequence number.
    pub psns: Vec<PsnFilter>,
    /// The destination address.
    pub destinations: Vec<IpAddr>,
}

/// Selects destination queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpFilter {
    /// The queue pair with this number.
    Number(Qpn),
    /// The n-th queue pair that packets were sent to in this direction, counted from 1. QP0 and QP1
    /// do not count.
    Nth(u32),
}

/// Selects opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpcodeFilter {
    /// This opcode.
    Is(Opcode),
    /// All opcodes of this kind, for all transport services.
    Kind(OpKind),
}

/// Selects PSNs from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsnFilter {
    /// Whether `first` and `last` are distances from the flow's first PSN.
    pub relative: bool,
    /// The first PSN of the range.
    pub first: u32,
    /// The last PSN of the range.
    pub last: u32,
}
