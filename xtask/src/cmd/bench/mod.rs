//! `cargo xtask bench`: how fast this is, beside others on the same machine in the same minute.
//!
//! Two network namespaces with a veth pair between them; in each run one process in either, every
//! contender in turn, several rounds. What counts is the ratio within a round, since machines differ
//! and a shared one differs from minute to minute. Nothing here decides whether a test passes.

mod contender;
pub(crate) mod instructions;
mod link;
mod report;
mod versions;

use std::process::ExitCode;
use xtask::vm::Result;

use super::checkout;
use contender::{Contender, Test};
use link::Link;
use report::{Column, Round, Table};

/// What to compare.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One short round of the main tests
    #[arg(long)]
    quick: bool,
    /// Rounds of each test [default: 5, or 1 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// WRITE in all sizes from 1 byte to 1 MiB too
    #[arg(long)]
    sizes: bool,
    /// Only tests whose name contains this, as in "WRITE" or "latency"
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Put the results into docs/performance.md, or those of --instructions into their table
    #[arg(long, conflicts_with = "compare")]
    write: bool,
    /// Compare versions of rxe instead: BEFORE with AFTER, or with this checkout. Either is a
    /// revision of git, which is built in a directory of its own, or the directory of a checkout
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 1..=2)]
    compare: Vec<String>,
    /// Count the engine's instructions instead, and compare them with tests/benches/instructions.json;
    /// with --write, replace that table
    #[arg(long, conflicts_with_all = ["quick", "rounds", "sizes", "only", "json", "compare"])]
    instructions: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.instructions {
        let (text, same) = instructions::run(args.write)?;
        print!("{text}");
        return Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let groups = groups(args)?;
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    let mut tables = Vec::new();
    for test in tests(args) {
        // A link of its own for each: nothing is left over from the one before.
        let link = Link::new(test.link_mtu())?;
        for group in &groups {
            let table = measure(group, &link, test, rounds, args);
            if !args.json {
                eprint!("\r\x1b[K");
                println!("{table}");
            }
            tables.push(table);
        }
    }
    if args.json {
        println!("{:#}", report::json(&tables));
    } else if !args.compare.is_empty() {
        println!("{}", report::verdict(&tables));
    }
    if args.write {
        report::write(&tables, rounds)?;
    }
    let broken = tables.iter().any(Table::has_failures);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The groups of contenders that are compared with each other.
fn groups(args: &Args) -> Result<Vec<Vec<Contender>>> {
    if !args.compare.is_empty() {
        let (before, after) = versions::programs(&args.compare)?;
        let groups = ["udp", "packet"].map(|kind| Contender::versions(&before, &after, kind));
        return Ok(groups.into());
    }
    let rxe = versions::build(&checkout::root()?)?;
    let (there, missing): (Vec<_>, Vec<_>) =
        Contender::all(&rxe).into_iter().partition(|c| c.is_there());
    for contender in &missing {
        eprintln!("xtask: {} is left out: {}", contender.name(), contender.lacks());
    }
    Ok(vec![there])
}

/// Runs all rounds of a test. Every second round is in reverse order, so that no contender is always
/// first.
fn measure(group: &[Contender], link: &Link, test: Test, rounds: u32, args: &Args) -> Table {
    let taking: Vec<_> = group.iter().filter(|c| c.can(test)).collect();
    let columns = taking.iter().map(|c| Column { name: c.name(), ours: c.is_ours() });
    let mut table = Table::new(test, columns.collect());
    for round in 1..=rounds {
        let turn = |contender: &&Contender| {
            if !args.json {
                eprint!("\r\x1b[K{test}: round {round} of {rounds}, {}", contender.name());
            }
            contender.measure(link, test, args.quick)
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

fn tests(args: &Args) -> Vec<Test> {
    let mut tests = vec![
        Test::bandwidth("WRITE", 65536, 1024),
        Test::bandwidth("WRITE", 65536, 4096),
        Test::latency("WRITE", 8),
    ];
    if !args.quick {
        tests.extend([
            Test::bandwidth("READ", 65536, 1024),
            Test::bandwidth("READ", 65536, 4096),
            Test::bandwidth("SEND", 65536, 1024),
            Test::bandwidth("SEND", 65536, 4096),
            Test::latency("SEND", 8),
            Test::latency("SEND", 65536),
        ]);
    }
    if args.sizes {
        tests.extend((0..=20).map(|bit| Test::bandwidth("WRITE", 1 << bit, 1024)));
    }
    if let Some(only) = &args.only {
        tests.retain(|test| test.to_string().contains(&**only));
    }
    tests
}
