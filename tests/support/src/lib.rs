//! Code that the tests of all crates share: reporting a skipped test, and running a test in its own
//! network namespace.

mod namespace;

use std::fmt::Display;
use std::io::{self, Write};

pub use namespace::{in_bpf_namespace, in_namespace, in_namespaces, test_name};

/// Reports that a test, or a part of it, cannot run here, and why.
/// The report is a line of output that `cargo xtask test` counts.
pub fn skipped(test: &str, why: impl Display) {
    // `println!` would not do: libtest hides what a passing test prints with it.
    let line = format!("SKIPPED: {test}: {why}").replace('\n', " ") + "\n";
    let _ = io::stdout().write_all(line.as_bytes());
}

/// Repeats the reports of [`skipped`] in the output of another process.
/// A report may be on a line that libtest had begun.
fn repeat_skipped(output: &str) {
    let said = output.lines().filter_map(|line| line.split_once("SKIPPED: "));
    for (test, why) in said.filter_map(|(_, said)| said.split_once(": ")) {
        skipped(test, why);
    }
}
