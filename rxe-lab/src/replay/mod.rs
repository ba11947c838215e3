//! Replays one side of a conversation to a live peer and compares its answers.
//! IBTA 9.7 (RC), 9.8 (UC and UD).
//!
//! - [`Recording`] keeps the packets of a capture, and returns the requests sent to one queue pair
//!   and their answers: a [`Conversation`].
//! - [`Plan`] lists what to send and what to expect. To build it, the recorded responder's handling
//!   of each packet is inferred, each address gets a place in the peer's region, and the expected
//!   content of the peer's memory is computed.
//! - [`Outgoing::render`] writes a packet for the peer. Queue pair number, PSN, address, key and
//!   ICRC are adapted to the peer; everything else, including errors, is as recorded.
//! - [`Comparison`] compares the peer's answers with the recorded ones.
//!
//! Captures and answers are not trusted. Memory is bounded by [`MAX_BYTES`] of packets, as many
//! bytes of READ data, and the part of the peer's region that requests use.

mod comparison;
mod layout;
mod memory;
mod outgoing;
mod plan;
mod recording;
mod responder;
#[cfg(test)]
mod tests;

pub use comparison::{Comparison, Difference};
pub use layout::TooLarge;
pub use outgoing::{Outgoing, Target};
pub use plan::{Expected, Plan, Receive, Step, Wanted};
pub use recording::{Conversation, Cut, Ends, MAX_BYTES, NoConversation, Recording};

use std::net::IpAddr;
use std::time::Duration;

/// A responder as a scenario describes it, with facts that its packets do not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responder {
    /// The address of the responder's host.
    pub address: IpAddr,
    /// The number of the responder's queue pair.
    pub qpn: u32,
    /// The number of the queue pair to which it is connected.
    pub peer_qpn: Option<u32>,
    /// The first PSN that the responder expects.
    pub first_psn: u32,
    /// The path MTU in bytes.
    pub path_mtu: Option<usize>,
    /// The memory region of the responder's engine.
    /// `None` if it has no engine and its packets are hand-made.
    pub engine: Option<Region>,
    /// The receives in posting order, each with the earliest send time of a packet that finds it posted.
    pub receives: Vec<(Duration, Receive)>,
}

/// A responder's memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first address of the region.
    pub start: u64,
    /// The length of the region in bytes.
    pub len: u64,
    /// The key of the region.
    pub rkey: u32,
    /// Access rights as in `IBV_ACCESS_*`: local write 1, remote write 2, read 4, atomic 8.
    pub access: u8,
}
