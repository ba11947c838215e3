//! The language that describes packet faults, such as `drop 1%; only opcode=send`.
//!
//! docs/en/reference/faults.md describes the language. A description may also contain faults at the
//! verbs, which [`rules`] leaves to its caller.

mod parse;
mod values;
mod words;

pub use parse::rules;
pub use values::{KINDS, UNITS, count, moment, named, time};
pub use words::{Clause, FaultError, Word};
