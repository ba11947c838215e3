//! That `cargo xtask` and the tests share one build of what both use.

use std::collections::BTreeSet;
use std::env;
use std::process::Command;

/// The crates that cargo builds, with their features: of xtask alone, as `cargo xtask` does, or of everything.
fn built(of: &[&str]) -> BTreeSet<String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["tree", "--locked", "--prefix", "none", "--format", "{p} {f}"]).args(of);
    let out = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// cargo builds a crate once for each set of features. `cargo xtask test` begins with a build of xtask, and then
/// builds the workspace: a feature that only the workspace turns on is named in xtask/Cargo.toml too.
#[test]
fn no_crate_is_built_twice_because_of_its_features() {
    let alone = built(&["--package", "xtask", "--edges", "normal,build"]);
    let all = built(&["--workspace", "--edges", "all"]);
    let twice: Vec<_> = alone.difference(&all).collect();
    assert!(twice.is_empty(), "with other features than in the workspace: {twice:#?}");
}
