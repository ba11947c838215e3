//! The small values that everything else is made of. Each is a newtype, so that a packet sequence
//! number can not be handed over where a queue pair number is meant.

mod gid;
mod time;

pub use gid::Gid;
pub use time::Time;
