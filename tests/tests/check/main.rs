//! Tests of the protocol analyst against conversations whose faults are known: every injected fault
//! that leaves a trace is found, at either end of the link, and no finding is invented. The
//! confusion table is printed.

mod broken;
mod conversation;
mod datagrams;
mod lossy;
mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rxe_core::types::Psn;
use rxe_lab::capture::{LinkType, Reader, Start};
use rxe_lab::check::{Checker, Finding, Kind, Report, Severity};
use rxe_lab::frame::{self, Content};

use broken::{BUGS, Bug};
use conversation::{Conversation, FAULTS, Fault, Plan, Transport, Victim, converse};

/// The number of conversations of a run, and of a run with `--all`.
const CONVERSATIONS: [u64; 2] = [2000, 20_000];
/// Seeds and faults that once led to false alarms: a request is lost after a READ for which the
/// capture does not show the number of response packets, or shows it by a response of one packet.
const FALSE_ALARMS: [(u64, Fault); 7] = [
    (103_337, Fault::DropRequest),
    (107_553, Fault::DropRequest),
    (109_701, Fault::CorruptRequest),
    (117_101, Fault::CorruptRequest),
    (2033, Fault::DropRequest),
    (11_913, Fault::DropRequest),
    (16_653, Fault::CorruptRequest),
];

fn check(file: &[u8]) -> Report {
    check_with(file, Checker::default())
}

/// Returns the PSNs of the packets in the frames of all findings of these kinds.
fn psns_of(file: &[u8], kinds: &[Kind]) -> Vec<Psn> {
    let mut checker = Checker::default();
    checker.collect_frames_of(kinds.iter().copied());
    let frames = check_with(file, checker).frames;
    let mut reader = Reader::new(file).unwrap();
    let mut psns = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        if frames.contains(&record.number)
            && let Content::Rdma(packets) = &frame::decode(&record).content
        {
            psns.extend(packets.iter().map(|packet| packet.bth.psn));
        }
    }
    psns
}

fn check_with(file: &[u8], mut checker: Checker) -> Report {
    let mut reader = Reader::new(file).unwrap();
    let mut start = Start::default();
    while let Some(record) = reader.next().unwrap() {
        let since = start.since(&record);
        checker.add(record.number, record.interface, since, &frame::decode(&record));
    }
    checker.finish()
}

/// Returns the finding that explains a repetition at an end of the link, if one packet was lost on
/// it. The requester's end does not see packets lost on the way to it; the responder's end sees its
/// own responses.
fn cause(tap: usize, has_nak: bool, is_response: bool, is_overtaken: bool) -> Kind {
    match (tap, is_response) {
        (_, false) if has_nak => Kind::SequenceNak,
        (_, false) => Kind::Timeout,
        (1, true) => Kind::AckLost,
        (_, true) if is_overtaken => Kind::ImpliedNak,
        (_, true) => Kind::Timeout,
    }
}

/// Returns the kinds of findings of which one must occur, and those that may occur. `tap` is the
/// requester's end (0) or the responder's (1).
fn expected(fault: Fault, tap: usize, run: &Conversation, victim: Victim) -> [Vec<Kind>; 2] {
    use Kind::{
        AckLate, AckLost, Duplicate, Icrc, ImpliedNak, Reordered, Rnr, SequenceNak, Timeout,
    };
    if !victim.hit {
        return [Vec::new(), Vec::new()];
    }
    // The effects of two faults are not distinguished.
    let is_one = !run.victims.iter().all(|victim| victim.hit);
    let losses = |is_response| match is_one {
        true => {
            let is_overtaken = victim.is_data && victim.is_passed;
            vec![cause(tap, run.has_nak, is_response, is_overtaken)]
        }
        false => vec![SequenceNak, ImpliedNak, Timeout, AckLost],
    };
    let if_again = |kinds: Vec<Kind>| if run.sent_again[tap] { kinds } else { Vec::new() };
    let lost = |is_response| [if_again(losses(is_response)), losses(is_response)];
    match (fault, tap) {
        (Fault::None | Fault::MarkRequest, _) => [Vec::new(), Vec::new()],
        (Fault::DropRequest, _) | (Fault::CorruptRequest, 0) => lost(false),
        (Fault::DropResponse | Fault::DelayResponse, _) | (Fault::CorruptResponse, 1) => lost(true),
        (Fault::DuplicateRequest, 1) if is_one => [vec![Duplicate], vec![Duplicate]],
        // A duplicate of a repetition looks like another repetition.
        (Fault::DuplicateRequest, 1) => [vec![Duplicate], vec![Duplicate, AckLost]],
        (Fault::DuplicateResponse, 0) if victim.is_data => [vec![Duplicate], vec![Duplicate]],
        (Fault::DuplicateRequest | Fault::DuplicateResponse, _) => [Vec::new(), vec![Duplicate]],
        (Fault::CorruptRequest, _) => [vec![Icrc], [losses(false), vec![Icrc]].concat()],
        (Fault::CorruptResponse, _) => [vec![Icrc], [losses(true), vec![Icrc]].concat()],
        // The requester's end sees only the NAK.
        (Fault::DelayRequest, 0) => lost(false),
        (Fault::DelayRequest, _) => {
            [if_again(vec![Reordered, SequenceNak]), [losses(false), vec![Reordered]].concat()]
        }
        // The analyst needs four round trips to know the round-trip time.
        (Fault::LateResponse, 0) if losses(true) == [Timeout] => {
            [if_again(vec![AckLate, Timeout]), vec![AckLate, Timeout]]
        }
        (Fault::LateResponse, _) => {
            [if_again(losses(true)), [losses(true), vec![AckLate]].concat()]
        }
        (Fault::NoReceive, _) => [vec![Rnr], vec![Rnr]],
    }
}

/// Like [`expected`], for UC: nothing is sent again, and the requester's end sees no fault.
fn expected_of_uc(fault: Fault, tap: usize, victim: Victim) -> [Vec<Kind>; 2] {
    use Kind::{Duplicate, Icrc, Lost, Reordered};
    let if_passed = |kind| victim.is_passed.then_some(kind).into_iter().collect::<Vec<_>>();
    match fault {
        _ if !victim.hit || tap == 0 || fault == Fault::MarkRequest => [Vec::new(), Vec::new()],
        Fault::DropRequest => [if_passed(Lost), if_passed(Lost)],
        Fault::DuplicateRequest => [vec![Duplicate], vec![Duplicate]],
        Fault::CorruptRequest => [vec![Icrc], [vec![Icrc], if_passed(Lost)].concat()],
        Fault::DelayRequest => [if_passed(Reordered), if_passed(Reordered)],
        _ => [Vec::new(), Vec::new()],
    }
}

/// Returns conversations with one fault each, and those that once led to false alarms.
fn single() -> impl Iterator<Item = Plan> {
    let usual = 0..CONVERSATIONS[usize::from(rxe_harness::everything())];
    let usual = usual.map(|seed| (seed, FAULTS[usize::try_from(seed).unwrap() % FAULTS.len()]));
    let seeds = usual.chain(FALSE_ALARMS);
    seeds.flat_map(|(seed, fault)| {
        [false, true].map(|one_address| Plan {
            seed,
            one_address,
            transport: Transport::Rc,
            gives_credits: seed.is_multiple_of(5),
            faults: [fault, Fault::None],
            bug: None,
        })
    })
}

/// Returns conversations over XRC.
fn xrc() -> impl Iterator<Item = Plan> {
    single().map(|plan| Plan { transport: Transport::Xrc, gives_credits: false, ..plan })
}

/// Returns conversations over UC with one fault each.
fn unreliable() -> impl Iterator<Item = Plan> {
    single().map(|plan| Plan { transport: Transport::Uc, gives_credits: false, ..plan })
}

/// Returns conversations with two faults, in all combinations.
fn double() -> impl Iterator<Item = Plan> {
    single().filter(|plan| plan.seed < CONVERSATIONS[0]).map(|plan| {
        let second = usize::try_from(plan.seed).unwrap() / FAULTS.len() % FAULTS.len();
        Plan { faults: [plan.faults[0], FAULTS[second]], ..plan }
    })
}

#[test]
fn every_injected_fault_is_found_and_none_is_invented() {
    compare("RC", single());
}

#[test]
fn the_faults_of_xrc_are_found_and_none_is_invented() {
    compare("XRC", xrc());
}

#[test]
fn the_faults_of_unreliable_connections_are_found_and_none_is_invented() {
    compare("UC", unreliable());
}

/// One fault may hide the other: for example, a packet duplicated by the network looks like a
/// repetition if it was also repeated. Therefore one finding is enough.
#[test]
fn of_two_faults_one_is_found_at_least_and_none_is_invented() {
    compare("RC, and another fault", double());
}

/// Each conversation in which a broken engine shows its bug has a finding that names the bug. The
/// finding is at a PSN of the message or later. The consequences, NAKs and repetitions, are found
/// too.
#[test]
fn the_bugs_of_broken_engines_are_found() {
    println!("{:<16} {:<9} runs  shown  found", "bug", "at");
    let mut wrong = Vec::new();
    for bug in BUGS {
        let mut rows = [[0; 3]; 2];
        let seeds = CONVERSATIONS[0] / if rxe_harness::everything() { 1 } else { 5 };
        for plan in single().filter(|plan| plan.seed < seeds) {
            // Without a loss nothing is repeated.
            let lossy = match bug {
                Bug::AtomicAgain | Bug::OnlyAgain => Fault::DropResponse,
                _ => Fault::None,
            };
            let plan = Plan { faults: [lossy, Fault::None], bug: Some(bug), ..plan };
            let run = converse(&plan);
            for (tap, row) in rows.iter_mut().enumerate() {
                row[0] += 1;
                // The first response to an atomic may have been lost before the requester received
                // it.
                let is_lost = |at: &Psn| tap == 0 && run.victims[0].psn == *at;
                let Some(at) = run.bug_at.filter(|at| !is_lost(at)) else { continue };
                let report = check(&run.taps[tap]);
                let is_at_bug = |psn: Psn| (0..64).contains(&psn.diff(at));
                let is_it =
                    |f: &Finding| bug.kinds().contains(&f.kind) && is_at_bug(Psn::new(f.psn));
                // A finding that goes on has the PSN of its first occurrence.
                let is_found = report.findings.iter().any(is_it)
                    || psns_of(&run.taps[tap], bug.kinds()).into_iter().any(is_at_bug);
                row[1] += 1;
                row[2] += u32::from(is_found);
                if !is_found {
                    let found: Vec<_> =
                        report.findings.iter().map(|f| (f.kind, f.psn, &f.text)).collect();
                    wrong.push(format!("{plan:?} tap {tap}, PSN {at:?}: {found:?}"));
                }
            }
        }
        for (at, [runs, shown, found]) in ["requester", "responder"].iter().zip(rows) {
            println!("{:<16} {at:<9} {runs:>4}  {shown:>5}  {found:>5}", format!("{bug:?}"));
            assert!(shown > 30, "{bug:?}");
        }
    }
    let few: Vec<_> = wrong.iter().take(12).collect();
    assert!(wrong.is_empty(), "{} conversations: {few:#?}", wrong.len());
}

/// Checks conversations, and prints a table.
fn compare(what: &str, plans: impl Iterator<Item = Plan>) {
    let mut table: BTreeMap<(Fault, usize), [u64; 5]> = BTreeMap::new();
    let mut names: BTreeMap<(Fault, usize), BTreeMap<&str, u64>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for plan in plans {
        let run = converse(&plan);
        for tap in 0..2 {
            let report = check(&run.taps[tap]);
            let kinds: BTreeSet<_> = report.findings.iter().map(|f| f.kind).collect();
            let faults = plan.faults.into_iter().zip(run.victims);
            let [musts, mays]: [Vec<_>; 2] = faults
                .map(|(fault, victim)| match plan.transport {
                    Transport::Uc => expected_of_uc(fault, tap, victim),
                    _ => expected(fault, tap, &run, victim),
                })
                .map(|[must, may]| (must, may))
                .unzip::<_, _, Vec<_>, Vec<_>>()
                .into();
            let mut musts = musts.iter().filter(|must| !must.is_empty());
            let has_trace = musts.clone().next().is_some();
            let is_found = musts.all(|must| kinds.iter().any(|kind| must.contains(kind)));
            let is_noticed = match run.victims.iter().all(|victim| victim.hit) {
                true => !has_trace || !kinds.is_empty(),
                false => is_found,
            };
            let invented = kinds.iter().any(|kind| !mays.iter().any(|may| may.contains(kind)));
            let row = table.entry((plan.faults[0], tap)).or_default();
            row[0] += 1;
            row[1] += u64::from(has_trace);
            row[2] += u64::from(has_trace && is_found);
            row[3] += u64::from(!has_trace && kinds.is_empty());
            row[4] += u64::from(invented);
            for kind in &kinds {
                *names.entry((plan.faults[0], tap)).or_default().entry(kind.name()).or_default() +=
                    1;
            }
            let counted = report.directions.iter().find(|direction| direction.dest_qp == 0x12);
            let counted = counted.map_or((0, 0), |d| (d.stats.marked, d.stats.cnps));
            // The network sets marks. Without responses, the analyst cannot assign a CNP to a
            // connection.
            let cnps = if plan.transport == Transport::Uc { 0 } else { run.cnps };
            let is_counted = counted == (run.marked * tap as u64, cnps);
            if !is_noticed || !is_counted || invented && run.is_apart() {
                let found: Vec<_> =
                    report.findings.iter().map(|f| (f.kind, f.psn, &f.frames, &f.text)).collect();
                wrong.push(format!("{plan:?} tap {tap}: {found:?}, marks and CNPs {counted:?}"));
            }
        }
    }
    println!(
        "{what}\n{:<18} {:<9} runs  with trace  found  silent  invented  kinds",
        "fault", "at"
    );
    for ((fault, tap), [runs, must, found, silent, invented]) in &table {
        let at = ["requester", "responder"][*tap];
        println!(
            "{:<18} {at:<9} {runs:>4}  {must:>10}  {found:>5}  {silent:>6}  {invented:>8}  {}",
            format!("{fault:?}"),
            names.get(&(*fault, *tap)).map(counts).unwrap_or_default()
        );
    }
    let few: Vec<_> = wrong.iter().take(12).collect();
    assert!(wrong.is_empty(), "{} conversations: {few:#?}", wrong.len());
}

/// Returns the kinds of findings with the number of conversations in which each was found.
fn counts(all: &BTreeMap<&str, u64>) -> String {
    all.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// Returns the kinds of errors and warnings that a capture of this name may have, each verified by
/// hand.
fn known(name: &str) -> &'static [Kind] {
    match name {
        "rnr_late" => &[Kind::Rnr],
        "rnr_never" => &[Kind::Rnr, Kind::RnrNever],
        "peer_gone" => &[Kind::Timeout, Kind::Unanswered],
        // ConnectX refuses the masked compare and swap that its peer sends.
        "mlx5-read-cas" => &[Kind::InvalidRequest],
        // Kernel `rdma_rxe` answers with the one, this engine with the other: see
        // tests/tests/pcaps.rs.
        "send_too_long" => &[Kind::InvalidRequest, Kind::RemoteOperational],
        _ if name.ends_with("_no_permission")
            || name.ends_with("_wrong_rkey")
            || name.ends_with("_out_of_bounds") =>
        {
            &[Kind::RemoteAccess]
        }
        _ => &[],
    }
}

#[test]
fn captures_of_kernels_and_hardware_have_the_findings_that_are_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files: Vec<PathBuf> = Vec::new();
    for dir in fs::read_dir(root.join("pcaps")).unwrap() {
        let dir = dir.unwrap();
        // Their findings are compared in tests/tests/scenarios.rs.
        if dir.file_name() == "scenarios" {
            continue;
        }
        let Ok(dir) = fs::read_dir(dir.path()) else { continue };
        files.extend(dir.map(|file| file.unwrap().path()));
    }
    files.retain(|f| f.extension().is_some_and(|e| e == "pcap" || e == "pcapng"));
    assert!(files.len() > 100, "{}", files.len());
    let shown = |name: &str, file: &[u8]| {
        let found: BTreeSet<_> = check(file).findings.iter().map(|f| f.kind).collect();
        let known = known(name);
        assert!(found.iter().all(|kind| known.contains(kind)), "{name}: {found:?}");
        assert!(known.is_empty() || !found.is_empty(), "{name}: nothing found");
    };
    for file in files {
        shown(file.file_stem().unwrap().to_str().unwrap(), &fs::read(&file).unwrap());
    }
    if let Some(file) = rxe_tests::captures::read_bytes("check", "mlx5-read-cas.pcap") {
        shown("mlx5-read-cas", &file);
    }
}

/// Frames of third-party captures, one by one and in the order of each source. No errors are known
/// in them, so the analyst may find no errors and warnings except those that a device reports
/// itself.
#[test]
fn frames_of_other_devices_have_no_findings() {
    let test = "frames_of_other_devices_have_no_findings";
    let Some(text) = rxe_tests::captures::read(test, "vectors.tsv") else { return };
    let mut sources: BTreeMap<&str, Vec<Vec<u8>>> = BTreeMap::new();
    for row in rxe_tests::captures::rows_of(&text) {
        sources.entry(row[0]).or_default().push(rxe_tests::captures::unhex(row[5]));
    }
    let findings = |frames: &[Vec<u8>]| {
        let mut checker = Checker::default();
        for (nth, bytes) in (1..).zip(frames) {
            let frame = frame::decode_bytes(LinkType(1), bytes, bytes.len());
            checker.add(nth, 0, Duration::from_micros(nth * 10), &frame);
        }
        checker.finish().findings
    };
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (source, frames) in &sources {
        count += frames.len();
        let alone = frames.iter().flat_map(|frame| findings(std::slice::from_ref(frame)));
        // The frames of a codec's test are not a conversation.
        let together = if source.starts_with("roomsoc") { Vec::new() } else { findings(frames) };
        for finding in alone.chain(together) {
            // In this capture a device refuses a request.
            let is_known = source.contains("rdma_traffic") && finding.kind == Kind::InvalidRequest;
            if finding.kind.severity() > Severity::Note && !is_known {
                wrong.push(format!(
                    "{source}: {:?} {:?}: {}",
                    finding.kind, finding.frames, finding.text
                ));
            }
        }
    }
    println!("{count} frames of {} sources", sources.len());
    assert!(count > 50 && wrong.is_empty(), "{count} frames: {wrong:#?}");
}
