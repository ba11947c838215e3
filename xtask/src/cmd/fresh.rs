//! `cargo xtask test --fresh`: the tests as on a new machine.
//!
//! The last commit is cloned into a temporary directory. Nothing is beside the clone, and the
//! cache of kernels is empty, so the code that fills it is tested too. Only cargo's registry and the
//! installed packages are the machine's own.

use super::checkout;
use super::stages::cargo;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xtask::vm::{Error, Result};

/// Runs `cargo xtask test` with `args` in a clone.
pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let root = checkout::root()?;
    let scratch = tempfile::Builder::new().prefix("rxe-fresh-").tempdir();
    let scratch = scratch.map_err(|e| Error::Failed(format!("a temporary directory: {e}")))?;
    let clone = scratch.path().join("rxe");
    let changed = checkout::git(&root, &["status", "--porcelain"])?;
    if !changed.is_empty() {
        println!("not committed, and so not tested:\n{changed}");
    }
    let commit = checkout::commit(&root, "HEAD")?;
    checkout::clone(&root, &clone, &commit)?;
    println!("commit {commit} in {}, with empty caches", clone.display());
    // On the checkout's disk: a temporary directory may be in memory.
    let target = root.join("target/fresh");
    // Unless this program is all that is there, as by `.ci/run`.
    if !env::current_exe().is_ok_and(|own| own.starts_with(&target)) {
        let _ = fs::remove_dir_all(&target);
    }
    let mut test = cargo();
    test.args(["xtask", "test"]).args(args).current_dir(&clone);
    test.env("CARGO_TARGET_DIR", &target).env("XDG_CACHE_HOME", scratch.path().join("cache"));
    // Nothing will be built twice.
    test.env("CARGO_INCREMENTAL", "0");
    if !args.iter().any(|arg| ["--all", "--sanitize"].contains(arg)) {
        // A panic says where it is without them, too. Sanitizers and valgrind do not.
        test.env("CARGO_PROFILE_DEV_DEBUG", "none");
    }
    if let Some(captures) = captures(&root) {
        test.env("RXE_CAPTURES", captures);
    }
    let status = test.status().map_err(|e| Error::Failed(format!("cargo: {e}")))?;
    let _ = fs::remove_dir_all(&target);
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Captures of other people's devices, which a clone does not have.
fn captures(root: &Path) -> Option<PathBuf> {
    let named = env::var_os("RXE_CAPTURES").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = named.unwrap_or_else(|| root.join("../shared/captures"));
    fs::canonicalize(dir).ok()
}
