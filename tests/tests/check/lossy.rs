//! Two kernels on a link that loses packets (`pcaps/kernel-6.1-lossy`): what was lost is known for each
//! conversation, and what the analyst says of it is compared at both ends of the link.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rxe_core::types::Psn;
use rxe_core::wire::OpKind;
use rxe_lab::capture::{Reader, Start};
use rxe_lab::check::{Checker, Kind};
use rxe_lab::frame::{self, Content, Frame};
use serde_json::Value;

/// What says that a packet was lost.
const LOSSES: [Kind; 4] = [Kind::SequenceNak, Kind::ImpliedNak, Kind::Timeout, Kind::AckLost];

/// The path MTU of the conversations.
const PATH_MTU: u32 = 256;

/// One conversation: its frames in the capture of either end, and how many packets of either end were lost.
struct Turn {
    frames: [(u64, u64); 2],
    lost: [u64; 2],
}

impl Turn {
    fn read(line: &str) -> Self {
        let json: Value = serde_json::from_str(line).unwrap();
        let frames = ["a", "b"].map(|end| {
            let number = |at: usize| json[end][at].as_u64().unwrap();
            (number(0), number(1))
        });
        let of = |end| json["lost"].as_array().unwrap().iter().filter(|l| l["from"] == end).count();
        Self { frames, lost: ["a", "b"].map(|end| of(end) as u64) }
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

/// Whether a request was sent again, as a capture shows it: its PSN is none that is to come.
#[derive(Default)]
struct Again {
    newest: Option<Psn>,
    seen: bool,
}

impl Again {
    fn see(&mut self, frame: &Frame<'_>) {
        let Content::Rdma(packets) = &frame.content else { panic!("no packet: {frame:?}") };
        for packet in packets {
            let info = packet.info.unwrap();
            if info.is_response() {
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

#[test]
fn what_a_link_between_two_kernels_has_lost_is_found_and_nothing_is_invented() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps/kernel-6.1-lossy");
    let mut logs: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    logs.retain(|path| path.extension().is_some_and(|e| e == "jsonl"));
    let mut table: BTreeMap<(&str, usize), [u64; 4]> = BTreeMap::new();
    let mut wrong = Vec::new();
    for log in logs {
        let turns: Vec<_> = fs::read_to_string(&log).unwrap().lines().map(Turn::read).collect();
        let name = log.file_stem().unwrap().to_str().unwrap().to_owned();
        for (tap, end) in ["a", "b"].into_iter().enumerate() {
            let file = fs::read(log.with_file_name(format!("{name}-{end}.pcap.gz"))).unwrap();
            let mut reader = Reader::new(&file[..]).unwrap();
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
                }
                let findings = checker.finish().findings;
                let has_trace = again.seen;
                let is_found = findings.iter().any(|f| LOSSES.contains(&f.kind));
                let may = |kind: &Kind| turn.lost != [0, 0] && LOSSES.contains(kind);
                let invented = findings.iter().any(|f| !may(&f.kind));
                let row = table.entry((turn.what(), tap)).or_default();
                row[0] += 1;
                row[1] += u64::from(has_trace);
                row[2] += u64::from(has_trace && is_found);
                row[3] += u64::from(invented);
                if has_trace != is_found || invented {
                    let found: Vec<_> =
                        findings.iter().map(|f| (f.kind, f.psn, &f.frames)).collect();
                    wrong.push(format!("{name}-{end} {:?}: {found:?}", turn.frames[tap]));
                }
            }
            assert!(reader.next().unwrap().is_none(), "{name}: frames of no conversation");
        }
    }
    println!("{:<11} {:<9} runs  with trace  found  invented", "lost", "at");
    for ((what, tap), [runs, must, found, invented]) in &table {
        let at = ["requester", "responder"][*tap];
        println!("{what:<11} {at:<9} {runs:>4}  {must:>10}  {found:>5}  {invented:>8}");
    }
    assert!(table.values().map(|row| row[0]).sum::<u64>() > 200, "{table:?}");
    assert!(wrong.is_empty(), "{} conversations: {wrong:#?}", wrong.len());
}
