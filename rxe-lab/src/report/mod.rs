//! The report on a capture: what `rxe check` prints as JSON, and the errors of reading in words.

mod json;

use std::time::Duration;

use serde::Serialize;

use crate::capture::{CaptureError, Problem, Record};
use crate::check::{Checker, Report};
use crate::explain::Lang;
use crate::frame::{Content, Frame};

/// A file and the analyzer's report on it.
#[derive(Debug)]
pub struct Checked {
    /// The name of the file.
    pub name: String,
    /// The report.
    pub report: Report,
    /// The number of frames that were read.
    pub frames: u64,
    /// The reason why no more frames were read.
    pub error: Option<String>,
}

impl Checked {
    /// Returns the report for serialization, with explanations in this language.
    pub fn to_json(&self, lang: Lang) -> impl Serialize + '_ {
        json::File::of(self, lang)
    }
}

/// A capture that is being analysed.
#[derive(Debug, Default)]
pub struct Checking {
    checker: Checker,
    frames: u64,
    has_packets: bool,
}

impl Checking {
    /// Analyses the next frame. `since` is the time since the first frame.
    pub fn add(&mut self, record: &Record<'_>, frame: &Frame<'_>, since: Duration) {
        self.frames = record.number;
        self.has_packets |= matches!(frame.content, Content::Rdma(_));
        self.checker.add(record.number, record.interface, since, frame);
    }

    /// Ends the analysis. `error` is the reason why no more frames were read.
    /// A file without an RDMA packet is an error of its own.
    pub fn finish(self, name: String, error: Option<String>) -> Checked {
        let Self { checker, frames, has_packets } = self;
        let error = error.or_else(|| {
            let nothing = format!(
                "{name}: nothing was checked: none of its {frames} frames has an RDMA packet. \
                 `rxe decode` says what they are"
            );
            (!has_packets).then_some(nothing)
        });
        Checked { name, report: checker.finish(), frames, error }
    }
}

/// Describes why a capture cannot be read, or not to its end, and what to do. `before` says what
/// happens to the frames before that place.
pub fn failed(name: &str, e: &CaptureError, before: &str) -> String {
    let todo = match (&e.problem, e.frame) {
        (Problem::Unread { todo, .. }, _) => todo,
        (Problem::Io(_), 0) => "give a file that can be read",
        (_, 0) => "give a file that tcpdump, Wireshark or rxe has written",
        (_, 1) => "there is no frame before it",
        _ => before,
    };
    format!("{name}: {e}: {todo}")
}
