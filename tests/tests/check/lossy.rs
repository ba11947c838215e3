//! Two kernels on a link that loses packets (`pcaps/kernel-6.1-lossy`). The lost packets of each
//! conversation are known and compared with the findings of the analyst at both ends of the link.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rxe_core::types::Psn;
use rxe_core::wire::{NakCode, OpKind, Syndrome};
use rxe_lab::capture::{Reader, Start};
use rxe_lab::check::{Checker, Finding, Kind};
use rxe_lab::frame::{self, Content, Frame};
use serde_json::Value;

use super::{cause, counts};

/// The kinds of findings that report a lost packet.
const LOSSES: [Kind; 4] = [Kind::SequenceNak, Kind::ImpliedNak, Kind::Timeout, Kind::AckLost];

/// The path MTU of the conversations.
const PATH_MTU: u32 = 256;

/// A conversation: its frames in the capture of either end, and the number of lost packets of
/// either end.
struct Turn {
    frames: [(u64, u64); 2],
    lost: [u64; 2],
    /// The numbers of the lost frames, in the capture of their sender.
    lost_frames: [Vec<u64>; 2],
}

impl Turn {
    fn read(line: &str) -> Self {
        let json: Value = serde_json::from_str(line).unwrap();
        let frames = ["a", "b"].map(|end| {
            let number = |at: usize| json[end][at].as_u64().unwrap();
            (number(0), number(1))
        });
        let lost_frames = ["a", "b"].map(|end| {
            let lost = json["lost"].as_array().unwrap().iter().filter(|lost| lost["from"] == end);
            lost.map(|lost| lost["frame"].as_u64().unwrap()).collect::<Vec<_>>()
        });
        let lost = lost_frames.each_ref().map(|frames| frames.len() as u64);
        Self { frames, lost, lost_frames }
    }

    fn what(&self) -> &'static str {
        match self.lost {
            [0, 0] => "nothing",
            [1, 0] => "a request",
            [0, 1] => "a response",
            _ => "several",
        }
    }
}

/// Detects in a capture whether a request was sent again: its PSN is not the next expected one.
#[derive(Default)]
struct Again {
    newest: Option<Psn>,
    seen: bool,
    /// Whether a NAK for a PSN sequence error arrived.
    has_nak: bool,
    /// The greatest PSN of a response before the repetition.
    response: Option<Psn>,
}

impl Again {
    fn see(&mut self, frame: &Frame<'_>) {
        let Content::Rdma(packets) = &frame.content else { panic!("no packet: {frame:?}") };
        for packet in packets {
            let info = packet.info.unwrap();
            if info.is_response() {
                let syndrome = packet.ext.aeth.map(|aeth| aeth.syndrome);
                self.has_nak |= syndrome == Some(Syndrome::Nak(NakCode::PsnSequenceError));
                let psn = packet.bth.psn;
                if !self.seen && !packet.is_nak() {
                    self.response =
                        self.response.filter(|newest| !psn.after(*newest)).or(Some(psn));
                }
                continue;
            }
            let dma_len = packet.ext.reth.map_or(0, |reth| reth.dma_len);
            let is_read = info.kind == OpKind::ReadRequest;
            let span = if is_read { dma_len.div_ceil(PATH_MTU).max(1) } else { 1 };
            let psn = packet.bth.psn;
            self.seen |= self.newest.is_some_and(|newest| !psn.after(newest));
            let last = psn + (span - 1);
            self.newest = self.newest.filter(|newest| !last.after(*newest)).or(Some(last));
        }
    }
}

/// Returns the PSN of a frame, and whether it is a response with data.
fn psn_of(file: &[u8], number: u64) -> (Psn, bool) {
    let mut reader = Reader::new(file).unwrap();
    loop {
        let record = reader.next().unwrap().expect("the frame is there");
        if record.number == number {
            let frame = frame::decode(&record);
            let Content::Rdma(packets) = &frame.content else { panic!("no packet: {frame:?}") };
            let info = packets[0].info.unwrap();
            return (packets[0].bth.psn, info.is_response() && info.kind != OpKind::Acknowledge);
        }
    }
}

/// Returns the finding that the analyst must report for the loss of one packet.
fn cause_of(turn: &Turn, tap: usize, again: &Again, files: &[Vec<u8>; 2]) -> Option<Kind> {
    let (sender, lost) = match turn.lost_frames.each_ref().map(Vec::as_slice) {
        [[lost], []] => (0, *lost),
        [[], [lost]] => (1, *lost),
        _ => return None,
    };
    // A loss before the first captured packet leaves no trace except its consequences.
    if sender != tap && sender == 0 && lost == turn.frames[0].0 {
        return None;
    }
    let (psn, is_data) = psn_of(&files[sender], lost);
    let is_overtaken = is_data && again.response.is_some_and(|newest| newest.after(psn));
    Some(cause(tap, again.has_nak, sender == 1, is_overtaken))
}

#[test]
fn what_a_link_between_two_kernels_has_lost_is_found_and_nothing_is_invented() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps/kernel-6.1-lossy");
    let mut logs: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    logs.retain(|path| path.extension().is_some_and(|e| e == "jsonl"));
    let mut table: BTreeMap<(&str, usize), [u64; 4]> = BTreeMap::new();
    let mut names: BTreeMap<(&str, usize), BTreeMap<&str, u64>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for log in logs {
        let turns: Vec<_> = fs::read_to_string(&log).unwrap().lines().map(Turn::read).collect();
        let name = log.file_stem().unwrap().to_str().unwrap().to_owned();
        let files = ["a", "b"]
            .map(|end| fs::read(log.with_file_name(format!("{name}-{end}.pcap.gz"))).unwrap());
        for (tap, end) in ["a", "b"].into_iter().enumerate() {
            let mut reader = Reader::new(&files[tap][..]).unwrap();
            let (mut whole, mut first) = (Checker::default(), Start::default());
            let mut alone = Vec::new();
            for turn in &turns {
                let (mut checker, mut start) = (Checker::default(), Start::default());
                let mut again = Again::default();
                for number in turn.frames[tap].0..=turn.frames[tap].1 {
                    let record = reader.next().unwrap().unwrap();
                    assert_eq!(record.number, number, "{name}");
                    let since = start.since(&record);
                    let frame = frame::decode(&record);
                    again.see(&frame);
                    checker.add(record.number, record.interface, since, &frame);
                    whole.add(record.number, record.interface, first.since(&record), &frame);
                }
                let findings = checker.finish().findings;
                alone.push(findings.iter().map(|f| f.kind).collect::<BTreeSet<_>>());
                let has_trace = again.seen;
                let is_found = findings.iter().any(|f| LOSSES.contains(&f.kind));
                let cause = cause_of(turn, tap, &again, &files);
                let may = |kind: &Kind| match cause {
                    // Linux also retransmits requests that are answered while it goes back.
                    Some(Kind::ImpliedNak) if *kind == Kind::AckLost && tap == 0 => {
                        name == "together"
                    }
                    // The path MTU is not known, so the length of the response is unknown too.
                    Some(Kind::ImpliedNak) if *kind == Kind::Timeout && tap == 0 => name == "read",
                    Some(cause) => *kind == cause,
                    None => turn.lost != [0, 0] && LOSSES.contains(kind),
                };
                let invented = findings.iter().any(|f| !may(&f.kind));
                let row = table.entry((turn.what(), tap)).or_default();
                row[0] += 1;
                row[1] += u64::from(has_trace);
                row[2] += u64::from(has_trace && is_found);
                row[3] += u64::from(invented);
                for kind in findings.iter().map(|f| f.kind.name()).collect::<BTreeSet<_>>() {
                    *names.entry((turn.what(), tap)).or_default().entry(kind).or_default() += 1;
                }
                if has_trace != is_found || invented {
                    let found: Vec<_> =
                        findings.iter().map(|f| (f.kind, f.psn, &f.frames)).collect();
                    let frames = turn.frames[tap];
                    wrong.push(format!("{name}-{end} {frames:?}, {cause:?}: {found:?}"));
                }
            }
            assert!(reader.next().unwrap().is_none(), "{name}: frames of no conversation");
            // All queue pairs begin with one PSN, so the analyst learns late or never which belong
            // together. In that case it reports no other cause.
            for Finding { kind, frames, .. } in whole.finish().findings {
                let of = |turn: &Turn| frames[0] <= turn.frames[tap].1;
                let alone = &alone[turns.iter().position(of).unwrap()];
                let goes_back = kind == Kind::AckLost && alone.contains(&Kind::ImpliedNak);
                if kind != Kind::Unexplained && !alone.contains(&kind) && !goes_back {
                    wrong.push(format!("{name}-{end} {frames:?}: {kind:?}, alone {alone:?}"));
                }
            }
        }
    }
    println!("{:<11} {:<9} runs  with trace  found  invented  kinds", "lost", "at");
    for ((what, tap), [runs, must, found, invented]) in &table {
        let at = ["requester", "responder"][*tap];
        let kinds = names.get(&(*what, *tap)).map(counts).unwrap_or_default();
        println!("{what:<11} {at:<9} {runs:>4}  {must:>10}  {found:>5}  {invented:>8}  {kinds}");
    }
    assert!(table.values().map(|row| row[0]).sum::<u64>() > 200, "{table:?}");
    assert!(wrong.is_empty(), "{} conversations: {wrong:#?}", wrong.len());
}
