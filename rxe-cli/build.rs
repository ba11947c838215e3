//! Puts the commit into `rxe --version`, if this is a checkout or a published package of one, and the
//! library to preload into an `rxe` that `cargo install` installs.

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

/// The commit that `cargo package` noted.
fn published() -> Option<String> {
    let noted = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = noted.split_once("\"sha1\"")?;
    hash(rest.split('"').nth(1)?)
}

/// The commit of the checkout, if this file is part of it.
fn checked_out() -> Option<String> {
    // Every change of HEAD is written there.
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
