//! `cargo xtask programs`: generates the table of unmodified programs in
//! `docs/en/reference/programs-tried.md`.

use rxe_harness::checkout;
use rxe_harness::interop::KERNELS;
use rxe_harness::pages;
use rxe_harness::programs::{self, Options, Sides, Which};
use rxe_harness::vm::{Error, Result};
use std::process::ExitCode;

/// The programs to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this kernel (may be repeated); 6.1 and 7.2 if none is named
    #[arg(long, value_name = "V")]
    kernel: Vec<String>,
    /// Only programs whose "PROGRAM OPTIONS, SERVER–CLIENT" contains this text
    #[arg(long)]
    filter: Option<String>,
    /// The backend of our end; then the peers are kernels only
    #[arg(long, value_parser = ["udp", "packet", "xdp", "xdp:driver", "xdp:generic", "xdp:zerocopy"])]
    backend: Option<String>,
}

/// The page whose table a complete run writes, if the page has a place for it.
pub(super) const PAGE: &str = "reference/programs-tried";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let kernels: Vec<&str> = match args.kernel.as_slice() {
        [] => KERNELS.into(),
        some => some.iter().map(String::as_str).collect(),
    };
    let root = checkout::root()?;
    let option = args.backend.as_ref().map(|name| format!(" --backend {name}"));
    let command = format!("programs{}", option.unwrap_or_default());
    let whole = args.filter.is_none() && args.kernel.is_empty();
    let writes = whole && pages::has_place(&root, PAGE, &command)?;
    if whole && !writes {
        eprintln!(
            "docs/en/{PAGE}.md has no place for `cargo xtask {command}`: its table is only printed"
        );
    }
    let rxe = super::interop::build()?.join("rxe");
    let backend = args.backend.clone();
    // Two of our programs on one address use shared memory, whatever the backend.
    let (which, columns) = match backend {
        None => (Which::All, &Sides::ALL[..]),
        Some(_) => (Which::WithKernel, &Sides::ALL[1..]),
    };
    let mut options = Options { filter: args.filter.clone(), which, backend, rxe, verbose: true };
    let mut all = Vec::new();
    for kernel in kernels {
        match programs::run(kernel, &options) {
            Ok(rows) => {
                all.push((kernel, rows));
                options.which = Which::WithKernel;
            }
            Err(Error::Missing(why)) => println!("SKIPPED: kernel {kernel}: {why}"),
            Err(e) => return Err(e),
        }
    }
    let mut table = programs::table(&all, columns);
    if let Some(line) = programs::versions() {
        table = format!("{line}\n{table}");
    }
    println!("{table}");
    let failed = all.iter().flat_map(|(_, rows)| rows).filter(|r| r.failed.is_some()).count();
    if writes && all.len() == KERNELS.len() {
        pages::write(&root, PAGE, &command, &table)?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
