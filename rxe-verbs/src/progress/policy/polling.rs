//! Adaptive polling: whether the driver polls again instead of sleeping.
//!
//! Waking a sleeping driver costs the peer a system call (8 µs in a virtual machine), and 20 to 60
//! µs pass until the driver runs. So after packets the driver polls for a while, and sleeps only if
//! none follow. Each poll in vain makes the next one rarer.

use std::time::Duration;

use rxe_core::types::Time;

/// Decides whether the driver polls after packets, from the results of earlier polls.
#[derive(Debug)]
pub(in crate::progress) struct AdaptivePolling {
    /// When polling ends, unless a packet arrives. `None` while the driver does not poll.
    until: Option<Time>,
    /// When the driver polled last.
    polled: Time,
    /// The number of sleeps before the next poll.
    skip: u32,
    /// The value of `skip` after the next poll in vain.
    penalty: u32,
}

impl AdaptivePolling {
    /// How long to poll for the next packet.
    const TIME: Duration = Duration::from_micros(30);
    /// The longest yield of the CPU that does not count as contention. If the driver gets the CPU
    /// back later, other threads need it.
    const MAX_YIELD: Duration = Duration::from_micros(20);
    /// The longest time between two polls that does not count as contention. A turn begins no
    /// step after 0.25 ms ([`super::TurnLimit`]).
    const MAX_GAP: Duration = Duration::from_millis(1);
    /// The first value of `penalty`, its maximum, and its maximum under contention. There, packets
    /// that arrive while other threads run are received late.
    const PENALTY: u32 = 16;
    const MAX_PENALTY: u32 = 1024;
    const MAX_PENALTY_SHARED: u32 = 8192;

    pub(in crate::progress) fn new() -> Self {
        Self { until: None, polled: Time::ZERO, skip: 0, penalty: Self::PENALTY }
    }

    /// Records that the driver has slept.
    pub(in crate::progress) fn slept(&mut self) {
        self.until = None;
        self.skip = self.skip.saturating_sub(1);
    }

    /// Records that the driver has yielded the CPU between two polls, and for how long.
    pub(in crate::progress) fn yielded(&mut self, took: Duration) {
        if took > Self::MAX_YIELD {
            self.in_vain(8, Self::MAX_PENALTY_SHARED);
        }
    }

    /// Returns whether to poll again immediately, after a turn that received `packets`. `alone`: no
    /// other thread watches the sockets.
    pub(in crate::progress) fn may_continue(
        &mut self,
        packets: usize,
        alone: bool,
        now: Time,
    ) -> bool {
        if !alone || self.skip > 0 {
            self.until = None;
            return false;
        }
        if self.until.is_some() && now.since(self.polled) > Self::MAX_GAP {
            self.in_vain(8, Self::MAX_PENALTY_SHARED);
            return false;
        }
        self.polled = now;
        if packets > 0 {
            if self.until.is_some() {
                self.penalty = (self.penalty / 2).max(1);
            }
            self.until = Some(now + Self::TIME);
        }
        let Some(until) = self.until else { return false };
        if now >= until {
            self.in_vain(2, Self::MAX_PENALTY);
        }
        self.until.is_some()
    }

    fn in_vain(&mut self, times: u32, max: u32) {
        self.until = None;
        self.penalty = self.penalty.max((self.penalty * times).min(max));
        self.skip = self.penalty;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Time = Time::ZERO;

    /// Plays 10,000 wake-ups by packets and returns how often the driver polls after one. A second
    /// packet follows each `gap` microseconds later.
    fn tries(polling: &mut AdaptivePolling, gap: u64) -> usize {
        let polls = |_: &u64| {
            let tried = polling.may_continue(1, true, AT);
            if tried && polling.may_continue(0, true, AT + Duration::from_micros(gap)) {
                polling.may_continue(1, true, AT + Duration::from_micros(gap));
                return true;
            }
            polling.slept();
            tried
        };
        (0..10_000).filter(polls).count()
    }

    #[test]
    fn it_polls_while_packets_follow_one_another() {
        let mut polling = AdaptivePolling::new();
        let at = |micros| AT + Duration::from_micros(micros);
        assert!(!polling.may_continue(0, true, at(0)), "it was woken by something else");
        polling.slept();
        assert!(polling.may_continue(1, true, at(0)));
        assert!(polling.may_continue(0, true, at(29)));
        assert!(polling.may_continue(1, true, at(29)));
        assert!(polling.may_continue(0, true, at(58)), "30 µs from the last packet");
        assert!(!polling.may_continue(0, true, at(59)));
        polling.slept();
        assert!(!polling.may_continue(1, true, at(100)), "the last try was in vain");
    }

    #[test]
    fn a_driver_that_loses_the_cpu_while_it_polls_sleeps() {
        let mut polling = AdaptivePolling::new();
        assert!(polling.may_continue(1, true, AT));
        assert!(!polling.may_continue(1, true, AT + Duration::from_micros(1001)));
        let sleeps = std::iter::repeat_with(|| {
            polling.slept();
            polling.may_continue(1, true, AT + Duration::from_micros(1001))
        });
        assert_eq!(sleeps.take_while(|polls| !polls).count(), 127);
    }

    #[test]
    fn what_is_in_vain_is_tried_less_often() {
        let mut polling = AdaptivePolling::new();
        assert_eq!(tries(&mut polling, 29), 10_000);
        // The number of sleeps between polls doubles from 2 to 1,024 and stays there.
        assert_eq!(tries(&mut polling, 31), 18);
        assert!(tries(&mut polling, 29) > 8_000, "it learns that packets follow again");
        assert_eq!(tries(&mut polling, 29), 10_000);
    }

    #[test]
    fn it_does_not_poll_while_somebody_else_does() {
        let mut polling = AdaptivePolling::new();
        assert!(polling.may_continue(1, true, AT));
        assert!(!polling.may_continue(1, false, AT));
        assert!(polling.may_continue(1, true, AT));
    }

    #[test]
    fn it_hardly_ever_polls_where_others_need_the_cpu() {
        let mut polling = AdaptivePolling::new();
        let mut tries = 0;
        for _ in 0..100_000 {
            assert!(!polling.may_continue(0, true, AT), "packets come only while it sleeps");
            if polling.may_continue(1, true, AT) {
                tries += 1;
                polling.yielded(Duration::from_micros(5));
                assert!(polling.may_continue(0, true, AT));
                polling.yielded(Duration::from_millis(3));
            }
            polling.slept();
        }
        assert!((12..16).contains(&tries), "{tries}");
    }
}
