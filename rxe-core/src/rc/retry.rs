//! When to try again and how often. IBTA 9.7.5.2.1 (ACK timeout), 9.7.5.2.8 (RNR).
//!
//! A try lasts as long as the `timeout` of the attributes says, and then counts. After the first loss or
//! congestion notification the oldest packet is also sent again within a try, when no response came for a
//! few round trips ([`RoundTrip`]). That does not count, so a peer is given up neither sooner nor later.

use std::time::Duration;

use super::rtt::RoundTrip;
use super::window::SendWindow;
use crate::types::{Psn, QpAttr, RnrTimer, Time};

/// The timers and retry counts of one requester.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// Retries left; reset by every new response.
    left: u8,
    /// Retries left after "receiver not ready"; 7 means without end.
    rnr_left: u8,
    /// A response must come before this time.
    ack_deadline: Option<Time>,
    /// When the oldest packet is sent again within a try; `None` before the first loss or congestion
    /// notification, since most connections never meet either.
    round_trip: Option<Box<RoundTrip>>,
    /// The deadline of this try was extended once, because this host did not run.
    excused: bool,
    /// Nothing is sent during the pause.
    pause: Option<Pause>,
    /// Another one for each connection of a peer, for [`RoundTrip`].
    seed: u32,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Time,
    /// The peer asked for it.
    rnr: bool,
}

/// How long to wait when the peer reports the same missing packet a third time. The wait doubles
/// with each further report.
const FIRST_PAUSE: Duration = Duration::from_micros(500);

/// A timer that has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// No response came in time.
    AckTimeout,
    /// No response came for some round trips.
    Resend,
    /// The peer may be ready now.
    RnrOver,
    /// The pause of [`Retry::back_off`] is over.
    BackOffOver,
}

/// There are no more retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

impl Retry {
    /// Everything before `una` is answered, some of it only now: resets all counts. Returns the window
    /// before the oldest packet was sent again, if that was the last loss.
    pub(super) fn on_progress(
        &mut self,
        now: Time,
        attr: &QpAttr,
        una: Psn,
        outstanding: bool,
    ) -> Option<SendWindow> {
        self.left = attr.retry_cnt;
        self.rnr_left = attr.rnr_retry;
        self.ack_deadline = None;
        self.excused = false;
        let before = self.round_trip.as_mut().and_then(|it| it.on_progress(now, una));
        if outstanding {
            self.on_sent(now, attr);
        }
        before
    }

    /// Something was sent that needs a response. Starts the timers, if they do not run; that of the
    /// try with exactly the `timeout` of the attributes.
    pub(super) fn on_sent(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_deadline.is_none() {
            self.ack_deadline = attr.timeout.duration().map(|timeout| now + timeout);
        }
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.start(now, self.ack_deadline);
        }
    }

    /// Whether round trips are timed.
    pub(super) fn is_timing(&self) -> bool {
        self.round_trip.is_some()
    }

    /// The packet at `psn`, which is answered at once, was sent for the first time.
    pub(super) fn time(&mut self, now: Time, psn: Psn) {
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.on_sent(now, psn);
        }
    }

    /// The oldest packet is sent again within the try. `window`: before it was reduced for that.
    pub(super) fn save(&mut self, window: SendWindow) {
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.save(window);
        }
    }

    /// A packet was lost. `gap`: the peer has reported it.
    pub(super) fn on_loss(&mut self, gap: bool) {
        self.round_trip().on_loss(gap);
    }

    /// The network is congested, so packets may be lost: round trips are timed from now on.
    pub(super) fn on_notified(&mut self, now: Time) {
        let end = self.ack_deadline;
        self.round_trip().start(now, end);
    }

    fn round_trip(&mut self) -> &mut RoundTrip {
        self.round_trip.get_or_insert_with(|| Box::new(RoundTrip::new(self.seed)))
    }

    /// Whether a packet was lost at some time.
    pub(super) fn has_lost(&self) -> bool {
        self.round_trip.as_ref().is_some_and(|round_trip| round_trip.is_lossy())
    }

    /// What is outstanding will be sent again.
    pub(super) fn stop_timing(&mut self) {
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.stop_timing();
        }
    }

    /// This host did not run for a while, so it could not receive a response; the peer may have been
    /// stopped too. The present try gets the whole timeout again, but only once, so that retries
    /// also run out on a host that is always late.
    pub(super) fn excuse(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_deadline.is_none() {
            return;
        }
        self.cancel_resend();
        if !self.excused {
            self.excused = true;
            self.ack_deadline = None;
        }
        self.on_sent(now, attr);
    }

    /// This side delayed the requests that wait for a response, so the peer gets the whole timeout
    /// again.
    pub(super) fn restart(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_deadline.take().is_some() {
            self.cancel_resend();
            self.on_sent(now, attr);
        }
    }

    /// The time that has passed says nothing about the peer.
    fn cancel_resend(&mut self) {
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.stop_timing();
            round_trip.cancel();
        }
    }

    /// Ends the try, whose timers stop.
    fn end_try(&mut self) {
        self.ack_deadline = None;
        self.excused = false;
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.cancel();
        }
    }

    /// Counts one more retry.
    pub(super) fn count_retry(&mut self) -> Result<(), Exhausted> {
        debug_assert!(self.left <= 7);
        self.left = self.left.checked_sub(1).ok_or(Exhausted)?;
        self.end_try();
        Ok(())
    }

    /// The peer has no receive posted. Sending pauses for as long as the peer says.
    pub(super) fn receiver_not_ready(
        &mut self,
        now: Time,
        timer: RnrTimer,
    ) -> Result<(), Exhausted> {
        const FOR_EVER: u8 = 7;
        if self.rnr_left != FOR_EVER {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(Exhausted)?;
        }
        self.end_try();
        // Without a minimum, a peer with a tiny RNR timer would be asked in a tight loop.
        let until = now + timer.duration().max(Duration::from_micros(10));
        debug_assert!(self.pause.is_none(), "nothing is sent in a pause");
        self.pause = Some(Pause { until, rnr: true });
        Ok(())
    }

    /// The peer has reported the same missing packet again: all senders together send more than it
    /// can receive. Pauses, longer each time, so that the retries are not all used up within one
    /// short overload. Returns whether it pauses now. The specification does not say when a
    /// requester must react to such a NAK.
    pub(super) fn back_off(&mut self, now: Time, attr: &QpAttr) -> bool {
        let Some(times) = self.tries(attr).checked_sub(2) else { return false };
        let until = now + FIRST_PAUSE * (1 << times);
        self.pause = Some(Pause { until, rnr: false });
        true
    }

    /// Whether sending is paused.
    pub(super) fn is_waiting(&self) -> bool {
        self.pause.is_some()
    }

    /// Retries since something new was answered.
    fn tries(&self, attr: &QpAttr) -> u8 {
        attr.retry_cnt.saturating_sub(self.left).min(7)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let resend = self.round_trip.as_ref().and_then(|round_trip| round_trip.deadline());
        // It is within the try.
        debug_assert!(resend.zip(self.ack_deadline).is_none_or(|(resend, end)| resend <= end));
        self.pause.map(|pause| pause.until).or(resend).or(self.ack_deadline)
    }

    /// Returns the timer that has expired at `now`, and clears it.
    pub(super) fn due(&mut self, now: Time) -> Option<Due> {
        if let Some(pause) = self.pause.take_if(|pause| pause.until <= now) {
            return Some(if pause.rnr { Due::RnrOver } else { Due::BackOffOver });
        }
        if self.pause.is_some() {
            return None;
        }
        if self.ack_deadline.is_some_and(|at| at <= now) {
            self.ack_deadline = None;
            return Some(Due::AckTimeout);
        }
        let resend = self.round_trip.as_mut()?.take_due(now, self.ack_deadline);
        resend.then_some(Due::Resend)
    }

    /// Stops all timers.
    pub(super) fn stop(&mut self) {
        self.end_try();
        self.pause = None;
    }

    /// Full retry counts, for a new connection.
    pub(super) fn new(attr: &QpAttr) -> Self {
        debug_assert!(attr.retry_cnt <= 7 && attr.rnr_retry <= 7, "fields of 3 bits");
        let seed = attr.dest_qp_num.value();
        Self { left: attr.retry_cnt, rnr_left: attr.rnr_retry, seed, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::AckTimeout;

    /// How long each try waits, in timeouts, until the retries run out. `excused`: the host is late
    /// by half a timeout each time.
    fn waits(excused: bool) -> Vec<f64> {
        let attr =
            QpAttr { retry_cnt: 7, timeout: AckTimeout::new(14).unwrap(), ..QpAttr::default() };
        let unit = attr.timeout.duration().unwrap();
        let mut retry = Retry::new(&attr);
        let mut now = Time::ZERO;
        let mut waits = Vec::new();
        loop {
            let sent = now;
            retry.on_sent(now, &attr);
            loop {
                now = retry.deadline().unwrap();
                if !excused {
                    break;
                }
                now = now + unit / 2;
                let before = retry.deadline();
                retry.excuse(now, &attr);
                if retry.deadline() == before {
                    break;
                }
            }
            assert_eq!(retry.due(now), Some(Due::AckTimeout));
            waits.push((now - sent).as_secs_f64() / unit.as_secs_f64());
            if retry.count_retry().is_err() {
                return waits;
            }
        }
    }

    #[test]
    fn each_try_takes_the_timeout_of_the_attributes() {
        assert_eq!(waits(false), [1.0; 8]);
    }

    #[test]
    fn a_try_is_excused_once_for_time_in_which_the_host_did_not_run() {
        assert_eq!(waits(true), [3.0; 8]);
    }

    #[test]
    fn a_packet_that_is_missed_again_and_again_is_sent_with_ever_more_time_between() {
        let attr =
            QpAttr { retry_cnt: 7, timeout: AckTimeout::new(14).unwrap(), ..QpAttr::default() };
        let mut retry = Retry::new(&attr);
        let mut now = Time::ZERO;
        let mut pauses = Vec::new();
        while retry.count_retry().is_ok() {
            let waits = retry.back_off(now, &attr);
            assert_eq!(waits, retry.is_waiting());
            let until = retry.deadline().unwrap_or(now);
            pauses.push((until - now).as_micros());
            now = until;
            assert_eq!(retry.due(now), waits.then_some(Due::BackOffOver));
        }
        assert_eq!(pauses, [0, 500, 1000, 2000, 4000, 8000, 16_000]);
    }
}
