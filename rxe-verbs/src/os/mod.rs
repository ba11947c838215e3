//! What this crate asks of the operating system: the time and randomness.

mod clock;
mod random;

pub(crate) use clock::{is_far, now, until};
pub(crate) use random::{random_u32, random_u64};
