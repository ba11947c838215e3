//! One side of a recorded conversation, made ready to be sent to a live peer, and what the peer's answers
//! differ in from the recorded ones. IBTA 9.7 (RC), 9.8 (UC and UD).
//!
//! - [`Recording`] keeps the packets of a capture, and gives the requests that one queue pair was sent, with
//!   the answers: a [`Conversation`].
//! - [`Plan`] says what is to be sent and what should come: it follows what the recorded responder did with
//!   each packet, finds a place in the peer's region for each address, and knows what the peer's memory
//!   should have.
//! - [`Outgoing::render`] writes a packet for the peer: queue pair number, PSN, address, key and ICRC are
//!   the peer's; all else, also what is wrong, is as recorded.
//! - [`Comparison`] holds what comes against what was recorded.
//!
//! Captures and answers are not trusted. Memory is bounded: [`MAX_BYTES`] of packets, as many of data that READs
//! have read, and what requests use of the peer's region.

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

/// What is known of the responder beside its packets, since a scenario describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responder {
    /// Its host.
    pub address: IpAddr,
    /// Its queue pair.
    pub qpn: u32,
    /// The queue pair that it is connected with.
    pub peer_qpn: Option<u32>,
    /// The first PSN that it expects.
    pub first_psn: u32,
    /// In bytes.
    pub path_mtu: Option<usize>,
    /// What its engine has; `None` if there is none, and its packets were made by hand.
    pub engine: Option<Region>,
    /// Its receives, in the order in which they were posted.
    pub receives: Vec<(Duration, Receive)>,
}

/// A responder's memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its first address.
    pub start: u64,
    /// In bytes.
    pub len: u64,
    /// The key.
    pub rkey: u32,
    /// Rights, as in `IBV_ACCESS_*`: local write 1, remote write 2, read 4, atomic 8.
    pub access: u8,
}
