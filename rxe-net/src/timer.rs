//! A descriptor that becomes readable at a time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::NetError;

/// A timer descriptor (timerfd_create(2)).
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> Result<Self, NetError> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        timerfd_create(TimerfdClockId::Monotonic, flags)
            .map(Self)
            .map_err(|e| NetError::os("make a timer", e))
    }

    /// Readable after this time (at once, if zero), and until it is set again; never if `None`.
    pub(crate) fn set(&self, after: Option<Duration>) -> Result<(), NetError> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A time of zero would disarm it.
        let value = after
            .map_or(zero, |d| Timespec::try_from(d.max(Duration::from_nanos(1))).unwrap_or(zero));
        let spec = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec)
            .map(drop)
            .map_err(|e| NetError::os("set a timer", e))
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
