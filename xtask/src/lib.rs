//! The part of `cargo xtask` that is not a command: the rules about which modules of a crate may
//! use which.

pub mod layers;
