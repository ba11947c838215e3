//! What the fuzzers run: each target is a function of some bytes that panics where something is
//! wrong. `fuzz/` feeds them with what libFuzzer thinks of, `tests/tests/fuzzed.rs` with what it
//! has found worth keeping.

#![expect(clippy::cast_possible_truncation, reason = "arbitrary bits, and numbers that are small")]

pub mod cm;
pub mod engine;
pub mod frame;
pub mod input;
mod ladder;
pub mod mad;
pub mod ring;
pub mod verbs;

/// A fuzz target: its name, which is also that of its corpus, and what it runs.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 6] = [
    ("frame", frame::run),
    ("engine", engine::run),
    ("verbs", verbs::run),
    ("mad", mad::run),
    ("cm", cm::run),
    ("ring", ring::run),
];
