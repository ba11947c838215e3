//! `cargo xtask bench --compare`: two versions of our own program, in turns.

use crate::cmd::checkout;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xtask::vm::{Error, Result};

/// One of the two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Before,
    After,
}

/// Builds `rxe` of this checkout, and the examples of rxe-net that are measured beside it. Returns `rxe`.
pub(super) fn build_own() -> Result<String> {
    let root = checkout::root()?;
    build_in(&root, &["-p", "rxe-net", "--example", "raw_udp", "--example", "copies"])?;
    build(&root)
}

/// An example that was built with this `rxe`.
pub(super) fn example(rxe: &str, name: &str) -> String {
    Path::new(rxe).with_file_name("examples").join(name).display().to_string()
}

/// Builds the named revisions or directories. Returns the programs before and after. A single one is
/// compared with this checkout.
pub(super) fn programs(named: &[String]) -> Result<(String, String)> {
    let root = checkout::root()?;
    let before = build(&directory(&root, &named[0])?)?;
    let after = match named.get(1) {
        Some(name) => build(&directory(&root, name)?)?,
        None => build(&root)?,
    };
    eprintln!("before: {before}\nafter:  {after}\n");
    Ok((before, after))
}

/// A directory with the sources of a revision, or the directory that was named.
fn directory(root: &Path, name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.join("Cargo.toml").is_file() {
        return fs::canonicalize(path).map_err(|e| Error::Failed(format!("{name}: {e}")));
    }
    let commit = checkout::commit(root, name)?;
    // It stays, so that the same comparison need not be built again.
    let clone = root.join("target/compare").join(&commit[..12]);
    if !clone.join("Cargo.toml").is_file() {
        let _ = fs::remove_dir_all(&clone);
        checkout::clone(root, &clone, &commit)?;
    }
    Ok(clone)
}

/// Builds `rxe`, and the library of `rxe run`, as a user would. Returns the program.
fn build(checkout: &Path) -> Result<String> {
    build_in(checkout, &["-p", "rxe-cli", "-p", "rxe-preload"])
}

/// Builds for release, in the checkout's own target directory. Returns the first program.
fn build_in(checkout: &Path, what: &[&str]) -> Result<String> {
    let place = checkout.display();
    let failed = |what: &str| Error::Failed(format!("cargo build in {place}: {what}"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release"]).args(what).arg("--target-dir");
    cargo.arg(checkout.join("target")).current_dir(checkout);
    cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let out = cargo.output().map_err(|e| failed(&e.to_string()))?;
    if !out.status.success() {
        return Err(failed("see above"));
    }
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| Some(message.get("executable")?.as_str()?.to_owned()))
        .find(|path| fs::metadata(path).is_ok())
        .ok_or_else(|| failed("it made no program"))
}
