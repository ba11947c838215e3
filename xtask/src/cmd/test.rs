//! `cargo xtask test`: runs all tests with one command, and prints a summary line at the end.

use super::stages::{Count, Lints, Run};
use super::{deps, dist, docs, fresh, quick, sanitize, side_by_side, targets};
use rxe_bench::instructions;
use rxe_harness::checkout::{self, cargo};
use rxe_harness::vm::{Error, KNOWN, Kernel, Result};
use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

/// The tests to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// All kernels, and the larger variant of every test that has one
    #[arg(long)]
    all: bool,
    /// Also the tests of `cargo xtask sanitize`; implied by `--all`
    #[arg(long)]
    sanitize: bool,
    /// Only the tests that take about three minutes with a warm build: no VMs, no programs, no
    /// packages
    #[arg(long, conflicts_with_all = ["all", "sanitize", "filter"])]
    quick: bool,
    /// Test as on a new machine: a clone of the last commit with nothing next to it, and empty
    /// caches. The clone is in DIR, or in one of several places in turn
    #[arg(long, value_name = "DIR", require_equals = true)]
    fresh: Option<Option<PathBuf>>,
    /// Only tests whose name contains this text; leaves out formatting and lints
    filter: Option<String>,
}

/// The kernels that the tests boot without `--all`.
const KERNELS: [&str; 2] = ["6.1", "7.2"];

impl Args {
    /// Returns the arguments other than `--fresh`, as words.
    fn words(&self) -> Vec<&str> {
        let flags = [("--all", self.all), ("--sanitize", self.sanitize), ("--quick", self.quick)];
        let flags = flags.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag);
        flags.chain(self.filter.as_deref()).collect()
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(dir) = &args.fresh {
        return fresh::run(&args.words(), dir.as_deref());
    }
    visible(&[checkout::root()?, env::current_exe().unwrap_or_default(), env::temp_dir()])?;
    let mut all = Run::default();
    if args.quick {
        quick::stages(&mut all)?;
        return Ok(all.report());
    }
    let whole = args.filter.is_none();
    all.stage("deps", |count| match deps::ensure() {
        None => {}
        Some(why) => count.skip(&format!("some outer tests: {why}")),
    });
    if whole {
        all.format();
    }
    // Kernels are downloaded during the build, because that mostly waits for the network.
    let wanted = if args.all { KNOWN.as_slice() } else { KERNELS.as_slice() };
    let kernels = thread::spawn(|| wanted.iter().map(|v| Kernel::find(v)).collect::<Vec<_>>());
    all.stage("build", |count| {
        // Builds all that the tests need. clippy checks the benchmarks.
        let targets = ["--lib", "--bins", "--tests", "--examples"];
        let built = count.watch(cargo().args(["build", "--workspace", "--quiet"]).args(targets));
        count.check("build", built);
    });
    all.stage("kernels", |_| {
        for (version, found) in wanted.iter().zip(kernels.join().unwrap_or_default()) {
            match found {
                Ok(k) => println!("{version}: {}", k.name),
                // The tests that need the kernel report that they are skipped.
                Err(why) => println!("{version}: {why}"),
            }
        }
    });
    // Lints run at the same time, because most tests spend much of their time waiting.
    let lints = whole.then(Lints::start);
    all.stage("test", |count| {
        // Tells tests not to build again the programs that the stage before has built.
        let variables = [("RXE_BUILT", "1"), ("RXE_TEST_ALL", "1")];
        let some = if args.all { &variables[..] } else { &variables[..1] };
        side_by_side::run(count, args.filter.as_deref(), some);
    });
    if let Some(lints) = lints {
        all.lints(lints);
    }
    if whole {
        all.stage("counts", |count| match counts(args.all) {
            Ok((text, same)) => {
                print!("{text}");
                count.check("instruction counts", Ok(same));
            }
            Err(Error::Missing(why)) => count.skip(&format!("instruction counts: {why}")),
            Err(why) => count.check("instruction counts", Err(why)),
        });
    }
    if args.all {
        all.stage("msrv", oldest_rust);
        all.stage("targets", targets::check);
        all.stage("docs", docs::test);
        all.stage("publish", publish);
        all.stage("dist", dist::test);
    }
    if args.sanitize || args.all {
        sanitize::stages(&mut all);
    }
    Ok(all.report())
}

/// Refuses directories that are hidden in VMs and namespaces, where tests mount their own.
fn visible(dirs: &[PathBuf]) -> Result<()> {
    let hidden =
        |dir: &&PathBuf| ["/run", "/dev", "/proc", "/sys"].iter().any(|own| dir.starts_with(own));
    let Some(dir) = dirs.iter().find(hidden) else { return Ok(()) };
    let why = "some tests have a /run and a /dev of their own, and would not find it";
    Err(Error::Failed(format!("{}: {why}: use another directory", dir.display())))
}

/// Checks everything with the oldest Rust that `rust-version` promises.
fn oldest_rust(count: &mut Count) {
    let version = concat!(env!("CARGO_PKG_RUST_VERSION"), ".0");
    let rustup = |args: &[&str]| {
        let mut cmd = Command::new("rustup");
        cmd.args(["run", version]).args(args);
        cmd
    };
    let found = rustup(&["rustc", "--version"]).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return count.skip(&format!(
            "Rust {version}: it is not installed (rustup toolchain install {version})"
        ));
    }
    let mut cmd = rustup(&["cargo", "check", "--workspace", "--all-targets", "--quiet"]);
    cmd.args(["--target-dir", "target/msrv"]);
    // With these variables, rustup would run the compiler that runs this program.
    cmd.env_remove("RUSTC").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    let checked = count.watch(&mut cmd);
    count.check(&format!("Rust {version}"), checked);
}

/// The crates that are not published.
const OWN: [&str; 6] =
    ["rxe-bench", "rxe-harness", "rxe-test-support", "rxe-tests", "rxe-web", "xtask"];

/// Packs all crates as for a registry, and builds each from its package.
/// `rxe` is built with the library that its package contains.
fn publish(count: &mut Count) {
    let mut cmd = cargo();
    cmd.args(["package", "--workspace"]);
    cmd.args(OWN.iter().flat_map(|own| ["--exclude", own]));
    // Uncommitted changes are packed, too. No other test shows that a file is missing from a
    // package.
    cmd.args(["--allow-dirty", "--quiet", "--target-dir", "target/package-test"]);
    let packed = count.watch(&mut cmd);
    count.check("cargo package", packed);
}

/// Compares instruction counts.
/// Only with `--all`, because the release build takes longer than the counting.
fn counts(all: bool) -> Result<(String, bool)> {
    if !all {
        return Err(Error::Missing("only with --all".into()));
    }
    instructions::run(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::path::Path;

    /// crates.io refuses a crate without a description or a licence, with more than five keywords,
    /// or with unknown categories. docs.rs builds the targets and features that the metadata name.
    #[test]
    fn every_crate_has_what_crates_io_and_docs_rs_need_or_is_not_published() {
        // A subset of crates.io's list.
        const CATEGORIES: [&str; 9] = [
            "asynchronous",
            "command-line-utilities",
            "development-tools::debugging",
            "development-tools::testing",
            "emulators",
            "network-programming",
            "os::linux-apis",
            "parser-implementations",
            "simulation",
        ];
        let out = cargo()
            .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
            .output()
            .unwrap();
        let json: Value = serde_json::from_slice(&out.stdout).unwrap();
        let packages = json["packages"].as_array().unwrap();
        let (published, own): (Vec<_>, Vec<_>) =
            packages.iter().partition(|package| package["publish"].is_null());
        let names = |of: &[&Value]| -> Vec<String> {
            let mut names: Vec<_> =
                of.iter().map(|package| package["name"].as_str().unwrap().to_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&own), OWN);
        assert_eq!(published.len(), 8, "{:?}", names(&published));
        for package in published {
            let name = &package["name"];
            let text = |key: &str| package[key].as_str().unwrap_or_default();
            let list = |key: &str| package[key].as_array().unwrap().clone();
            assert!(text("description").len() > 40, "{name}: description");
            assert!(!text("description").ends_with('.'), "{name}: description");
            assert_eq!(text("license"), "MIT OR Apache-2.0", "{name}");
            let manifest = Path::new(text("manifest_path"));
            assert!(manifest.with_file_name(text("readme")).exists(), "{name}: readme");
            assert!((1..=5).contains(&list("keywords").len()), "{name}: keywords");
            assert!((1..=5).contains(&list("categories").len()), "{name}: categories");
            for category in list("categories") {
                assert!(CATEGORIES.contains(&category.as_str().unwrap()), "{name}: {category}");
            }
            let docs = &package["metadata"]["docs"]["rs"];
            assert_eq!(docs["targets"][0], "x86_64-unknown-linux-gnu", "{name}");
            let features = package["features"].as_object().unwrap();
            assert!(features.is_empty() || docs["all-features"] == true, "{name}: features");
            // All crates share the setting in the workspace's Cargo.toml.
            assert_eq!(text("repository"), env!("CARGO_PKG_REPOSITORY"), "{name}");
            assert!(package["repository"].is_string(), "{name}: repository.workspace");
        }
        let address = env!("CARGO_PKG_REPOSITORY");
        assert!(address.is_empty() || address.starts_with("https://"), "{address}");
    }

    #[test]
    fn a_directory_that_tests_would_hide_is_refused() {
        let visible = |dir: &str| visible(&["/home/u/rxe".into(), dir.into()]).is_ok();
        assert!(visible("/var/tmp/rxe") && visible("/runs/rxe"));
        assert!(!visible("/dev/shm/rxe") && !visible("/run/user/0"));
    }
}
