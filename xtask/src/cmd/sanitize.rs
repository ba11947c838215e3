//! `cargo xtask sanitize`: the tests of what is unsafe or shared between threads, under tools that
//! see what a test can not: AddressSanitizer, valgrind, loom.
//!
//! AddressSanitizer needs an unstable flag, which a stable compiler takes when it is told that it
//! bootstraps. ThreadSanitizer is left out: it takes the locks of a standard library that was not
//! built with it for no synchronisation at all.

use super::test::Run;
use std::env;
use std::process::{Command, ExitCode, Stdio};
use xtask::vm::Result;

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let mut all = Run::default();
    stages(&mut all);
    Ok(all.report())
}

/// AddressSanitizer and valgrind are run on what this is developed on.
const HOST: &str = "x86_64-unknown-linux-gnu";

pub(super) fn stages(all: &mut Run) {
    all.stage("loom", |count| {
        let mut cmd = cargo("loom");
        cmd.env("RUSTFLAGS", "--cfg loom");
        cmd.args(["test", "--package", "rxe-core", "--lib", "sync::models"]);
        count.check_tests("loom", &mut cmd);
    });
    all.stage("asan", |count| {
        for what in [
            &["--package", "rxe-core", "--lib"][..],
            &["--package", "rxe-tests", "--test", "fuzzed", "--test", "hostile"][..],
        ] {
            let mut cmd = cargo("asan");
            cmd.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address --cfg sanitized");
            // Naming the target keeps build scripts and procedural macros out of it.
            cmd.args(["test", "--target", HOST]).args(what);
            count.check_tests("AddressSanitizer", &mut cmd);
        }
    });
    all.stage("valgrind", |count| {
        let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
        if !version.is_ok_and(|status| status.success()) {
            return count.skip("valgrind: it is not installed (Debian: apt-get install valgrind)");
        }
        let mut cmd = cargo("");
        let runner = format!("CARGO_TARGET_{}_RUNNER", HOST.to_uppercase().replace('-', "_"));
        // What libtest's own threads keep until they end is "possibly lost".
        cmd.env(
            runner,
            "valgrind --quiet --error-exitcode=9 --leak-check=full \
             --show-leak-kinds=definite --errors-for-leak-kinds=definite",
        );
        cmd.args(["test", "--package", "rxe-core", "--lib", "--"]);
        cmd.args(["mem::", "queue::", "qp::", "engine::", "rc::", "uc::", "ud::", "message::"]);
        count.check_tests("valgrind", &mut cmd);
    });
}

/// Cargo, with a target directory of its own where flags would make it build everything anew.
fn cargo(target: &str) -> Command {
    let mut cmd = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if !target.is_empty() {
        cmd.env("CARGO_TARGET_DIR", format!("target/{target}"));
    }
    cmd
}
