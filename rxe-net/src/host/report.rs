//! Reports of an open device to a user, and its packets ([`super::stream`]).
//!
//! A question goes to the device's control socket ([`super::control`]). Who may connect, how the
//! peer is authenticated, and what a dead process leaves behind are as for leases. The thread of
//! the socket answers, so a question does not affect the data path until the [`Reporter`] takes the
//! shard's lock, for a bounded time.

use std::fmt;

use super::stream::CaptureStream;

/// A question: its subject, and the position in a list to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The subject. The reporter defines the numbers.
    pub subject: u8,
    /// The position in a list that is answered in pieces; 0 at first.
    pub from: u32,
}

/// Reports on an open device.
///
/// A reporter must not own anything that keeps the device's backend alive: it is called on a thread
/// that the backend ends.
pub trait Reporter: Send {
    /// Returns the answer, at most [`MAX_REPORT`] bytes. May wait for some tens of milliseconds.
    fn report(&self, question: Question) -> Vec<u8>;

    /// Starts to send packets to the process that has asked for them. The capture lasts until
    /// [`Reporter::end_capture`] or until [`CaptureStream`] fails. Returns whether it has started.
    /// If not, the stream must be dropped.
    fn capture(&self, to: CaptureStream) -> bool;

    /// Ends the capture that has started: the reader is gone, or wants no more packets.
    fn end_capture(&self);
}

impl fmt::Debug for dyn Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reporter")
    }
}

/// The maximum length of an answer in bytes.
pub const MAX_REPORT: usize = 64 << 10;
