//! `cargo xtask bench --compare`: compares two versions of our own program, in turns.

use rxe_harness::checkout;
use rxe_harness::vm::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Which of the two versions a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Before,
    After,
}

/// Builds `rxe` of this checkout, and the examples of rxe-net that are compared with it.
/// Returns `rxe`.
pub(super) fn build_own() -> Result<String> {
    let root = checkout::root()?;
    checkout::build(&root, &["-p", "rxe-net", "--example", "raw_udp", "--example", "copies"])?;
    build(&root)
}

/// Returns the path of an example that was built with this `rxe`.
pub(super) fn example(rxe: &str, name: &str) -> String {
    Path::new(rxe).with_file_name("examples").join(name).display().to_string()
}

/// Builds the named revisions or directories.
/// Returns the programs before and after. A single name is compared with this checkout.
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

/// Returns a directory with the sources of a revision, or the directory that was named.
fn directory(root: &Path, name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.join("Cargo.toml").is_file() {
        return fs::canonicalize(path).map_err(|e| Error::Failed(format!("{name}: {e}")));
    }
    let commit = checkout::commit(root, name)?;
    // The clone stays, so that the same comparison need not be built again.
    let clone = root.join("target/compare").join(&commit[..12]);
    if !clone.join("Cargo.toml").is_file() {
        let _ = fs::remove_dir_all(&clone);
        checkout::clone(root, &clone, &commit)?;
    }
    Ok(clone)
}

/// Builds `rxe` and the library of `rxe run`, as a user would. Returns the path of `rxe`.
fn build(root: &Path) -> Result<String> {
    let program = checkout::build(root, &["-p", "rxe-cli", "-p", "rxe-preload"])?;
    Ok(program.display().to_string())
}
