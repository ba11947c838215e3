//! The project's chores as a library: the kernel VM harness, for `cargo xtask` and the outer tests.

pub mod vm;
