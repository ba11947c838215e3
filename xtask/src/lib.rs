//! The project's chores as a library: the kernel VM harness, for `cargo xtask` and the outer tests.

mod skip;
pub mod vm;

pub use skip::{everything, or_skip, skipped};
