//! What a device is asked by a person, and who answers; also for its packets ([`super::stream`]).
//!
//! The question goes to the device's control socket ([`super::control`]), which is there already: who
//! may connect, who is behind it, and what a dead process leaves, are as for leases. Its thread
//! answers, so a question costs the data path nothing until the [`Reporter`] takes the shard's lock,
//! for a bounded time.

use std::fmt;

use super::stream::CaptureStream;

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

    /// Starts to send packets to whoever has asked for them, until [`Reporter::end_capture`] or
    /// [`CaptureStream`] fails. Returns whether it has started. If not, nothing may keep the stream.
    fn capture(&self, to: CaptureStream) -> bool;

    /// The capture that has started ends: who asked is gone, or wants no more.
    fn end_capture(&self);
}

impl fmt::Debug for dyn Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reporter")
    }
}

/// Bytes of an answer at most.
pub const MAX_REPORT: usize = 64 << 10;
