//! `cargo xtask interop`: generates the table of operations that work with real kernels.

use rxe_harness::checkout;
use rxe_harness::interop::{self, Backend, Options, Report, Requester};
use rxe_harness::vm::{Error, KNOWN, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;

/// The cells to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// All kernels: 5.10, 6.1, 6.12 and 7.2
    #[arg(long)]
    all: bool,
    /// Only this kernel (may be repeated); 6.1 and 7.2 if none is named
    #[arg(long, value_name = "V")]
    kernel: Vec<String>,
    /// Only this backend of ours: udp, packet, xdp, l2 (needs neither namespaces nor taps), if (an
    /// endpoint of layer 2 next to the host's stack), pnet (the same by pnet's channel) or guest
    /// (AF_XDP in the VM, with both ends ours)
    #[arg(long, value_parser = backend)]
    backend: Option<Backend>,
    /// Only between two kernels: a test of the harness itself
    #[arg(long, hide = true)]
    baseline: bool,
    /// Only cells whose name contains this, or ends with it if a $ follows; commas separate several
    #[arg(long)]
    filter: Option<String>,
    /// Report the result and the duration of each cell
    #[arg(long, short)]
    verbose: bool,
    /// Write the packets on the link to a pcap file (one kernel at a time)
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// One kernel after the other
    #[arg(long)]
    serial: bool,
}

/// Runs the cells. A run without a filter updates the page.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let kernels: Vec<String> = if args.all {
        KNOWN.map(str::to_owned).into()
    } else if args.kernel.is_empty() {
        interop::KERNELS.map(str::to_owned).into()
    } else {
        args.kernel.clone()
    };
    let bin = build()?;
    let options = Options {
        backends: args.backend.map_or(Backend::ALL.into(), |b| vec![b]),
        brief: Vec::new(),
        requesters: if args.baseline { vec![Requester::Baseline] } else { Requester::BOTH.into() },
        filter: args.filter.clone(),
        verbose: args.verbose,
        capture: args.capture.clone(),
        peer: bin.join("rxe-peer"),
        rxe: bin.join("rxe"),
    };
    let serial = args.serial || args.capture.is_some();
    let mut good = true;
    let mut reports: Vec<Report> = Vec::new();
    for some in kernels.chunks(if serial { 1 } else { 2 }) {
        let done = thread::scope(|s| {
            let all: Vec<_> = some.iter().map(|k| s.spawn(|| interop::run(k, &options))).collect();
            let panicked = || Err(Error::Failed("the run panicked".into()));
            all.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())).collect::<Vec<_>>()
        });
        for (kernel, done) in some.iter().zip(done) {
            match done {
                Ok(report) => reports.push(report),
                Err(Error::Missing(why)) => println!("SKIPPED: kernel {kernel}: {why}"),
                Err(Error::Failed(why)) => {
                    good = false;
                    println!("kernel {kernel}: FAILED: {why}");
                }
            }
        }
    }
    for report in &reports {
        println!("{}", report.section_of_what_was_run());
        good &= report.failed().next().is_none();
    }
    for report in &reports {
        let (all, failed) = (report.rows.len(), report.failed().count());
        let s = report.took.as_secs();
        println!("{}: {all} cells, {failed} failed, {s} s", report.package);
    }
    if args.filter.is_none() && !args.baseline {
        write(&reports)?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write(reports: &[Report]) -> Result<()> {
    let root = checkout::root()?;
    let page = root.join("docs/en/reference/interop.md");
    let old = fs::read_to_string(&page).unwrap_or_default();
    let new = interop::update_docs(&old, reports);
    fs::write(&page, &new).map_err(|e| Error::io(&page, &e))
}

/// Builds our programs and returns their directory.
pub(super) fn build() -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--bins", "--lib"]);
    for package in ["rxe-tests", "rxe-cli", "rxe-preload"] {
        build.args(["--package", package]);
    }
    let status = build.status();
    if !status.is_ok_and(|s| s.success()) {
        return Err(Error::Failed("rxe-peer and rxe do not build".into()));
    }
    // The programs are in the directory of this program.
    let here = env::current_exe().ok().and_then(|p| p.parent().map(Path::to_owned));
    here.ok_or_else(|| Error::Failed("this program does not know where it is".into()))
}

fn backend(name: &str) -> std::result::Result<Backend, String> {
    let found = Backend::ALL.into_iter().find(|b| b.name() == name);
    found.ok_or_else(|| "udp, packet, xdp, l2, if, pnet or guest".into())
}
