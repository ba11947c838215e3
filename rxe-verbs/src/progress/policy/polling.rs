//! Adaptive polling: whether the driver looks again instead of sleeping.

use std::time::Duration;

use rxe_core::types::Time;

/// Polls only if the next packet came, again and again, sooner than a thread falls asleep and wakes.
#[derive(Debug)]
pub(in crate::progress) struct AdaptivePolling {
    /// Short sleeps in a row.
    short: u32,
    /// Polling ends then, unless a packet comes.
    until: Time,
    /// With one CPU polling would only keep the peer from running.
    possible: bool,
}

impl AdaptivePolling {
    /// What counts as a short sleep, and how long to poll.
    const SHORT_SLEEP: Duration = Duration::from_micros(30);
    /// This many short sleeps in a row are no accident.
    const MIN_SHORT_SLEEPS: u32 = 16;

    pub(in crate::progress) fn new(cpus: usize) -> Self {
        Self { short: 0, until: Time::ZERO, possible: cpus > 1 }
    }

    /// The driver has slept for `time`.
    pub(in crate::progress) fn slept(&mut self, time: Duration) {
        self.short = if time < Self::SHORT_SLEEP { self.short.saturating_add(1) } else { 0 };
    }

    /// Whether to look again at once. `alone`: nobody else watches the sockets.
    pub(in crate::progress) fn goes_on(&mut self, packets: usize, alone: bool, now: Time) -> bool {
        if !self.possible || !alone || self.short < Self::MIN_SHORT_SLEEPS {
            return false;
        }
        if packets > 0 {
            self.until = now + Self::SHORT_SLEEP;
        }
        let on = now < self.until;
        if !on {
            // Nothing came: polling must be earned again.
            self.short = 0;
        }
        on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_must_be_earned_and_ends_when_nothing_comes() {
        let mut polling = AdaptivePolling::new(2);
        let at = |micros| Time::ZERO + Duration::from_micros(micros);
        let earn = |polling: &mut AdaptivePolling, times| {
            (0..times).for_each(|_| polling.slept(Duration::from_micros(5)));
        };
        assert!(!polling.goes_on(1, true, at(100)));
        earn(&mut polling, AdaptivePolling::MIN_SHORT_SLEEPS);
        assert!(polling.goes_on(1, true, at(100)), "a packet came");
        assert!(polling.goes_on(0, true, at(129)), "the next may come soon");
        assert!(!polling.goes_on(1, false, at(129)), "somebody else watches");
        assert!(!polling.goes_on(0, true, at(130)), "it did not");
        assert!(!polling.goes_on(1, true, at(131)));
        earn(&mut polling, AdaptivePolling::MIN_SHORT_SLEEPS - 1);
        polling.slept(Duration::from_millis(1));
        assert!(!polling.goes_on(1, true, at(2000)), "one long sleep");
    }

    #[test]
    fn one_cpu_never_polls() {
        let mut polling = AdaptivePolling::new(1);
        (0..100).for_each(|_| polling.slept(Duration::from_micros(5)));
        assert!(!polling.goes_on(1, true, Time::ZERO));
    }
}
