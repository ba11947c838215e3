//! Measures how fast rxe is compared with other programs on the same machine.
//! The programs run in turns, within minutes of each other. The command is `cargo xtask bench`.
//!
//! A veth pair connects two network namespaces, and a run has one process in each. A round runs
//! every contender once, and there are several rounds. The results are ratios within a round,
//! because machines differ, and the speed of a shared machine differs from minute to minute. No
//! test of the project depends on the results.

mod captures;
mod contender;
mod fabric;
mod goals;
pub mod instructions;
mod kernel;
mod link;
mod live;
mod page;
mod plot;
mod poll_latency;
mod profile;
mod report;
mod shared_cache;
mod sweep;
mod tests;
mod versions;

use rxe_harness::checkout;
use rxe_harness::pages;
use rxe_harness::vm::Result;
use std::process::ExitCode;

use contender::Contender;
use link::Link;
use poll_latency::PollLatency;
use report::{Round, Table};
use shared_cache::SharedCacheGate;
use tests::Test;

/// The page of docs/ that shows the results.
const PAGE: &str = "project/performance";

/// The contenders to compare, or one of the other modes, and the options of the measurement.
#[derive(clap::Args)]
pub struct Args {
    /// One short round of the main tests
    #[arg(long)]
    #[arg(conflicts_with_all = ["instructions", "fabric", "profile", "captures", "live", "looks"])]
    quick: bool,
    /// Number of rounds of each test [default: 5, or 1 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    #[arg(conflicts_with_all = ["instructions", "fabric", "profile"])]
    rounds: Option<u32>,
    /// Also plot over message sizes and numbers of queue pairs, in target/plots
    #[arg(long, conflicts_with = "mode")]
    plots: bool,
    /// Also compare with the kernel's rdma_rxe, in one VM with this kernel: 7.2, a .deb, or a
    /// directory. Older kernels keep their devices in one network namespace
    #[arg(long, value_name = "KERNEL")]
    #[arg(conflicts_with_all = ["compare", "instructions", "fabric", "captures", "live", "looks"])]
    kernel: Option<String>,
    /// Only tests whose name contains this, as in "WRITE" or "latency"
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["instructions", "captures", "live"])]
    only: Option<String>,
    /// Print JSON
    #[arg(long)]
    #[arg(conflicts_with_all = ["instructions", "fabric", "profile", "captures", "live", "looks"])]
    json: bool,
    /// Measure everything that docs/en/project/performance.md marks as measured by this command,
    /// with --plots, --kernel, --captures, --live and --profile, and put tables and plots there.
    /// With a mode, put the results of that mode into docs/, or the counts of --instructions into
    /// their table
    #[arg(long, conflicts_with_all = ["compare", "only"])]
    write: bool,
    /// With --write, measure only the tables, the goals and the plot of loss: about seven minutes a
    /// round. The other results are the other plots, or have options of their own
    #[arg(long, requires = "write", conflicts_with_all = ["plots", "mode"])]
    tables: bool,
    /// Compare versions of rxe instead: BEFORE with AFTER, or with this checkout.
    /// Each is a git revision, which is built in a directory of its own, or the directory of a
    /// checkout
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 1..=2, group = "mode")]
    compare: Vec<String>,
    /// Count the engine's instructions instead, and compare them with tests/benches/instructions.json;
    /// with --write, replace that table
    #[arg(long, group = "mode")]
    instructions: bool,
    /// Simulate a fabric of up to 1,000 hosts in virtual time instead: incast and all-to-all, with and
    /// without congestion control. Takes some minutes. With --write, put the results into
    /// docs/en/project/fabric.md, and otherwise the plots into target/plots
    #[arg(long, group = "mode")]
    fabric: bool,
    /// Sample both ends with perf instead, and print where their time is spent; with --kernel, also
    /// those of the kernel's rdma_rxe in a VM. With --write, put the tables into
    /// docs/en/project/performance.md
    #[arg(long, group = "mode")]
    profile: bool,
    /// Measure instead how fast `rxe decode` and `rxe check` read large captures on one CPU, and
    /// their memory. The captures are created in target/captures. With --write, put the table into
    /// docs/en/project/performance.md
    #[arg(long, group = "mode")]
    captures: bool,
    /// Measure instead how fast ib_write_bw is while `rxe capture` captures it: on one host and
    /// over a link, its own packets (--of all) and those of the link (-i). With --write, put the
    /// table into docs/en/project/performance.md
    #[arg(long, group = "mode")]
    live: bool,
    /// Measure instead only how long a WRITE takes to threads that poll memory: 1, 2 and 4 of them
    /// on 1 and 2 CPUs, which is also part of a full run. With --write, put the table into
    /// docs/en/project/performance.md
    #[arg(long, group = "mode")]
    looks: bool,
}

/// Measures, prints the results, and writes them to docs/ if `args` ask for it.
///
/// # Errors
/// A program is missing or fails, or a result cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.instructions {
        let (text, same) = instructions::run(args.write)?;
        print!("{text}");
        return Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if args.fabric {
        return fabric::run(args.only.as_deref(), args.write).map(|()| ExitCode::SUCCESS);
    }
    let cache_gate = SharedCacheGate::new();
    if args.profile {
        profile::run(args.only.as_deref(), args.kernel.as_deref(), args.write, &cache_gate)?;
        eprint!("{}", cache_gate.note());
        return Ok(ExitCode::SUCCESS);
    }
    if args.captures {
        return captures::run(args.rounds.unwrap_or(5), args.write).map(|()| ExitCode::SUCCESS);
    }
    if args.live {
        live::run(args.rounds.unwrap_or(5), args.write, &cache_gate)?;
        eprint!("{}", cache_gate.note());
        return Ok(ExitCode::SUCCESS);
    }
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    if args.looks {
        let well = poll_latency::run(rounds, args.only.as_deref(), args.write, &cache_gate)?;
        eprint!("{}", cache_gate.note());
        return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let (rxe, groups) = groups(args)?;
    let mut tables = tables(&groups, rounds, args, &cache_gate)?;
    let mut plots = Vec::new();
    let mut failures = Vec::new();
    if args.plots || (args.write && !args.tables) {
        let all: Vec<_> = groups.iter().flatten().collect();
        plots = sweep::plots(&all, args.quick, &cache_gate, &mut failures)?;
    }
    // The page has all results, so it needs those with the kernel.
    if let Some(kernel) = args.kernel.as_deref().or(args.write.then_some(kernel::DEFAULT)) {
        let (beside, plot) = kernel::run(&rxe, kernel, rounds, args.only.as_deref(), &cache_gate)?;
        if !args.json {
            beside.iter().for_each(|table| println!("{table}"));
        }
        tables.extend(beside);
        plots.push(plot);
    }
    // This comes before the threads that poll, because the text counts the runs so far.
    let measured = report::markdown(&tables, &cache_gate);
    let mut poll_latency_results = PollLatency::default();
    if !args.quick && args.compare.is_empty() {
        poll_latency_results =
            poll_latency::measure(&rxe, rounds, args.only.as_deref(), &cache_gate)?;
        if !args.json {
            print!("{poll_latency_results}");
        }
    }
    failures.iter().for_each(|why| eprintln!("xtask: {why}"));
    eprint!("{}", cache_gate.note());
    if args.json {
        let mut all = report::json(&tables, &cache_gate);
        all["threads_that_look"] = poll_latency_results.json();
        println!("{all:#}");
    } else if !args.compare.is_empty() {
        println!("{}", report::verdict(&tables));
    }
    page::write_plots("performance", &plots, args.write)?;
    if args.write {
        let root = checkout::root()?;
        pages::write(&root, PAGE, "bench --write", &measured)?;
        pages::write(&root, PAGE, "bench --write (goals)", &goals::markdown(&tables))?;
        poll_latency_results.write()?;
    }
    if args.write && !args.tables {
        captures::run(rounds, true)?;
        live::run(rounds, true, &cache_gate)?;
        // The profile is last, because it needs the most: perf, and the right to sample all CPUs.
        let kernel = args.kernel.as_deref().unwrap_or(kernel::DEFAULT);
        profile::run(None, Some(kernel), true, &cache_gate)?;
    }
    let broken = !failures.is_empty()
        || tables.iter().any(Table::has_failures)
        || poll_latency_results.has_failures();
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs all rounds of all tests. Each table is printed when it is complete.
fn tables(
    groups: &[Vec<Contender>],
    rounds: u32,
    args: &Args,
    cache_gate: &SharedCacheGate,
) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    let only = args.only.as_deref();
    for test in tests::all(args.quick).into_iter().filter(|test| tests::is_named(test, only)) {
        // Each test gets a new link, so nothing is left over from the previous one.
        let link = Link::new(test.link_mtu())?;
        for group in groups {
            let taking: Vec<_> = group.iter().filter(|c| c.supports(test)).collect();
            if taking.is_empty() {
                continue;
            }
            let table = measure(&taking, &link, test, rounds * test.runs(), args, cache_gate);
            if !args.json {
                eprint!("\r\x1b[K");
                println!("{table}");
            }
            tables.push(table);
        }
    }
    Ok(tables)
}

/// Returns our own program, and the groups of contenders that are compared with each other.
fn groups(args: &Args) -> Result<(String, Vec<Vec<Contender>>)> {
    if !args.compare.is_empty() {
        let (before, after) = versions::programs(&args.compare)?;
        let groups =
            ["udp", "packet", "xdp", "shm"].map(|kind| Contender::versions(&before, &after, kind));
        let there = |group: Vec<Contender>| group.into_iter().filter(Contender::is_there).collect();
        return Ok((after, groups.into_iter().map(there).collect()));
    }
    let rxe = versions::build_own()?;
    let (there, missing): (Vec<_>, Vec<_>) =
        Contender::all(&rxe).into_iter().partition(|c| c.is_there());
    for contender in &missing {
        eprintln!("xtask: {} is left out: {}", contender.name(), contender.missing_package());
    }
    Ok((rxe, vec![there]))
}

/// Runs all rounds of a test.
/// Every second round is in reverse order, so that no contender is always first.
fn measure(
    taking: &[&Contender],
    link: &Link,
    test: Test,
    rounds: u32,
    args: &Args,
    cache_gate: &SharedCacheGate,
) -> Table {
    let mut table = Table::new(test, taking.iter().map(|c| c.name()).collect());
    for round in 1..=rounds {
        let turn = |contender: &&Contender| {
            if !args.json {
                eprint!("\r\x1b[K{test}: round {round} of {rounds}, {}", contender.name());
            }
            cache_gate.run(|| contender.measure(link, test, args.quick))
        };
        let results: Vec<_> = if round % 2 == 1 {
            taking.iter().map(turn).collect()
        } else {
            let mut backwards: Vec<_> = taking.iter().rev().map(turn).collect();
            backwards.reverse();
            backwards
        };
        table.push(Round(results));
    }
    table
}

#[cfg(test)]
mod options {
    use super::Args;
    use clap::Args as _;

    /// The modes, each with the options that have an effect in it. The first entry is for no mode.
    const MODES: [(&str, &[&str]); 8] = [
        ("", &OPTIONS),
        ("--compare=main", &["--quick", "--rounds=2", "--only=WRITE", "--json"]),
        ("--instructions", &["--write"]),
        ("--fabric", &["--only=incast", "--write"]),
        ("--profile", &["--kernel=7.2", "--only=WRITE", "--write"]),
        ("--captures", &["--rounds=2", "--write"]),
        ("--live", &["--rounds=2", "--write"]),
        ("--looks", &["--rounds=2", "--only=one host", "--write"]),
    ];

    const OPTIONS: [&str; 7] =
        ["--quick", "--rounds=2", "--plots", "--kernel=7.2", "--only=WRITE", "--json", "--write"];

    #[test]
    fn tables_are_a_part_of_what_is_written() {
        assert!(are_accepted(["--tables", "--write"]) && !are_accepted(["--tables", "--json"]));
        for other in ["--plots", "--captures", "--instructions"] {
            let words = ["--tables", "--write", other];
            let command = Args::augment_args(clap::Command::new("bench").no_binary_name(true));
            assert!(command.try_get_matches_from(words).is_err(), "{other}");
        }
    }

    fn are_accepted(words: [&str; 2]) -> bool {
        let words = words.into_iter().filter(|word| !word.is_empty());
        let command = Args::augment_args(clap::Command::new("bench").no_binary_name(true));
        command.try_get_matches_from(words).is_ok()
    }

    #[test]
    fn an_option_that_a_mode_ignores_is_refused() {
        let name = |option: &'static str| option.split('=').next();
        for (mode, fitting) in MODES {
            for option in OPTIONS {
                let fits = fitting.iter().any(|other| name(other) == name(option));
                assert_eq!(are_accepted([mode, option]), fits, "{mode} {option}");
            }
        }
    }

    #[test]
    fn two_modes_are_refused() {
        for (one, _) in &MODES[1..] {
            for (other, _) in MODES[1..].iter().filter(|(other, _)| other != one) {
                assert!(!are_accepted([one, other]), "{one} {other}");
            }
        }
    }
}
