//! Code that the outer tests share.

pub mod captures;
pub mod crowd;
pub mod fuzz;
pub mod lone;
pub mod namespace;
pub mod network;
pub mod scenario;
pub mod shared_memory;
pub mod sim;
pub mod stream;

use std::io::Write;

/// Prints that a test could not run. It writes to the real stdout, which the harness does not capture,
/// so that the test runner can count it.
pub fn skip(test: &str, why: &str) {
    let mut stdout = std::io::stdout().lock();
    // The harness has already begun a line.
    let _ = writeln!(stdout, "\nSKIPPED: {test}: {why}");
}
