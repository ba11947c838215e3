//! The language that describes faults of packets, such as `drop 1%; only opcode=send`.
//!
//! docs/en/reference/faults.md describes the language. Faults at the verbs are clauses of the same
//! descriptions: [`rules`] leaves them to its caller.

mod parse;
mod values;
mod words;

pub use parse::rules;
pub use values::{KINDS, UNITS, count, moment, named, time};
pub use words::{Clause, FaultError, Word};
