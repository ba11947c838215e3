//! `cargo xtask sanitize`: the tests of unsafe code and of code shared between threads, under tools that
//! find more errors: AddressSanitizer, ThreadSanitizer, valgrind, loom.
//!
//! The sanitizers need unstable flags, which a stable compiler accepts with RUSTC_BOOTSTRAP.
//! ThreadSanitizer also needs a standard library that is built with it, and so the library's source:
//! otherwise it does not see the synchronisation by that library's locks. With `--cfg sanitized`,
//! registered memory is copied by Rust code instead of assembly, which sanitizers do not see.

use super::stages::Run;
use rxe_harness::vm::Result;
use std::env;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let mut all = Run::default();
    stages(&mut all);
    Ok(all.report())
}

/// The target for AddressSanitizer and valgrind: the developers' own.
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
            // A test asks for more memory than there is, to see it refused.
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
        // As above.
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

/// Whether the toolchain has the source of its standard library.
fn has_std_source() -> bool {
    let rustc = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = rustc.map(|found| String::from_utf8_lossy(&found.stdout).trim().to_owned());
    let source = |sysroot: String| {
        Path::new(&sysroot).join("lib/rustlib/src/rust/library/std/Cargo.toml").is_file()
    };
    sysroot.is_ok_and(source)
}

/// Cargo, with a target directory of its own where flags would make it build everything anew.
fn cargo(target: &str) -> Command {
    let mut cmd = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if !target.is_empty() {
        cmd.env("CARGO_TARGET_DIR", format!("target/{target}"));
    }
    cmd
}
