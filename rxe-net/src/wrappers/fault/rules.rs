//! What is to happen to packets, as data.

use std::net::IpAddr;
use std::time::Duration;

use rxe_core::types::Qpn;
use rxe_core::wire::{OpKind, Opcode};

use crate::wrappers::pcap::Direction;

/// One fault: what happens, how often, and to which packets.
///
/// A *flow* is what goes to one queue pair from one address in one direction, requests and responses
/// apart. `amount`, `after` and `burst` count the packets of each flow separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// What happens to a packet that is hit.
    pub action: FaultAction,
    /// How many packets are hit.
    pub amount: FaultAmount,
    /// The direction, or `None` for both.
    pub direction: Option<Direction>,
    /// The packets that can be hit.
    pub only: PacketFilter,
    /// So many of these packets of a flow pass first.
    pub after: u64,
    /// A share of the packets is hit in runs of this length. At least 1.
    pub burst: u32,
}

impl FaultRule {
    /// A rule for all packets in both directions, which hits them one by one.
    pub fn new(action: FaultAction, amount: FaultAmount) -> Self {
        let only = PacketFilter::default();
        Self { action, amount, direction: None, only, after: 0, burst: 1 }
    }
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It is held back until so many later packets of its flow have passed, or for
    /// [`FaultAction::HELD_AT_MOST`] if they do not come.
    Reorder {
        /// The number of packets that overtake it. At least 1.
        by: u32,
    },
    /// It is delayed. The packets of its flow stay in order.
    Delay {
        /// The middle of the range of delays.
        base: Duration,
        /// A delay differs from `base` by this at most. Not more than `base`.
        jitter: Duration,
    },
    /// One to four of its bits flip, or, one time in eight, its end is cut off.
    Corrupt,
    /// It is marked "congestion experienced" (RFC 3168). Only packets that were sent as ECN capable
    /// can be hit.
    MarkEcn,
}

impl FaultAction {
    /// How long a packet is held back at most to be overtaken.
    pub const HELD_AT_MOST: Duration = Duration::from_millis(1);
}

/// How many packets of a flow are hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAmount {
    /// So many of a million, chosen by the seed. At most [`FaultAmount::MILLION`].
    Share(u32),
    /// The first so many.
    First(u64),
}

impl FaultAmount {
    /// The share that is all packets.
    pub const MILLION: u32 = 1_000_000;
    /// Every packet.
    pub const ALL: Self = Self::Share(Self::MILLION);

    /// This share of the packets, 0 to 100 %.
    pub const fn percent(percent: u32) -> Self {
        Self::Share(percent * (Self::MILLION / 100))
    }
}

/// Chooses packets. Each list that is not empty must have an entry that fits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// The queue pair that the packet goes to.
    pub qps: Vec<QpFilter>,
    /// The operation.
    pub opcodes: Vec<OpcodeFilter>,
    /// The packet sequence number.
    pub psns: Vec<PsnFilter>,
    /// The address that the packet goes to.
    pub destinations: Vec<IpAddr>,
}

/// Chooses queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpFilter {
    /// The one with this number.
    Number(Qpn),
    /// The one that packets went to as the n-th in this direction, counted from 1. QP0 and QP1 are
    /// not counted.
    Nth(u32),
}

/// Chooses operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpcodeFilter {
    /// This opcode.
    Is(Opcode),
    /// All opcodes of this kind, of all services.
    Kind(OpKind),
}

/// Chooses sequence numbers: from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsnFilter {
    /// Whether they are counted from the flow's first PSN.
    pub relative: bool,
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
}
