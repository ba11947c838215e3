//! `cargo xtask libs`: creates versioned libraries next to `rxe`.

use rxe_harness::libs;
use rxe_harness::vm::{Error, Result};
use std::process::{Command, ExitCode};

/// The build for which to create the libraries.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// For target/release instead of target/debug
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let here = std::env::current_exe().ok();
    // This program is target/debug/xtask.
    let target = here.as_deref().and_then(|p| p.parent()?.parent());
    let target =
        target.ok_or_else(|| Error::Failed("this program does not know where it is".into()))?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--package", "rxe-cli", "--package", "rxe-preload"]);
    if args.release {
        cargo.arg("--release");
    }
    if !cargo.status().is_ok_and(|s| s.success()) {
        return Err(Error::Failed("rxe-preload does not build".into()));
    }
    let profile = if args.release { "release" } else { "debug" };
    for library in libs::build(&target.join(profile))? {
        println!("{}", library.display());
    }
    Ok(ExitCode::SUCCESS)
}
