//! Thousands of seeded runs of engines against a model; see `rxe_tests::sim`.
//!
//! - `RXE_SIM_RUNS=100000` makes more runs than the usual 20,000.
//! - `RXE_SIM_RINGS=1` runs them with shared memory between the engines and the network, as 2,000
//!   runs always are.
//! - `RXE_SIM_SEED=1234 cargo test -p rxe-tests --test simulation` makes only run 1234 and prints
//!   its log. If the run fails, it is first minimised.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rxe_core::engine::Counters;
use rxe_tests::sim::case::Case;
use rxe_tests::sim::judge::MUST_MEET;
use rxe_tests::sim::shrink::shrink;
use rxe_tests::sim::world::{Failure, Report};

const RUNS: u64 = 20_000;
/// The number of runs with `cargo xtask test --all`.
const ALL: u64 = 100_000;
const RUNS_OVER_RINGS: u64 = 2_000;

#[test]
fn every_seeded_run_is_as_the_model_says() {
    if let Some(seed) = number("RXE_SIM_SEED") {
        return replay(seed);
    }
    let usual = if std::env::var_os("RXE_TEST_ALL").is_some() { ALL } else { RUNS };
    let runs = number("RXE_SIM_RUNS").unwrap_or(usual);
    let (totals, failures) = run_all(runs, draw);
    println!("{runs} runs: {totals:#?}");
    report(&failures, runs, draw, "");
    if runs >= RUNS {
        totals.must_have_met_everything();
    }
}

/// Packets between processes of one host: the network with its faults is between two rings.
#[test]
fn seeded_runs_over_shared_memory_are_as_the_model_says() {
    let draw = |seed| Case::draw(seed).over_rings();
    let (totals, failures) = run_all(RUNS_OVER_RINGS, draw);
    report(&failures, RUNS_OVER_RINGS, draw, "RXE_SIM_RINGS=1 ");
    assert!(totals.requests_not > 0 && totals.requests_well > RUNS_OVER_RINGS * 10);
    for fault in ["lost", "duplicated", "reordered", "corrupted"] {
        assert!(totals.met[fault] > 0, "no run has met: {fault}");
    }
}

/// Returns run number `seed`.
fn draw(seed: u64) -> Case {
    let case = Case::draw(seed);
    if std::env::var_os("RXE_SIM_RINGS").is_some() { case.over_rings() } else { case }
}

#[test]
fn a_run_happens_the_same_way_every_time() {
    for seed in 0..50 {
        let traces = [(); 2].map(|()| Case::draw(seed).run(false).map(|r| r.trace).ok());
        assert_eq!(traces[0], traces[1], "run {seed}");
    }
}

/// Executes all runs, on all cores.
fn run_all(runs: u64, draw: impl Fn(u64) -> Case + Sync) -> (Totals, Vec<(u64, String)>) {
    let next = AtomicU64::new(0);
    let result = Mutex::new((Totals::default(), Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= runs {
                        break;
                    }
                    let outcome = draw(seed).run(false);
                    let mut result = result.lock().unwrap();
                    match outcome {
                        Ok(report) => result.0.add(&report),
                        Err(Failure { what, .. }) => result.1.push((seed, what)),
                    }
                }
            });
        }
    });
    let (totals, mut failures) = result.into_inner().unwrap();
    failures.sort();
    (totals, failures)
}

/// Prints which runs failed, and the log of the first one, which these variables repeat.
fn report(failures: &[(u64, String)], runs: u64, draw: impl Fn(u64) -> Case, variables: &str) {
    let Some((first, what)) = failures.first() else { return };
    for (seed, what) in failures.iter().take(20) {
        eprintln!("run {seed}: {what}");
    }
    tell(*first, &draw(*first), what);
    panic!(
        "{} of {runs} runs failed; replay the first with\n  {variables}RXE_SIM_SEED={first} cargo test -p \
         rxe-tests --test simulation every_seeded -- --nocapture",
        failures.len()
    );
}

/// Executes one run and prints its log.
fn replay(seed: u64) {
    let case = draw(seed);
    match case.run(true) {
        Ok(report) => println!("run {seed} ({}) holds: {report:#?}", case.about()),
        Err(failure) => {
            println!("{}\nrun {seed} ({}): {}", failure.ladder, case.about(), failure.what);
            tell(seed, &case, &failure.what);
            panic!("run {seed} failed: {}", failure.what);
        }
    }
}

/// Minimises a failing run and prints its log.
fn tell(seed: u64, case: &Case, what: &str) {
    let (case, failure) = shrink(case, what);
    eprintln!("--- run {seed}, made smaller; {}", case.about());
    let lines: Vec<_> = failure.ladder.lines().collect();
    for line in &lines[lines.len().saturating_sub(200)..] {
        eprintln!("{line}");
    }
    eprintln!("--- {}", failure.what);
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: give a number")))
}

/// The situations that occurred in all runs together.
#[derive(Debug, Default)]
struct Totals {
    runs_with_failures_as_planned: u64,
    requests_well: u64,
    requests_not: u64,
    calms: u64,
    weak_icrc: u64,
    met: BTreeMap<&'static str, u64>,
    drops: BTreeMap<&'static str, u64>,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.requests_well += report.ended[0];
        self.requests_not += report.ended[1];
        self.runs_with_failures_as_planned += u64::from(report.ended[1] > 0);
        self.calms += report.calms;
        self.weak_icrc += report.weak_icrc;
        let path = &report.fabric.path;
        for (name, n) in [
            ("packets sent", path.sent),
            ("lost", path.lost),
            ("duplicated", path.duplicated),
            ("reordered", path.reordered),
            ("corrupted", path.corrupted),
            ("cut", report.fabric.cut),
        ] {
            *self.met.entry(name).or_default() += n;
        }
        for (name, n) in &report.met {
            *self.met.entry(name).or_default() += n;
        }
        for counters in &report.engines {
            for (name, n) in met(counters) {
                *self.met.entry(name).or_default() += n;
            }
            for (reason, n) in counters.drops() {
                *self.drops.entry(reason.name()).or_default() += n;
            }
        }
    }

    /// Checks that every kind of situation occurred: otherwise the runs prove nothing about it.
    fn must_have_met_everything(&self) {
        let judged = MUST_MEET.iter().map(|name| (name, self.met.get(name).unwrap_or(&0)));
        for (name, n) in self.met.iter().chain(judged) {
            assert!(*n > 0, "no run has met: {name}");
        }
        assert!(self.requests_not > 0 && self.requests_well > 20 * RUNS / 2);
    }
}

fn met(c: &Counters) -> [(&'static str, u64); 10] {
    [
        ("duplicate requests", c.duplicate_request),
        ("gaps", c.out_of_seq_request),
        ("RNR NAKs sent", c.send_rnr_err),
        ("RNR NAKs received", c.rcvd_rnr_err),
        ("NAKs received", c.naks_received),
        ("timeouts", c.ack_timeout),
        ("sequence NAK retries", c.retry_sequence_nak),
        ("implied NAK retries", c.retry_implied_nak),
        ("RNR retries", c.retry_rnr),
        ("failed requests", c.request_failed),
    ]
}
