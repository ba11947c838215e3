//! What the tests of all crates share: how a test says that it was skipped, and a network of a test's own.

mod namespace;

use std::fmt::Display;
use std::io::{self, Write};

pub use namespace::{in_bpf_namespace, in_namespace, in_namespaces, test_name};

/// Says that a test, or a part of it, cannot run here, and why: on a line that `cargo xtask test` counts.
pub fn skipped(test: &str, why: impl Display) {
    // Not `println!`: what a passing test prints by macro is not shown.
    let line = format!("SKIPPED: {test}: {why}").replace('\n', " ") + "\n";
    let _ = io::stdout().write_all(line.as_bytes());
}

/// Repeats what a test said by [`skipped`] in a process of its own, perhaps on a line that libtest had begun.
fn repeat_skipped(output: &str) {
    let said = output.lines().filter_map(|line| line.split_once("SKIPPED: "));
    for (test, why) in said.filter_map(|(_, said)| said.split_once(": ")) {
        skipped(test, why);
    }
}
