//! Shared pieces of the outer tests.

pub mod captures;
pub mod crowd;
pub mod fuzz;
pub mod lone;
pub mod sim;

use std::io::Write;

/// Says that a test could not run here, where the test runner counts it: on the real stdout, which
/// the harness does not swallow.
pub fn skip(test: &str, why: &str) {
    let mut stdout = std::io::stdout().lock();
    // The harness has begun a line of its own.
    let _ = writeln!(stdout, "\nSKIPPED: {test}: {why}");
}
