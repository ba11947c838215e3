//! What this crate asks of the operating system, or of a simulation in its place: the time and randomness.

mod clock;
mod environment;
mod random;

pub(crate) use clock::{now, until};
pub(crate) use environment::{Environment, Simulation};
pub(crate) use random::random_u32;
