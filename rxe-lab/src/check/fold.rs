//! Keeps findings. A cause that goes on is one finding with a count.
//!
//! Two findings have one cause if they are of one kind, confidence and direction, and their texts
//! are equal up to the first figure. What follows describes one occurrence: a time, a length, a value.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::finding::{Confidence, Finding, Kind, MAX_FRAMES, Severity};
use super::{Checker, MAX_FINDINGS, MAX_REMEMBERED};
use crate::frame::Address;

/// A direction: source, destination, and destination QP.
type Key = (Address, Address, u32);

/// What two findings of one cause have in common. The text is the part before the first figure.
type Cause = (Key, Kind, Confidence, Box<str>);

/// The number of findings of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The kind of finding.
    pub kind: Kind,
    /// How often it occurred, including occurrences beyond [`MAX_FINDINGS`].
    pub count: u64,
    /// The number of connections in which it occurred, at most [`MAX_REMEMBERED`].
    pub connections: usize,
}

/// The findings of a capture.
#[derive(Debug, Default)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    by_cause: HashMap<Cause, usize>,
    /// The number of kept findings of each severity.
    by_severity: HashMap<Severity, usize>,
    /// How often each kind occurred, and where.
    kinds: BTreeMap<Kind, (u64, HashSet<Key>)>,
    pub(super) more: u64,
    /// The kinds of which all frames are wanted.
    wanted: Vec<Kind>,
    frames: HashSet<u64>,
}

impl Findings {
    /// Adds a finding, as far as there is room.
    pub(super) fn add(&mut self, mut new: Finding) {
        let key = (new.from, new.to, new.dest_qp);
        let (count, connections) = self.kinds.entry(new.kind).or_default();
        *count += new.count;
        // Malformed packets may name any number of connections.
        if connections.len() < MAX_REMEMBERED {
            connections.insert(key);
        }
        if self.wanted.contains(&new.kind) {
            self.frames.extend(&new.frames);
        }
        let cause = (key, new.kind, new.confidence, wording(&new.text).into());
        if let Some(&at) = self.by_cause.get(&cause) {
            return self.kept[at].goes_on(&new);
        }
        let kept = self.by_severity.entry(new.kind.severity()).or_default();
        if *kept == MAX_FINDINGS {
            self.more += new.count;
            return;
        }
        *kept += 1;
        new.tidy();
        self.by_cause.insert(cause, self.kept.len());
        self.kept.push(new);
    }

    /// Removes the findings of all other kinds.
    pub(super) fn keep_only(&mut self, is_kept: impl Fn(Kind) -> bool) {
        self.kept.retain(|finding| is_kept(finding.kind));
        self.kinds.retain(|kind, _| is_kept(*kind));
        self.by_cause.clear();
        self.by_severity.clear();
        self.frames.clear();
        self.more = 0;
    }
}

impl Finding {
    /// Adds another occurrence.
    fn goes_on(&mut self, next: &Self) {
        if self.count == 1 && self.text.len() > wording(&self.text).len() {
            self.text.insert_str(0, "The first time: ");
        }
        self.count += next.count;
        self.packets += next.packets;
        self.span = (self.span.0.min(next.span.0), self.span.1.max(next.span.1));
        if self.frames.len() < MAX_FRAMES {
            self.frames.extend(&next.frames);
            self.tidy();
        }
    }

    fn tidy(&mut self) {
        self.frames.sort_unstable();
        self.frames.dedup();
        self.frames.truncate(MAX_FRAMES);
    }
}

impl Checker {
    /// Collects the numbers of all frames that show findings of these kinds, in
    /// [`Report::frames`](super::Report::frames). A finding that goes on names only the first.
    pub fn collect_frames_of(&mut self, kinds: impl IntoIterator<Item = Kind>) {
        self.findings.wanted.extend(kinds);
    }

    /// Returns the findings in the order of their first frames, the number of each kind with the most
    /// severe first, and the collected frames.
    pub(super) fn take_findings(&mut self) -> (Vec<Finding>, Vec<Tally>, HashSet<u64>) {
        let Findings { mut kept, kinds, frames, .. } = std::mem::take(&mut self.findings);
        let connection = |key: &Key| match self.keys.get(key) {
            // Both directions of a connection count once.
            Some(&at) => Ok(self.flows[at].peer.map_or(at, |peer| peer.min(at))),
            None => Err(*key),
        };
        let tally = |(kind, (count, keys)): (Kind, (u64, HashSet<Key>))| {
            let connections = keys.iter().map(connection).collect::<HashSet<_>>().len();
            Tally { kind, count, connections }
        };
        let mut kinds: Vec<_> = kinds.into_iter().map(tally).collect();
        kinds.sort_by_key(|tally| std::cmp::Reverse(tally.kind.severity()));
        kept.sort_by(|a, b| a.frames.cmp(&b.frames));
        (kept, kinds, frames)
    }
}

/// Returns the part of a text before the first figure.
fn wording(text: &str) -> &str {
    text.find(|c: char| c.is_ascii_digit()).map_or(text, |at| &text[..at])
}
