//! The project's chores as a library, for `cargo xtask` and the outer tests: the kernel VM harness
//! and the peers that tests script.

pub mod book;
pub mod c;
pub mod ci;
pub mod conform;
pub mod debs;
pub mod dist;
pub mod interop;
pub mod layers;
pub mod libs;
pub mod links;
pub mod pages;
pub mod peer;
pub mod place;
pub mod programs;
mod say;
pub mod scenario;
mod skip;
pub mod vm;
pub mod wheel;

pub use skip::{everything, or_skip, skipped};
