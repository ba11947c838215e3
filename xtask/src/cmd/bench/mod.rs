//! `cargo xtask bench`: how fast this is, beside others on the same machine in the same minute.
//!
//! Two network namespaces with a veth pair between them; in each run one process in either, every
//! contender in turn, several rounds. What counts is the ratio within a round, since machines differ
//! and a shared one differs from minute to minute. Nothing here decides whether a test passes.

mod contender;
mod link;
mod report;

use std::process::{Command, ExitCode};
use std::{env, fs};
use xtask::vm::{Error, Result};

use contender::{Contender, Test};
use link::Link;
use report::{Round, Table};

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
    /// Put the results into docs/performance.md
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let rxe = build()?;
    let (there, missing): (Vec<_>, Vec<_>) =
        Contender::all(&rxe).into_iter().partition(|c| c.is_there());
    for contender in &missing {
        eprintln!("xtask: {} is left out: {}", contender.name(), contender.lacks());
    }
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    let mut tables = Vec::new();
    for test in tests(args) {
        // A link of its own for each: nothing is left over from the one before.
        let link = Link::new(test.link_mtu())?;
        let taking: Vec<_> = there.iter().filter(|c| c.can(test)).collect();
        let mut table = Table::new(test, taking.iter().map(|c| c.name()).collect());
        for round in 1..=rounds {
            let mut results = Vec::new();
            for contender in &taking {
                if !args.json {
                    eprint!("\r\x1b[K{test}: round {round} of {rounds}, {}", contender.name());
                }
                results.push(contender.measure(&link, test, args.quick));
            }
            table.push(Round(results));
        }
        if !args.json {
            eprint!("\r\x1b[K");
            println!("{table}");
        }
        tables.push(table);
    }
    if args.json {
        println!("{:#}", report::json(&tables));
    }
    if args.write {
        report::write(&tables, rounds)?;
    }
    let broken = tables.iter().any(Table::has_failures);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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

/// Builds the program to measure, as a user would, and tells where it is.
fn build() -> Result<String> {
    let failed = |what: String| Error::Failed(format!("cargo build: {what}"));
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let out = cargo
        .args([
            "build",
            "--release",
            "-p",
            "rxe-cli",
            "--message-format",
            "json-render-diagnostics",
        ])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|e| failed(e.to_string()))?;
    if !out.status.success() {
        return Err(failed("see above".into()));
    }
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| Some(message.get("executable")?.as_str()?.to_owned()))
        .find(|path| fs::metadata(path).is_ok())
        .ok_or_else(|| failed("it made no program".into()))
}
