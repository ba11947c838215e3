//! The frames of a capture in memory.

use std::collections::HashMap;
use std::time::Duration;

use rxe_lab::capture::{LinkType, Record};
use rxe_lab::check::Checker;
use rxe_lab::frame;

/// The frames of a capture, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Store {
    bytes: Vec<u8>,
    frames: Vec<Kept>,
    /// The comments of the file on frames, by the index of the frame.
    comments: HashMap<usize, Vec<String>>,
}

/// The metadata of a frame.
#[derive(Debug)]
struct Kept {
    /// Where the bytes of the frame end; they begin where those of the frame before end.
    end: usize,
    original_len: usize,
    at: Option<Duration>,
    interface: u32,
    link: LinkType,
}

impl Store {
    /// Appends a frame. Fails if there is no memory for it.
    pub(crate) fn add(&mut self, record: &Record<'_>) -> Result<(), String> {
        let frames = self.frames.len();
        let full = |_| {
            format!(
                "there is no memory for more than {frames} frames: `rxe check` reads files of any size"
            )
        };
        self.bytes.try_reserve(record.bytes.len()).map_err(full)?;
        self.frames.try_reserve(1).map_err(full)?;
        if !record.comments.is_empty() {
            self.comments.insert(self.frames.len(), record.comments.clone());
        }
        self.bytes.extend_from_slice(record.bytes);
        self.frames.push(Kept {
            end: self.bytes.len(),
            original_len: record.original_len,
            at: record.at,
            interface: record.interface,
            link: record.link,
        });
        Ok(())
    }

    /// Returns the frame with this index, counted from 0.
    pub(crate) fn record(&self, index: usize) -> Option<Record<'_>> {
        let kept = self.frames.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.frames[before].end);
        Some(Record {
            number: index as u64 + 1,
            at: kept.at,
            interface: kept.interface,
            link: kept.link,
            bytes: &self.bytes[start..kept.end],
            original_len: kept.original_len,
            direction: None,
            comments: self.comments.get(&index).cloned().unwrap_or_default(),
        })
    }

    /// Gives all frames to an analyzer.
    pub(crate) fn give(&self, checker: &mut Checker) {
        let records = (0..).map_while(|index| Some((index, self.record(index)?)));
        for (index, record) in records {
            checker.add(
                record.number,
                record.interface,
                self.since(index),
                &frame::decode(&record),
            );
        }
    }

    /// Returns the time from the first frame to the frame with this index.
    pub(crate) fn since(&self, index: usize) -> Duration {
        let at = |index: usize| self.frames.get(index).and_then(|kept| kept.at).unwrap_or_default();
        at(index).saturating_sub(at(0))
    }
}
