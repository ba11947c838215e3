//! The RoCEv2 protocol, sans-IO.
pub mod types;
pub mod wire;
