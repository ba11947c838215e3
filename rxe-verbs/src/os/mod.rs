//! What this crate asks of the operating system, or of a simulation in its place: the time and randomness;
//! and the signals of memory faults.

mod clock;
mod environment;
mod memory_faults;
mod random;

pub(crate) use clock::{now, until};
pub(crate) use environment::{Environment, Simulation};
pub use memory_faults::{handle_memory_faults, recover_from_fault};
pub(crate) use random::random_u32;
