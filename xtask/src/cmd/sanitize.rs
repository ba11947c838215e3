//! `cargo xtask sanitize`: runs the tests of unsafe and concurrent code under tools that find more
//! errors: AddressSanitizer, ThreadSanitizer, valgrind, loom.
//!
//! The sanitizers need unstable flags, which a stable compiler accepts with RUSTC_BOOTSTRAP.
//! ThreadSanitizer also needs a standard library built with it, and therefore the library's source:
//! otherwise it does not detect the synchronisation by that library's locks. With `--cfg
//! sanitized`, registered memory is copied by Rust code instead of assembly, which sanitizers do
//! not instrument.

use super::stages::Run;
use rxe_harness::vm::Result;
use std::env;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// This command has no options.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let mut all = Run::default();
    stages(&mut all);
    Ok(all.report())
}

/// The target for the sanitizers and valgrind: the developers' own machine.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// Runs the stages of `cargo xtask sanitize`.
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
            // A test requests more memory than there is, to check that it is refused.
            cmd.env("ASAN_OPTIONS", "allocator_may_return_null=1");
            // Naming the target keeps build scripts and procedural macros out of it.
            cmd.args(["test", "--target", HOST]).args(what);
            count.check_tests("AddressSanitizer", &mut cmd);
        }
    });
    all.stage("tsan", |count| {
        if !has_std_source() {
            return count.skip(
                "ThreadSanitizer: there is no source of the standard library to build with it \
                 (rustup component add rust-src)",
            );
        }
        let mut cmd = cargo("tsan");
        cmd.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=thread --cfg sanitized");
        // For the same reason as with AddressSanitizer.
        cmd.env("TSAN_OPTIONS", "allocator_may_return_null=1");
        cmd.args(["test", "-Zbuild-std", "--target", HOST]);
        cmd.args(["--package", "rxe-core", "--package", "rxe-verbs", "--lib"]);
        for test in
            ["completions", "lifetimes", "operations", "shared_receives", "threads", "waiting"]
        {
            cmd.args(["--test", test]);
        }
        count.check_tests("ThreadSanitizer", &mut cmd);
    });
    all.stage("valgrind", |count| {
        let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
        if !version.is_ok_and(|status| status.success()) {
            return count.skip("valgrind: it is not installed (Debian: apt-get install valgrind)");
        }
        let mut cmd = cargo("");
        let runner = format!("CARGO_TARGET_{}_RUNNER", HOST.to_uppercase().replace('-', "_"));
        // valgrind reports memory of libtest's own threads as "possibly lost".
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

/// Returns whether the toolchain has the source of its standard library.
fn has_std_source() -> bool {
    let rustc = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = rustc.map(|found| String::from_utf8_lossy(&found.stdout).trim().to_owned());
    let source = |sysroot: String| {
        Path::new(&sysroot).join("lib/rustlib/src/rust/library/std/Cargo.toml").is_file()
    };
    sysroot.is_ok_and(source)
}

/// Returns a cargo command with its own target directory, unless `target` is empty.
/// With other flags, a shared directory would be rebuilt.
fn cargo(target: &str) -> Command {
    let mut cmd = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if !target.is_empty() {
        cmd.env("CARGO_TARGET_DIR", format!("target/{target}"));
    }
    cmd
}
