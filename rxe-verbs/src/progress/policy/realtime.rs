//! How long the driver may have a real-time priority.
//!
//! A driver that sleeps at a real-time priority gets a CPU as soon as it is woken, also where every
//! CPU is taken by a program that polls its memory. Without it, the driver waits for the end of a
//! scheduler's time slice, which takes milliseconds. A driver that works all the time must not keep
//! the program from its CPU, so it loses the priority for a while if it uses too much of a window.

use std::time::Duration;

use rxe_core::types::Time;

/// The time that the driver has used at a real-time priority.
#[derive(Debug, Default)]
pub(in crate::progress) struct RealtimeShare {
    /// When the current window ends.
    window_end: Option<Time>,
    /// The time used in the current window.
    used: Duration,
    /// Until when the driver has an ordinary priority.
    paused_until: Option<Time>,
}

impl RealtimeShare {
    /// The length of a window.
    const WINDOW: Duration = Duration::from_millis(10);
    /// The time that may be used in a window.
    const MAX_USED: Duration = Duration::from_millis(5);
    /// How long the driver has an ordinary priority after it used more.
    const PAUSE: Duration = Duration::from_millis(100);

    /// Returns whether the driver may have a real-time priority now.
    pub(in crate::progress) fn permits(&mut self, now: Time) -> bool {
        if self.paused_until.is_some_and(|until| now < until) {
            return false;
        }
        self.paused_until = None;
        true
    }

    /// Records that the driver has run at a real-time priority from `start` to `now`.
    pub(in crate::progress) fn ran(&mut self, start: Time, now: Time) {
        if self.window_end.is_none_or(|end| now >= end) {
            self.window_end = Some(now + Self::WINDOW);
            self.used = Duration::ZERO;
        }
        self.used += now.since(start);
        if self.used > Self::MAX_USED {
            self.window_end = None;
            self.paused_until = Some(now + Self::PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    /// Runs for `micros` of each millisecond, for a second. Returns the milliseconds at which the
    /// driver had a real-time priority.
    fn milliseconds(micros: u64) -> usize {
        let mut share = RealtimeShare::default();
        let runs = |ms: &u64| {
            let (start, end) = (at(ms * 1000), at(ms * 1000 + micros));
            let is_realtime = share.permits(start);
            if is_realtime {
                share.ran(start, end);
            }
            is_realtime
        };
        (0..1000).filter(runs).count()
    }

    #[test]
    fn a_driver_that_mostly_sleeps_keeps_its_priority() {
        assert_eq!(milliseconds(400), 1000);
    }

    #[test]
    fn a_driver_that_never_sleeps_has_a_twentieth() {
        let realtime = milliseconds(1000);
        assert!((40..=60).contains(&realtime), "{realtime}");
    }

    #[test]
    fn one_long_run_ends_the_priority() {
        let mut share = RealtimeShare::default();
        assert!(share.permits(at(0)));
        share.ran(at(0), at(5_001));
        assert!(!share.permits(at(5_001)));
        assert!(!share.permits(at(105_000)));
        assert!(share.permits(at(105_001)));
    }
}
