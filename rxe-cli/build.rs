//! Puts the commit into `rxe --version`, and the preload library into an installed `rxe`.
//! The commit is known in a checkout and in a package published from one. The library is embedded
//! where `cargo install` would not install it.

#[path = "build/preload.rs"]
mod preload;

use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let mut version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    if let Some(commit) = published().or_else(checked_out) {
        version += &format!(" ({})", &commit[..12]);
    }
    println!("cargo::rustc-env=RXE_VERSION={version}");
    preload::embed();
}

/// Returns the commit that `cargo package` recorded.
fn published() -> Option<String> {
    let noted = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = noted.split_once("\"sha1\"")?;
    hash(rest.split('"').nth(1)?)
}

/// Returns the commit of the checkout, if this file is tracked in it.
fn checked_out() -> Option<String> {
    // Git appends each change of HEAD to this log.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if fs::exists(&log).is_ok_and(|exists| exists) {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    hash(&git(&["rev-parse", "HEAD"])?)
}

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok().filter(|out| out.status.success())?;
    Some(String::from_utf8(out.stdout).ok()?.trim().to_owned())
}

fn hash(text: &str) -> Option<String> {
    (text.len() >= 40 && text.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_owned())
}
