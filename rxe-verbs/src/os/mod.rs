//! What this crate takes from the kernel, or from a simulation in its place: time, randomness, and
//! the signals of memory faults.

mod clock;
mod environment;
mod memory_faults;
mod random;

pub(crate) use clock::{now, until};
pub(crate) use environment::{Environment, Simulation};
pub use memory_faults::{handle_memory_faults, recover_from_fault};
pub(crate) use random::random_u32;
