//! Captures that begin late. What was before is unknown, and nothing is concluded from its absence.
//!
//! Each scenario of `pcaps/scenarios` is generated as it is and with further faults. The first frames
//! are left out, in every number. What the analyst finds then, it must find in the whole capture too.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;

use super::*;
use crate::scenario::{Bounds, Generated, GeneratedFrame, generate};

/// The faults that each host has in turn, in addition to what the scenario has.
const FAULTS: [&str; 8] = [
    "drop 1 after 1",
    "drop 1 after 3",
    "in: drop 1 after 1",
    "in: drop 1 after 3",
    "dup 1 after 2",
    "in: corrupt 1 after 2",
    "delay 30us 1 after 2",
    "in: delay 500us 1 after 1",
];

/// At most one finding in this many may be false.
const FALSE_IN: usize = 1000;

/// Longer scenarios are left out: the time grows with the square of their length.
const MAX_FRAMES: usize = 200;

/// Checks the frames from this one on. Collects all frames of findings of one kind.
fn check(frames: &[GeneratedFrame], from: usize, kind: Option<Kind>) -> Report {
    let mut checker = Checker::default();
    checker.collect_frames_of(kind);
    for (number, frame) in (1..).zip(frames).skip(from) {
        let since = frame.at.saturating_sub(frames[from].at);
        let decoded = decode_bytes(LinkType::ETHERNET, &frame.bytes, frame.bytes.len());
        checker.add(number, 0, since, &decoded);
    }
    checker.finish()
}

/// A whole capture, and what is known of it.
struct Whole<'m> {
    made: &'m Generated,
    findings: Vec<Finding>,
    /// All frames that show findings of a kind.
    frames: HashMap<Kind, HashSet<u64>>,
    /// Whether the network duplicates a packet.
    is_doubled: bool,
}

impl<'m> Whole<'m> {
    fn of(made: &'m Generated, is_doubled: bool) -> Self {
        let findings = check(&made.frames, 0, None).findings;
        let of = |finding: &Finding| {
            let kind = finding.kind;
            (kind, check(&made.frames, 0, Some(kind)).frames)
        };
        let frames = findings.iter().map(of).collect();
        Self { made, findings, frames, is_doubled }
    }

    /// Returns whether a finding of a later part of the capture is right: the whole capture has it too,
    /// or the generator knows that it is so.
    fn has(&self, it: &Finding) -> bool {
        let is_it = |whole: &Finding| (whole.kind, whole.psn) == (it.kind, it.psn);
        let same = self.frames.get(&it.kind);
        self.findings.iter().any(is_it)
            || same.is_some_and(|all| it.frames.iter().any(|frame| all.contains(frame)))
            || self.is_made(it)
    }

    /// Returns whether the generator knows of the cause of a finding.
    fn is_made(&self, it: &Finding) -> bool {
        let hit = |faults: &[&str]| {
            let (first, last) = (it.frames[0], it.frames[it.frames.len() - 1]);
            let within = (1..).zip(&self.made.frames).filter(|(n, _)| (first..=last).contains(n));
            within.flat_map(|(_, frame)| &frame.faults).any(|fault| faults.contains(fault))
        };
        let never = "transport retry counter exceeded";
        match it.kind {
            // A timer expires too if the answer is lost behind the capture, is late or is refused.
            Kind::Timeout | Kind::AckLost => {
                let others = [Kind::AckLate, Kind::AckLost, Kind::InvalidRequest, Kind::Timeout];
                let is_other =
                    |whole: &Finding| others.contains(&whole.kind) && whole.psn == it.psn;
                hit(&["lost", "damaged"]) || self.findings.iter().any(is_other)
            }
            Kind::Duplicate => self.is_doubled,
            Kind::Unanswered => self.made.completions.keys().any(|(_, status)| *status == never),
            _ => false,
        }
    }
}

/// Returns the scenario with these faults at the host with this index, unless it has faults there.
fn with_faults(text: &str, host: usize, faults: &str) -> Option<String> {
    let (at, heading) = text.match_indices("[hosts.").nth(host)?;
    let begin = at + text[at..].find('\n')? + 1;
    let end = text[begin..].find("\n[").map_or(text.len(), |len| begin + len);
    let is_new = !text[begin..end].contains("faults") && text[..at].ends_with('\n');
    debug_assert!(heading.starts_with('['));
    is_new.then(|| format!("{}faults = \"{faults}\"\n{}", &text[..begin], &text[begin..]))
}

/// Returns the conversations of all scenarios with their names.
fn conversations() -> impl Iterator<Item = (String, Generated)> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps/scenarios");
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    paths.sort();
    assert!(paths.len() > 50, "{paths:?}");
    paths.into_iter().flat_map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let hosts = text.matches("[hosts.").count();
        let faults = (0..hosts).flat_map(|host| FAULTS.map(|faults| (host, faults)));
        let more = faults.filter_map(|(host, faults)| {
            let what = format!("{name}, host {host}: {faults}");
            Some((what, with_faults(&text, host, faults)?))
        });
        let all: Vec<_> = [(name.clone(), text.clone())].into_iter().chain(more).collect();
        all.into_iter().map(|(name, text)| {
            let made = generate(&text, Bounds::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
            (name, made)
        })
    })
}

#[test]
fn of_a_capture_that_begins_late_nothing_is_invented() {
    let (mut captures, mut findings) = (0, 0);
    let mut kinds: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (name, made) in conversations() {
        let (frames, whole) = (&made.frames, Whole::of(&made, name.contains("dup ")));
        // A few packets do not show that each was captured twice.
        if frames.len() > MAX_FRAMES || whole.frames.contains_key(&Kind::TwoPlaces) {
            continue;
        }
        for from in 1..frames.len() {
            captures += 1;
            for it in check(frames, from, None).findings {
                findings += 1;
                // These say that the cause is not known.
                let is_open = it.confidence == Confidence::Possible
                    || matches!(it.kind, Kind::NotCaptured | Kind::Unexplained);
                let is_wrong = !is_open && !whole.has(&it);
                let row = kinds.entry(it.kind.name()).or_default();
                row[0] += 1;
                row[1] += usize::from(is_open);
                row[2] += usize::from(is_wrong);
                if is_wrong {
                    wrong.push(format!(
                        "{name}, from {from}: {:?} PSN {:#x} {:?}: {}",
                        it.kind, it.psn, it.frames, it.text
                    ));
                }
            }
        }
    }
    println!("{captures} captures that begin late, {findings} findings, {} false", wrong.len());
    println!("{:<26} {:>7} {:>7} {:>7}", "kind", "all", "open", "false");
    for (kind, [all, open, wrong]) in kinds {
        println!("{kind:<26} {all:>7} {open:>7} {wrong:>7}");
    }
    let few: Vec<_> = wrong.iter().take(12).collect();
    assert!(findings > 1000, "{findings}");
    assert!(wrong.len() * FALSE_IN <= findings, "{} of {findings}: {few:#?}", wrong.len());
}
