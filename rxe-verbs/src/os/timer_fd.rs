//! A descriptor that becomes readable at a time. Any thread may set it, without waking the one that
//! sleeps on it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use rxe_core::types::Time;

use super::clock::timespec;
use crate::error::{Error, Result};

/// See timerfd_create(2).
#[derive(Debug)]
pub(crate) struct TimerFd(OwnedFd);

impl TimerFd {
    pub(crate) fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        timerfd_create(TimerfdClockId::Monotonic, flags)
            .map(Self)
            .map_err(|e| Error::io("make a timer descriptor", e))
    }

    /// Readable from this moment on, until it is read.
    pub(crate) fn set(&self, at: Time) {
        // Zero would disarm it.
        let at = at.max(Time::from_nanos(1));
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: timespec(at) };
        // The arguments are valid, so this does not fail.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec);
    }

    /// No longer readable.
    pub(crate) fn clear(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
