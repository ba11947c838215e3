//! Lines that `cargo xtask test` reads.

use std::io::Write;

/// Prints a line that `cargo xtask test` must see.
pub(crate) fn say(line: &str) {
    // Not `eprintln!`: the output of this macro in a passing test is not shown.
    let line = line.replace('\n', " ") + "\n";
    let _ = std::io::stderr().write_all(line.as_bytes());
}
