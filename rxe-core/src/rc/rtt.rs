//! The round-trip time of a connection, and the timer that sends the oldest packet again if no response
//! came for a few round trips. RFC 6298, with limits for a data centre.
//!
//! One packet at a time is timed: one that the peer must answer immediately. A packet that was sent
//! again is not timed, because the response may be to its first transmission (Karn's algorithm).

use std::time::Duration;

use super::window::SendWindow;
use crate::types::{Psn, Time};

/// The shortest wait: the peer may delay an acknowledgement for as long.
const MIN: Duration = Duration::from_millis(1);
/// The shortest wait after the peer has reported a gap. The peer then runs, and it reports each gap only
/// once, so silence means that the missing packet was lost again.
const MIN_AFTER_GAP: Duration = Duration::from_micros(250);
/// The wait before the first measurement, which the loss that started the timer may prevent.
const INITIAL: Duration = Duration::from_millis(5);
/// How often the wait doubles at most.
const MAX_DOUBLINGS: u32 = 6;

/// The estimator and the timer of a requester that has lost a packet or was notified of congestion.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    /// SRTT and RTTVAR; `None` before the first measurement.
    estimate: Option<Estimate>,
    /// The PSN of the packet that is timed, and when it was sent.
    timed: Option<(Psn, Time)>,
    /// How often the timer has expired since the last response.
    doublings: u32,
    /// The peer has reported a gap, and there was no progress since.
    gap: bool,
    /// The connection has lost a packet at some time.
    lossy: bool,
    /// When the oldest packet is sent again.
    deadline: Option<Time>,
    /// The window before the timer expired, until the next response.
    before: Option<SendWindow>,
    /// Makes the waits differ from those of other requesters.
    seed: u32,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: Duration,
    variation: Duration,
}

impl RoundTrip {
    pub(super) fn new(seed: u32) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Times the packet at `psn`, which was sent for the first time and is answered immediately, unless
    /// another packet is timed.
    pub(super) fn on_sent(&mut self, now: Time, psn: Psn) {
        self.timed.get_or_insert((psn, now));
    }

    /// Stops the timer: packets up to `una` are acknowledged, some of them just now. Returns the window
    /// given to [`RoundTrip::save`], if nothing else was lost since.
    pub(super) fn on_progress(&mut self, now: Time, una: Psn) -> Option<SendWindow> {
        self.doublings = 0;
        self.gap = false;
        self.deadline = None;
        if let Some((_, sent)) = self.timed.take_if(|(psn, _)| psn.before(una)) {
            self.measured(now - sent);
        }
        self.before.take()
    }

    /// Keeps the window from before the timer expired, in case nothing was lost.
    pub(super) fn save(&mut self, window: SendWindow) {
        self.before.get_or_insert(window);
    }

    /// Records a loss. `gap`: the peer has reported it.
    pub(super) fn on_loss(&mut self, gap: bool) {
        self.gap |= gap;
        self.lossy = true;
        self.timed = None;
        self.before = None;
        debug_assert!(self.deadline.is_none(), "a try that ends stops its timers");
    }

    /// Stops timing: the packet will be sent again or the host did not run, so the time until a response
    /// is no round trip.
    pub(super) fn stop_timing(&mut self) {
        self.timed = None;
    }

    /// Returns whether the connection has lost a packet at some time.
    pub(super) fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// Starts the timer, unless it runs or would expire after `end`, the end of the try. Without an end
    /// there are no retransmissions.
    pub(super) fn start(&mut self, now: Time, end: Option<Time>) {
        if self.deadline.is_none() {
            let at = now + self.timeout() + self.variation(now);
            self.deadline = end.is_some_and(|end| at < end).then_some(at);
            debug_assert!(self.deadline.is_none_or(|at| at > now), "a wait takes time");
        }
        debug_assert!(self.deadline.zip(end).is_none_or(|(at, end)| at <= end), "within the try");
    }

    /// Stops the timer.
    pub(super) fn cancel(&mut self) {
        self.deadline = None;
    }

    /// Returns when the timer expires, if it runs.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Returns whether the timer has expired. If so, the timer starts anew with twice the wait.
    pub(super) fn take_due(&mut self, now: Time, end: Option<Time>) -> bool {
        let due = self.deadline.take_if(|at| *at <= now).is_some();
        if due {
            self.timed = None;
            self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
            self.start(now, end);
            debug_assert!(self.timed.is_none(), "what is sent again is not timed");
        }
        due
    }

    /// Returns the random part of a wait after the first: up to as long as the wait itself. Otherwise many
    /// senders to one full queue would stay in step, and the same ones would find it full each time.
    fn variation(&self, now: Time) -> Duration {
        if self.doublings == 0 {
            return Duration::ZERO;
        }
        let mut mixed = now.as_nanos() ^ u64::from(self.seed) << 32;
        for _ in 0..2 {
            mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^= mixed >> 32;
        }
        let [part, ..] = mixed.to_le_bytes();
        let more = self.timeout() * u32::from(part) / 256;
        debug_assert!(more < self.timeout(), "at most once as long");
        more
    }

    fn measured(&mut self, time: Duration) {
        self.estimate = Some(match self.estimate {
            None => Estimate { smoothed: time, variation: time / 2 },
            Some(Estimate { smoothed, variation }) => Estimate {
                // RTTVAR needs the old SRTT. The weights are 1/4 and 1/8.
                variation: variation * 3 / 4 + smoothed.abs_diff(time) / 4,
                smoothed: smoothed * 7 / 8 + time / 8,
            },
        });
        debug_assert!(self.timed.is_none(), "each packet is measured once");
    }

    /// Returns how long to wait for a response, without the random part.
    fn timeout(&self) -> Duration {
        let min = if self.gap { MIN_AFTER_GAP } else { MIN };
        let wait = match self.estimate {
            Some(Estimate { smoothed, variation }) => (smoothed + 4 * variation).max(min),
            None => INITIAL,
        };
        debug_assert!(self.doublings <= MAX_DOUBLINGS);
        debug_assert!(wait >= min, "{wait:?}");
        wait * (1 << self.doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    /// Returns an estimator that has measured these round trips, in microseconds.
    fn after(times: &[u64]) -> RoundTrip {
        let mut rtt = RoundTrip::default();
        for &time in times {
            rtt.on_sent(at(0), Psn::new(7));
            rtt.on_progress(at(time), Psn::new(8));
        }
        rtt
    }

    #[test]
    fn the_first_wait_is_a_guess() {
        assert_eq!(RoundTrip::default().timeout(), INITIAL);
        assert_eq!(after(&[1]).timeout(), MIN);
    }

    #[test]
    fn the_wait_follows_the_time_and_its_variation() {
        assert_eq!(after(&[10_000]).timeout(), Duration::from_millis(30), "R + 4 R/2");
        let steady = after(&[10_000; 50]).timeout();
        assert!(steady < Duration::from_micros(10_100), "{steady:?}");
        let wavering = after(&[5_000, 15_000].repeat(25)).timeout();
        assert!(wavering > Duration::from_millis(25), "{wavering:?}");
    }

    #[test]
    fn the_wait_doubles_until_an_answer_comes() {
        let mut rtt = after(&[1]);
        for (wait, least) in waits(&mut rtt).into_iter().zip([1, 2, 4, 8, 16, 32, 64, 64]) {
            let least = Duration::from_millis(least);
            assert!((least..2 * least).contains(&wait), "{wait:?}");
        }
        rtt.on_progress(at(0), Psn::new(1));
        assert_eq!((rtt.timeout(), rtt.deadline()), (MIN, None));
    }

    /// Returns eight waits in a row.
    fn waits(rtt: &mut RoundTrip) -> Vec<Duration> {
        let end = Some(at(u64::from(u32::MAX)));
        let mut now = at(0);
        rtt.start(now, end);
        let mut wait = || {
            let deadline = rtt.deadline().unwrap();
            let wait = deadline - std::mem::replace(&mut now, deadline);
            assert!(rtt.take_due(now, end));
            assert!(!rtt.take_due(now, None), "it was started anew");
            wait
        };
        (0..8).map(|_| wait()).collect()
    }

    #[test]
    fn two_requesters_that_lose_at_the_same_time_do_not_keep_step() {
        let of = |seed| waits(&mut RoundTrip { seed, ..after(&[1]) });
        let (one, other) = (of(0x100), of(0x101));
        assert_eq!(one, of(0x100), "each is always the same");
        assert_eq!(one[0], other[0], "the first wait is exact");
        let alike = one[1..].iter().zip(&other[1..]).filter(|(one, other)| one == other);
        assert_eq!(alike.count(), 0);
    }

    #[test]
    fn the_timer_runs_only_within_the_try() {
        let mut rtt = after(&[1]);
        for end in [None, Some(at(1000))] {
            rtt.start(at(0), end);
            assert_eq!(rtt.deadline(), None);
        }
        rtt.start(at(0), Some(at(1001)));
        assert_eq!(rtt.deadline(), Some(at(1000)));
    }

    #[test]
    fn the_wait_is_shorter_while_the_peer_misses_a_packet_that_it_has_reported() {
        let mut rtt = after(&[1]);
        rtt.on_loss(true);
        assert_eq!(rtt.timeout(), MIN_AFTER_GAP);
        rtt.on_progress(at(0), Psn::new(1));
        assert_eq!(rtt.timeout(), MIN);
    }

    #[test]
    fn an_answer_to_a_packet_sent_twice_is_not_measured() {
        let mut rtt = after(&[1]);
        rtt.on_sent(at(0), Psn::new(7));
        rtt.stop_timing();
        rtt.on_progress(at(900_000), Psn::new(8));
        assert_eq!(rtt.timeout(), MIN);
        rtt.on_sent(at(0), Psn::new(9));
        rtt.on_progress(at(900_000), Psn::new(9));
        assert_eq!(rtt.timeout(), MIN, "the packet itself is not answered yet");
    }
}
