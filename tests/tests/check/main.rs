//! The protocol analyst against conversations whose faults are known: every injected fault that leaves
//! a trace is found, at either end of the link, and nothing is invented. The confusion table is printed.

mod broken;
mod conversation;
mod datagrams;
mod lossy;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rxe_core::types::Psn;
use rxe_lab::capture::{Reader, Start};
use rxe_lab::check::{Checker, Finding, Kind, Report};
use rxe_lab::frame;

use broken::{BUGS, Bug};
use conversation::{Conversation, FAULTS, Fault, Plan, Victim, converse};

/// Conversations of a run, and of one with `--all`.
const CONVERSATIONS: [u64; 2] = [2000, 20_000];
/// Seeds that once led to false alarms: a request is lost behind a READ of which the capture does not tell
/// how many packets its answer has, or tells it by an answer in one packet.
const FALSE_ALARMS: [u64; 7] = [103_337, 107_553, 109_701, 117_101, 2033, 11_913, 16_653];

fn check(file: &[u8]) -> Report {
    let mut checker = Checker::default();
    let mut reader = Reader::new(file).unwrap();
    let mut start = Start::default();
    while let Some(record) = reader.next().unwrap() {
        let since = start.since(&record);
        checker.add(record.number, record.interface, since, &frame::decode(&record));
    }
    checker.finish()
}

/// The kinds of findings of which at least one must be there, and those that may be, at the requester's
/// end (0) or the responder's (1).
fn expected(fault: Fault, tap: usize, run: &Conversation, victim: Victim) -> [Vec<Kind>; 2] {
    use Kind::{AckLost, Duplicate, Icrc, ImpliedNak, Reordered, SequenceNak, Timeout};
    let losses = vec![SequenceNak, ImpliedNak, Timeout, AckLost];
    let lost = if run.sent_again[tap] { losses.clone() } else { Vec::new() };
    match (fault, tap) {
        _ if !victim.hit => [Vec::new(), Vec::new()],
        (Fault::None, _) => [Vec::new(), Vec::new()],
        (Fault::DropRequest | Fault::DropResponse, _) => [lost, losses],
        (Fault::DuplicateRequest, 1) => [vec![Duplicate], vec![Duplicate]],
        (Fault::DuplicateResponse, 0) if victim.is_data => [vec![Duplicate], vec![Duplicate]],
        (Fault::DuplicateRequest | Fault::DuplicateResponse, _) => [Vec::new(), vec![Duplicate]],
        (Fault::CorruptRequest, 1) | (Fault::CorruptResponse, 0) => {
            [vec![Icrc], [losses, vec![Icrc]].concat()]
        }
        (Fault::CorruptRequest | Fault::CorruptResponse, _) => [lost, losses],
        (Fault::DelayRequest, _) => [
            lost.into_iter().chain(run.sent_again[tap].then_some(Reordered)).collect(),
            [losses, vec![Reordered]].concat(),
        ],
    }
}

/// The same of an unreliable connection: nothing is sent again, and its requester's end sees nothing.
fn expected_of_uc(fault: Fault, tap: usize, victim: Victim) -> [Vec<Kind>; 2] {
    use Kind::{Duplicate, Icrc, Lost, Reordered};
    let if_passed = |kind| victim.is_passed.then_some(kind).into_iter().collect::<Vec<_>>();
    match fault {
        _ if !victim.hit || tap == 0 => [Vec::new(), Vec::new()],
        Fault::DropRequest => [if_passed(Lost), if_passed(Lost)],
        Fault::DuplicateRequest => [vec![Duplicate], vec![Duplicate]],
        Fault::CorruptRequest => [vec![Icrc], [vec![Icrc], if_passed(Lost)].concat()],
        Fault::DelayRequest => [if_passed(Reordered), if_passed(Reordered)],
        _ => [Vec::new(), Vec::new()],
    }
}

/// A conversation with one fault each, and those that may not be wrong again.
fn single() -> impl Iterator<Item = Plan> {
    let usual = 0..CONVERSATIONS[usize::from(xtask::everything())];
    let seeds = usual.chain(FALSE_ALARMS).flat_map(|seed| [(seed, false), (seed, true)]);
    seeds.map(|(seed, one_address)| Plan {
        seed,
        one_address,
        is_reliable: true,
        gives_credits: seed.is_multiple_of(3),
        faults: [FAULTS[usize::try_from(seed).unwrap() % FAULTS.len()], Fault::None],
        bug: None,
    })
}

/// Unreliable connections, with a fault each.
fn unreliable() -> impl Iterator<Item = Plan> {
    single().map(|plan| Plan { is_reliable: false, gives_credits: false, ..plan })
}

/// Two faults at once: each with each.
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
fn the_faults_of_unreliable_connections_are_found_and_none_is_invented() {
    compare("UC", unreliable());
}

/// One fault may hide the other. A packet that the network has duplicated looks like one that was sent again,
/// for example, if it was. So it is enough if something is found.
#[test]
fn of_two_faults_one_is_found_at_least_and_none_is_invented() {
    compare("RC, and another fault", double());
}

/// Each conversation in which a broken engine shows its bug has a finding that names it, at a PSN of the
/// message or later. What follows from it, NAKs and repetitions, is found too.
#[test]
fn the_bugs_of_broken_engines_are_found() {
    println!("{:<16} {:<9} runs  shown  found", "bug", "at");
    let mut wrong = Vec::new();
    for bug in BUGS {
        let mut rows = [[0; 3]; 2];
        let seeds = CONVERSATIONS[0] / if xtask::everything() { 1 } else { 5 };
        for plan in single().filter(|plan| plan.seed < seeds) {
            // Without a loss no atomic is repeated.
            let lossy = if bug == Bug::AtomicAgain { Fault::DropResponse } else { Fault::None };
            let plan = Plan { faults: [lossy, Fault::None], bug: Some(bug), ..plan };
            let run = converse(&plan);
            for (tap, row) in rows.iter_mut().enumerate() {
                row[0] += 1;
                // The first answer to an atomic may have been lost before it came to the requester.
                let is_lost = |at: &Psn| tap == 0 && run.victims[0].psn == *at;
                let Some(at) = run.bug_at.filter(|at| !is_lost(at)) else { continue };
                let report = check(&run.taps[tap]);
                let is_it = |f: &Finding| {
                    bug.kinds().contains(&f.kind) && (0..64).contains(&Psn::new(f.psn).diff(at))
                };
                let is_found = report.findings.iter().any(is_it);
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
    let mut wrong = Vec::new();
    for plan in plans {
        let run = converse(&plan);
        for tap in 0..2 {
            let report = check(&run.taps[tap]);
            let kinds: BTreeSet<_> = report.findings.iter().map(|f| f.kind).collect();
            let faults = plan.faults.into_iter().zip(run.victims);
            let [musts, mays]: [Vec<_>; 2] = faults
                .map(|(fault, victim)| match plan.is_reliable {
                    true => expected(fault, tap, &run, victim),
                    false => expected_of_uc(fault, tap, victim),
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
            if !is_noticed || invented && run.is_apart() {
                let found: Vec<_> =
                    report.findings.iter().map(|f| (f.kind, f.psn, &f.frames, &f.text)).collect();
                wrong.push(format!("{plan:?} tap {tap}: {found:?}"));
            }
        }
    }
    println!("{what}\n{:<18} {:<9} runs  with trace  found  silent  invented", "fault", "at");
    for ((fault, tap), [runs, must, found, silent, invented]) in &table {
        let at = ["requester", "responder"][*tap];
        println!(
            "{:<18} {at:<9} {runs:>4}  {must:>10}  {found:>5}  {silent:>6}  {invented:>8}",
            format!("{fault:?}")
        );
    }
    let few: Vec<_> = wrong.iter().take(12).collect();
    assert!(wrong.is_empty(), "{} conversations: {few:#?}", wrong.len());
}

/// The kinds of faults and warnings that a capture of this name may have, each seen by hand.
fn known(name: &str) -> &'static [Kind] {
    match name {
        "rnr_late" | "rnr_never" => &[Kind::Rnr],
        "peer_gone" => &[Kind::Timeout, Kind::Unanswered],
        // ConnectX refuses the masked compare and swap that its peer sends.
        "mlx5-read-cas" => &[Kind::InvalidRequest],
        // Linux rxe answers with the one, this engine with the other: see tests/tests/pcaps.rs.
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
