//! Time limits for waiting for other processes, which may be stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::timeout::Timeout;

/// How long to wait for a stopped process to do something that needs no time. A running process
/// gets more ([`Timeout`]).
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// A time limit that can also be cancelled.
#[derive(Clone, Copy)]
pub(super) struct Deadline<'a> {
    timeout: Timeout,
    called_off: &'a AtomicBool,
}

impl<'a> Deadline<'a> {
    pub(super) fn new(called_off: &'a AtomicBool, time: Duration) -> Self {
        Self { timeout: Timeout::new(time), called_off }
    }

    /// Returns a new limit with the same cancellation.
    pub(super) fn anew(self, time: Duration) -> Self {
        Self::new(self.called_off, time)
    }

    /// Returns whether to stop waiting, for a process of which nothing is known.
    pub(super) fn is_over(self) -> bool {
        self.is_over_for(None)
    }

    /// Returns whether to stop waiting for this process.
    pub(super) fn is_over_for(self, pid: Option<u32>) -> bool {
        self.called_off.load(Ordering::Relaxed) || self.timeout.left(pid).is_zero()
    }
}

/// The wait for a resource that others get one after another: it lasts while they make progress.
#[derive(Debug)]
pub(super) struct ProgressWait<T> {
    latest: T,
    since: Instant,
    checks: u32,
}

/// What a waiting thread should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitAction {
    Wait,
    /// Nobody was served for some time: give up if a process is known to be stopped.
    Check,
    GiveUp,
}

impl<T: PartialEq> ProgressWait<T> {
    /// How long to wait for the next process to be served before a check. A process that is being
    /// served may itself wait for a stopped process ([`TIMEOUT`]).
    const CHECK_AFTER: Duration = TIMEOUT.saturating_mul(2);
    /// The number of checks before giving up, if no process is stopped.
    const MAX_CHECKS: u32 = 5;

    pub(super) fn new(now: Instant, latest: T) -> Self {
        Self { latest, since: now, checks: 0 }
    }

    /// Returns what to do at time `now`. `latest` changes whenever a process was served.
    pub(super) fn next(&mut self, now: Instant, latest: T) -> WaitAction {
        if latest != self.latest {
            *self = Self::new(now, latest);
        }
        if now - self.since < Self::CHECK_AFTER {
            return WaitAction::Wait;
        }
        (self.since, self.checks) = (now, self.checks + 1);
        if self.checks < Self::MAX_CHECKS { WaitAction::Check } else { WaitAction::GiveUp }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_goes_on_while_others_are_served() {
        let mut now = Instant::now();
        let mut wait = ProgressWait::new(now, 0);
        let mut after = |seconds, latest| {
            now += Duration::from_secs(seconds);
            wait.next(now, latest)
        };
        for served in 1..1000 {
            assert_eq!(after(9, served), WaitAction::Wait);
        }
        assert_eq!((after(9, 999), after(1, 999)), (WaitAction::Wait, WaitAction::Check));
        // A slow process that is served resets the wait.
        assert_eq!(after(9, 1000), WaitAction::Wait);
        assert_eq!(
            [10; 5].map(|seconds| after(seconds, 1000)),
            [
                WaitAction::Check,
                WaitAction::Check,
                WaitAction::Check,
                WaitAction::Check,
                WaitAction::GiveUp
            ]
        );
    }
}
