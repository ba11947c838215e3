//! The licence texts of the crates compiled into the programs, which their licences require.

use super::tree::read;
use crate::vm::{Error, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns names, versions, licences and licence texts of all third-party crates.
///
/// # Errors
/// cargo does not report the crates.
pub fn licences(source: &Path) -> Result<String> {
    let packages = ["--package", "rxe-cli", "--package", "rxe-preload"];
    let options = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"];
    let tree = cargo(source, &[&["tree", "--locked"], &packages[..], &options[..]].concat())?;
    let linked: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect();
    let metadata = cargo(source, &["metadata", "--locked", "--format-version", "1"])?;
    let metadata: Value = serde_json::from_str(&metadata)
        .map_err(|e| Error::Failed(format!("cargo metadata: {e}")))?;
    let mut crates = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        // Crates of the workspace have no source.
        if linked.contains(&(text("name"), text("version"))) && !package["source"].is_null() {
            let dir = Path::new(text("manifest_path")).parent().map(PathBuf::from);
            let key = (text("name").to_owned(), text("version").to_owned());
            crates.insert(key, (text("license").to_owned(), dir.unwrap_or_default()));
        }
    }
    let mut out = HEAD.to_owned();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((name, version), (licence, dir)) in crates {
        let _ = writeln!(out, "{name} {version}: {licence}");
        for text in texts_in(&dir)? {
            texts.entry(text).or_default().push(format!("{name} {version}"));
        }
    }
    for (text, names) in texts {
        let _ = write!(out, "\n{:=<80}\n{}\n\n{}\n", "", names.join(", "), text.trim_end());
    }
    Ok(out)
}

const HEAD: &str = "\
rxe is licensed under MIT or Apache-2.0 (LICENSE-MIT, LICENSE-APACHE). Its programs also contain the
standard library of Rust (MIT or Apache-2.0; https://github.com/rust-lang/rust) and these crates,
whose licences follow:

";

/// Returns the licence files of a crate. Texts of alternatives of an `OR` may be included but are
/// not required.
fn texts_in(dir: &Path) -> Result<BTreeSet<String>> {
    let failed = |e| Error::Failed(format!("{}: {e}", dir.display()));
    let entries = fs::read_dir(dir).map_err(failed)?.flatten().map(|entry| entry.path());
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        path.is_file()
            && ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "UNLICENSE"]
                .iter()
                .any(|beginning| name.starts_with(beginning))
    };
    let texts = entries.filter(named).map(|path| {
        let text = String::from_utf8_lossy(&read(&path)?).replace("\r\n", "\n");
        Ok(text)
    });
    texts.collect()
}

fn cargo(source: &Path, args: &[&str]) -> Result<String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let out = cargo.args(args).current_dir(source).output();
    let out = out.map_err(|e| Error::Failed(format!("cargo: {e}")))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().replace('\n', "; ");
    Err(Error::Failed(format!("cargo {}: {said}", args[0])))
}
