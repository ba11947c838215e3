//! What a device is asked by a person, and who answers.
//!
//! The question goes to the device's control socket ([`super::control`]), which is there already: who
//! may connect, who is behind it, and what a dead process leaves, are as for leases. Its thread
//! answers, so a question costs the data path nothing until the [`Reporter`] takes the shard's lock,
//! for a bounded time.

use std::fmt;

/// A question: what about, and from which place of a list on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// What it is about. The numbers are the reporter's.
    pub subject: u8,
    /// The place in a list that is answered in pieces; 0 at first.
    pub from: u32,
}

/// Reports on an open device.
///
/// A reporter must own nothing that keeps the device's backend: it is called on a thread that the
/// backend ends.
pub trait Reporter: Send {
    /// The answer: at most [`MAX_REPORT`] bytes. It may wait for some tens of milliseconds.
    fn report(&self, question: Question) -> Vec<u8>;
}

impl fmt::Debug for dyn Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reporter")
    }
}

/// Bytes of an answer at most.
pub const MAX_REPORT: usize = 64 << 10;
