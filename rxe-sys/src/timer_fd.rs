//! A timer descriptor: readable once its time has come. timerfd_create(2).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::Error;
use crate::SharedFd;

/// A timer descriptor. Any thread may set it without waking the thread that sleeps on it.
///
/// Setting checks the number at most once per tick of the coarse clock ([`SharedFd::ensure`]). That
/// is enough: the kernel refuses timerfd_settime(2) for anything but a timer descriptor.
#[derive(Debug)]
pub struct TimerFd(SharedFd);

const NEVER: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const MAX_TIME: Timespec = Timespec { tv_sec: 1 << 30, tv_nsec: 0 };

impl TimerFd {
    /// Creates a timer that is not set.
    ///
    /// # Errors
    /// The process or the host has no free descriptor.
    pub fn new() -> Result<Self, Error> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        timerfd_create(TimerfdClockId::Monotonic, flags)
            .map(|fd| Self(SharedFd::new(fd)))
            .map_err(|e| Error::os("make a timer descriptor", e))
    }

    /// Makes the descriptor readable at the absolute time `at` of CLOCK_MONOTONIC.
    pub fn set(&self, at: Duration) {
        self.arm(at, TimerfdTimerFlags::ABSTIME);
    }

    /// Makes the descriptor readable after this time, immediately if it is zero. `None` disarms the
    /// timer.
    pub fn set_after(&self, after: Option<Duration>) {
        match after {
            Some(after) => self.arm(after, TimerfdTimerFlags::empty()),
            None => self.settime(NEVER, TimerfdTimerFlags::empty()),
        }
    }

    /// Makes the descriptor unreadable until the timer next expires. A time that another thread has
    /// set meanwhile stays set.
    pub fn clear(&self) {
        if self.0.is_own() && self.0.ensure().is_ok() {
            // The read fails only if the timer has not expired.
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }

    /// Returns whether the number is intact, as far as inodes tell ([`crate::EventFd::is_intact`]).
    pub fn is_intact(&self) -> bool {
        self.0.is_intact()
    }

    /// Returns the descriptor, to share it with threads that sleep on it.
    pub fn shared(&self) -> &SharedFd {
        &self.0
    }

    fn arm(&self, time: Duration, flags: TimerfdTimerFlags) {
        // A zero time would disarm the timer.
        let time = Timespec::try_from(time.max(Duration::from_nanos(1))).unwrap_or(MAX_TIME);
        self.settime(time, flags);
    }

    fn settime(&self, value: Timespec, flags: TimerfdTimerFlags) {
        if !self.0.is_own() || self.0.ensure().is_err() {
            return;
        }
        let spec = Itimerspec { it_interval: NEVER, it_value: value };
        // The arguments are valid, so the call fails only if the number is no longer a timer.
        let _ = timerfd_settime(&self.0, flags, &spec);
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::checked_fd::tests::{assert_untouched, replace_by_file};

    fn poll_for(timer: &TimerFd, limit: Option<&Timespec>) -> bool {
        poll(&mut [PollFd::new(timer, PollFlags::IN)], limit).unwrap() == 1
    }

    #[test]
    fn it_is_readable_when_its_time_has_come() {
        let timer = TimerFd::new().unwrap();
        timer.set_after(Some(Duration::from_secs(3600)));
        assert!(!poll_for(&timer, Some(&NEVER)));
        timer.set(Duration::ZERO);
        assert!(poll_for(&timer, None));
        timer.clear();
        assert!(!poll_for(&timer, Some(&NEVER)));
        timer.set_after(Some(Duration::ZERO));
        assert!(poll_for(&timer, None));
        timer.set_after(None);
        assert!(!poll_for(&timer, Some(&NEVER)));
    }

    #[test]
    fn nothing_is_read_from_a_file_of_the_program() {
        let timer = TimerFd::new().unwrap();
        let number = timer.as_raw_fd();
        let file = replace_by_file(&timer);
        timer.set_after(Some(Duration::ZERO));
        timer.clear();
        drop(timer);
        assert_untouched(file, number);
    }
}
