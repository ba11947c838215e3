//! The round-trip time of a connection, and how long to wait for an answer before the oldest packet
//! is sent again. RFC 6298, with limits for a data centre.
//!
//! One packet at a time is timed: one that must be answered at once. A packet that was sent again is
//! not timed, because its answer may be one to the first transmission (Karn's algorithm).

use std::time::Duration;

use crate::types::{Psn, Time};

/// The shortest wait. An acknowledgement may wait for as long in the peer.
const MIN: Duration = Duration::from_millis(1);
/// The shortest wait after the peer has reported a gap: it runs, and it reports no gap twice, so if
/// the packet that it misses is lost again, it says nothing.
const MIN_AFTER_GAP: Duration = Duration::from_micros(250);
/// The wait doubles so often at most.
const MAX_DOUBLINGS: u8 = 6;

/// The estimator of one requester. Times are in nanoseconds, at most 4 s.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    /// SRTT; 0 before the first measurement.
    smoothed: u32,
    /// RTTVAR.
    variation: u32,
    /// The packet that is timed.
    psn: Psn,
    /// Whether one is timed.
    timing: bool,
    /// When it was sent.
    sent: Time,
    /// How often the oldest packet was sent again since an answer came.
    doublings: u8,
    /// The peer has reported a gap, and no progress since.
    gap: bool,
}

impl RoundTrip {
    /// The packet at `psn` was sent for the first time, and the peer answers it at once.
    pub(super) fn on_sent(&mut self, now: Time, psn: Psn) {
        if !self.timing {
            (self.timing, self.psn, self.sent) = (true, psn, now);
        }
    }

    /// Everything before `una` is answered.
    pub(super) fn on_progress(&mut self, now: Time, una: Psn) {
        self.doublings = 0;
        self.gap = false;
        if self.timing && self.psn.before(una) {
            self.timing = false;
            self.measured(now.since(self.sent));
        }
    }

    /// What was sent before will be sent again, or the host did not run: an answer says nothing about
    /// the time of the way.
    pub(super) fn stop_timing(&mut self) {
        self.timing = false;
    }

    /// The peer has reported that the oldest packet is missing.
    pub(super) fn on_gap(&mut self) {
        self.gap = true;
        self.timing = false;
    }

    /// The oldest packet is sent again, because no answer came in time.
    pub(super) fn on_timeout(&mut self) {
        self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
        self.timing = false;
    }

    fn measured(&mut self, time: Duration) {
        let time = u32::try_from(time.as_nanos()).unwrap_or(u32::MAX).max(1);
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (time, time / 2);
            return;
        }
        // RTTVAR first, as it needs the old SRTT. The weights are 1/4 and 1/8.
        let error = self.smoothed.abs_diff(time);
        self.variation = self.variation - self.variation / 4 + error / 4;
        self.smoothed = self.smoothed - self.smoothed / 8 + time / 8;
    }

    /// How long to wait for an answer; `None` before the first measurement.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let (smoothed, variation) = (u64::from(self.smoothed), u64::from(self.variation));
        let min = if self.gap { MIN_AFTER_GAP } else { MIN };
        let wait = Duration::from_nanos(smoothed + 4 * variation).max(min);
        (smoothed > 0).then(|| wait * (1 << self.doublings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    /// An estimator that has seen these round trips, in microseconds.
    fn after(times: &[u64]) -> RoundTrip {
        let mut rtt = RoundTrip::default();
        for &time in times {
            rtt.on_sent(at(0), Psn::new(7));
            rtt.on_progress(at(time), Psn::new(8));
        }
        rtt
    }

    #[test]
    fn nothing_is_known_before_the_first_answer() {
        assert_eq!(RoundTrip::default().timeout(), None);
        assert_eq!(after(&[1]).timeout(), Some(MIN));
    }

    #[test]
    fn the_wait_follows_the_time_and_its_variation() {
        assert_eq!(after(&[10_000]).timeout(), Some(Duration::from_millis(30)), "R + 4 R/2");
        let steady = after(&[10_000; 50]).timeout().unwrap();
        assert!(steady < Duration::from_micros(10_100), "{steady:?}");
        let wavering = after(&[5_000, 15_000].repeat(25)).timeout().unwrap();
        assert!(wavering > Duration::from_millis(25), "{wavering:?}");
    }

    #[test]
    fn the_wait_doubles_until_an_answer_comes() {
        let mut rtt = after(&[1]);
        let waits = (0..8).map(|_| {
            rtt.on_timeout();
            rtt.timeout().unwrap().as_millis()
        });
        assert_eq!(waits.collect::<Vec<_>>(), [2, 4, 8, 16, 32, 64, 64, 64]);
        rtt.on_progress(at(0), Psn::new(1));
        assert_eq!(rtt.timeout(), Some(MIN));
    }

    #[test]
    fn the_wait_is_shorter_while_the_peer_misses_a_packet_that_it_has_reported() {
        let mut rtt = after(&[1]);
        rtt.on_gap();
        assert_eq!(rtt.timeout(), Some(MIN_AFTER_GAP));
        rtt.on_progress(at(0), Psn::new(1));
        assert_eq!(rtt.timeout(), Some(MIN));
    }

    #[test]
    fn an_answer_to_a_packet_sent_twice_is_not_measured() {
        let mut rtt = after(&[1]);
        rtt.on_sent(at(0), Psn::new(7));
        rtt.stop_timing();
        rtt.on_progress(at(900_000), Psn::new(8));
        assert_eq!(rtt.timeout(), Some(MIN));
        rtt.on_sent(at(0), Psn::new(9));
        rtt.on_progress(at(900_000), Psn::new(9));
        assert_eq!(rtt.timeout(), Some(MIN), "the packet itself is not answered yet");
    }
}
