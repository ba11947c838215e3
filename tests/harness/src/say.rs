//! Lines that `cargo xtask test` reads.

use std::io::Write;

/// Says something on a line of its own that `cargo xtask test` is to see.
pub(crate) fn say(line: &str) {
    // Not `eprintln!`: what a passing test prints by macro is not shown.
    let line = line.replace('\n', " ") + "\n";
    let _ = std::io::stderr().write_all(line.as_bytes());
}
