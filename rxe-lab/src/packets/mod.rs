//! The packets of a capture one by one: which to show, and how.
//! `rxe decode` and the page of the laboratory print them.

mod field;
mod filter;
mod json;
mod summary;

use std::time::Duration;

use crate::capture::Record;
use crate::frame::{Content, Frame, Transport};
use crate::track::{Mark, Tracker};

pub use field::field_text;
pub use filter::{Filter, Only, Property, number, opcode, psns};
pub use json::write_json;
pub use summary::{Numbers, Summary};

/// A packet to show.
#[derive(Debug)]
pub struct Shown<'a> {
    /// The record of the capture.
    pub record: &'a Record<'a>,
    /// The decoded frame.
    pub frame: &'a Frame<'a>,
    /// The packet; `None` for a malformed frame.
    pub packet: Option<&'a Transport<'a>>,
    /// What earlier packets show of it.
    pub mark: Option<Mark>,
    /// The time since the first frame of the capture.
    pub since: Duration,
}

/// Takes the frames of a capture in their order, and finds what earlier packets show of each packet.
#[derive(Debug, Default)]
pub struct Decoder {
    tracker: Tracker,
    summary: Summary,
}

impl Decoder {
    /// Calls `show` for each packet of the next frame. `since` is the time since the first frame.
    /// A malformed frame counts as a packet; other traffic is counted only.
    ///
    /// # Errors
    /// Fails if `show` does.
    pub fn add<E>(
        &mut self,
        record: &Record<'_>,
        frame: &Frame<'_>,
        since: Duration,
        mut show: impl FnMut(&mut Summary, &Shown<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { tracker, summary } = self;
        summary.count(frame, since);
        let shown = Shown { record, frame, packet: None, mark: None, since };
        match &frame.content {
            Content::Rdma(packets) => packets.iter().try_for_each(|packet| {
                let mark = tracker.observe(record.interface, frame, packet);
                show(summary, &Shown { packet: Some(packet), mark, ..shown })
            }),
            Content::Malformed(_) => show(summary, &shown),
            _ => Ok(()),
        }
    }

    /// Returns what the capture has so far.
    pub fn summary(&mut self) -> &Summary {
        self.summary.full = self.tracker.is_full();
        &self.summary
    }
}
