//! Code shared by the tests, the measurements (rxe-bench) and `cargo xtask`: kernels in VMs,
//! scripted peers, third-party programs, and the packages built from a checkout.

pub mod book;
pub mod c;
pub mod checkout;
pub mod ci;
pub mod conform;
pub mod debs;
pub mod dist;
pub mod interop;
pub mod libs;
pub mod links;
pub mod pages;
pub mod paths;
pub mod peer;
pub mod programs;
mod say;
pub mod scenario;
mod skip;
pub mod suite;
pub mod vm;
pub mod wheel;

pub use skip::{everything, or_skip, skipped};
