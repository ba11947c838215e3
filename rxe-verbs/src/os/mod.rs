//! What this crate asks of the operating system: the time, randomness, and descriptors to sleep on.

mod clock;
mod event_fd;
mod random;
mod timer_fd;

pub(crate) use clock::{now, until};
pub(crate) use event_fd::EventFd;
pub(crate) use random::{random_u32, random_u64};
pub(crate) use timer_fd::TimerFd;
