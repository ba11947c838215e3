//! The fuzz targets.
//! Each target is a function of some bytes that panics if an invariant is violated. `fuzz/` runs
//! them with libFuzzer, and `tests/tests/fuzzed.rs` runs them with the inputs that libFuzzer has kept.

#![expect(clippy::cast_possible_truncation, reason = "arbitrary bits, and numbers that are small")]

pub mod capture;
pub mod cm;
pub mod engine;
pub mod faults;
pub mod frame;
pub mod input;
mod ladder;
pub mod lease;
pub mod mad;
pub mod replay;
pub mod ring;
pub mod scenario;
pub mod verbs;

/// A fuzz target: its name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets.
pub const TARGETS: [Target; 11] = [
    ("frame", frame::run),
    ("engine", engine::run),
    ("verbs", verbs::run),
    ("mad", mad::run),
    ("cm", cm::run),
    ("ring", ring::run),
    ("lease", lease::run),
    ("capture", capture::run),
    ("faults", faults::run),
    ("scenario", scenario::run),
    ("replay", replay::run),
];
