//! The parts of `cargo xtask` that are no command: which modules of a crate may use which.

pub mod layers;
