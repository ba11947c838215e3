//! Truncated frames that had several packets.
//! The packets behind the first are unknown, and not missing.

use std::collections::VecDeque;
use std::time::Duration;

use rxe_core::types::Psn;

use super::Found;
use super::finding::{Confidence, Finding, Kind, Span};

/// The number of frames that a finding names.
const NAMED: usize = 4;

/// The number of frames that are remembered, to count each once.
const RECENT: usize = 16;

/// The truncated frames of one direction.
#[derive(Debug, Default)]
pub(super) struct CutFrames {
    count: u64,
    /// The PSN of the first frame, and the times of the first and the last.
    first: Option<(Psn, Span)>,
    named: Vec<u64>,
    recent: VecDeque<u64>,
}

impl CutFrames {
    /// Adds the frame whose first packet has this PSN, unless it was added before.
    pub(super) fn add(&mut self, frame: u64, psn: Psn, at: Duration) {
        if self.recent.contains(&frame) {
            return;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(frame);
        self.count += 1;
        self.first.get_or_insert((psn, (at, at))).1.1 = at;
        if self.named.len() < NAMED {
            self.named.push(frame);
        }
    }
}

/// Creates one note about the truncated frames of all directions.
pub(super) fn report<'a>(all: impl Iterator<Item = &'a Found>) -> Option<Finding> {
    let (mut count, mut first) = (0, None::<&Found>);
    for found in all.filter(|found| found.cut.count > 0) {
        count += found.cut.count;
        if first.is_none_or(|first| found.cut.named < first.cut.named) {
            first = Some(found);
        }
    }
    let first = first?;
    let (frames, them) = match count {
        1 => ("A frame was".to_owned(), "it"),
        n => (format!("{n} frames were"), "them"),
    };
    let text = format!(
        "{frames} captured in part and may have had several packets, which the host had not split yet, or had \
         merged (GSO, GRO). What else was in {them} is not checked, and does not count as missing. \
         Capture whole frames (tcpdump -s 0), or run the program with `rxe run --no-gso`."
    );
    let mut found = Found::new(first.from, first.to, first.dest_qp);
    let place = first.cut.first?;
    found.push(Kind::CutFrames, Confidence::Likely, place, first.cut.named.clone(), text).count =
        count;
    found.findings.pop()
}
