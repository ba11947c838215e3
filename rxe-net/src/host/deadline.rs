//! Time limits for waiting for other processes, which may be stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::patience::Patience;

/// How long to wait for a stopped process to do something that needs no time. A running process
/// gets more ([`Patience`]).
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// A time limit that can also be cancelled.
#[derive(Clone, Copy)]
pub(super) struct Deadline<'a> {
    patience: Patience,
    called_off: &'a AtomicBool,
}

impl<'a> Deadline<'a> {
    pub(super) fn new(called_off: &'a AtomicBool, time: Duration) -> Self {
        Self { patience: Patience::new(time), called_off }
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
        self.called_off.load(Ordering::Relaxed) || self.patience.left(pid).is_zero()
    }
}

/// The wait for a resource that others get one after another: it lasts while they make progress.
#[derive(Debug)]
pub(super) struct Turns<T> {
    latest: T,
    since: Instant,
    looks: u32,
}

/// What a waiting thread should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Wait,
    /// Nobody was served for some time: give up if a process is known to be stopped.
    Look,
    GiveUp,
}

impl<T: PartialEq> Turns<T> {
    /// How long to wait for the next process to be served before a check. A process that is being
    /// served may itself wait for a stopped process ([`TIMEOUT`]).
    const LOOK: Duration = TIMEOUT.saturating_mul(2);
    /// The number of checks before giving up, if no process is stopped.
    const LOOKS: u32 = 5;

    pub(super) fn new(now: Instant, latest: T) -> Self {
        Self { latest, since: now, looks: 0 }
    }

    /// Returns what to do at time `now`. `latest` changes whenever a process was served.
    pub(super) fn next(&mut self, now: Instant, latest: T) -> Turn {
        if latest != self.latest {
            *self = Self::new(now, latest);
        }
        if now - self.since < Self::LOOK {
            return Turn::Wait;
        }
        (self.since, self.looks) = (now, self.looks + 1);
        if self.looks < Self::LOOKS { Turn::Look } else { Turn::GiveUp }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_goes_on_while_others_are_served() {
        let mut now = Instant::now();
        let mut turns = Turns::new(now, 0);
        let mut after = |seconds, latest| {
            now += Duration::from_secs(seconds);
            turns.next(now, latest)
        };
        for served in 1..1000 {
            assert_eq!(after(9, served), Turn::Wait);
        }
        assert_eq!((after(9, 999), after(1, 999)), (Turn::Wait, Turn::Look));
        // A slow process that is served resets the wait.
        assert_eq!(after(9, 1000), Turn::Wait);
        assert_eq!(
            [10; 5].map(|seconds| after(seconds, 1000)),
            [Turn::Look, Turn::Look, Turn::Look, Turn::Look, Turn::GiveUp]
        );
    }
}
