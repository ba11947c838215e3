//! `cargo xtask conform`: runs `rxe conform` with real kernels and with our own engine.

use std::fs;
use std::process::ExitCode;

use rxe_harness::checkout;
use rxe_harness::conform::{self, Over, Run};
use rxe_harness::vm::{Error, KNOWN, Result};

use super::interop::build;

/// The kernels to test.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only with this kernel (may be repeated), without writing the page
    #[arg(long, value_name = "V")]
    kernel: Vec<String>,
}

/// Runs the cases. A run with all kernels writes the page.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let rxe = build()?.join("rxe");
    let kernels: Vec<String> =
        if args.kernel.is_empty() { KNOWN.map(str::to_owned).into() } else { args.kernel.clone() };
    let mut runs = Vec::new();
    for kernel in &kernels {
        for over in Over::ALL {
            let run = conform::kernel(kernel, over, &rxe)?;
            show(&run);
            runs.push(run);
        }
    }
    if args.kernel.is_empty() {
        for over in Over::ALL {
            let run = conform::ours(over, &rxe)?;
            show(&run);
            runs.push(run);
        }
        let root = checkout::root()?;
        let (path, page) =
            (root.join("docs/en/reference/conformance-report.md"), conform::page(&runs));
        fs::write(&path, &page).map_err(|e| Error::io(&path, &e))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(run: &Run) {
    let Run { name, over, version, cases } = run;
    println!("{name} ({version}) over {}: {} cases", over.name(), cases.len());
    for case in cases.iter().filter(|case| case.verdict != "conforms") {
        println!("  {} {}: {}", case.verdict, case.name, case.found.as_deref().unwrap_or(""));
    }
}
