//! Third-party test suites: how each is run on a device, and what its output says.

pub mod perftest;
pub mod rdma_core;
pub mod rdma_unit_test;
mod table;

pub use table::{Outcome, Outcomes, table};
