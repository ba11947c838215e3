//! Loss recovery and congestion control of a requester. IBTA 9.7.5.2.1 (ACK timeout), 9.7.5.2.8 (RNR).
//!
//! A try lasts as long as `timeout` in the attributes says, and `retry_cnt` counts tries. After the
//! first loss or congestion notification, [`RoundTrip`] also sends the oldest packet again within a
//! try, if no response came for a few round trips. That does not count as a try, so the peer is given
//! up neither sooner nor later. [`SendWindow`] says how much is sent again.
//!
//! ```text
//!   +--------+  an attempt to send finds nothing that it may send   +---------+
//!   |        | ---------------------------------------------------> |         |
//!   |  Open  |                                                      |  Idle   |
//!   |        | <--------------------------------------------------- |         |
//!   +--------+          a response, a timer, SQD to RTS             +---------+
//!     from both:
//!        |                 |                      |                    |
//!     ACK timeout    NAK "PSN sequence      no response for       NAK "receiver
//!        |           error", or an ACK      some round trips       not ready"
//!        |           beyond a READ                |                    |
//!        |                 |                      |                    |
//!     retry_cnt       retry_cnt             counts no retry        rnr_retry
//!     used up?        used up?                    |                used up?
//!        |                 |                      |                    |
//!     (if so, the oldest request fails, and with it the queue pair)    |
//!        |                 |                      |                    |
//!     window 1,       window 4,             window 1, grows         window as
//!     grows to half   grows to half         to half; READ: half     it was
//!        |                 |                      |                    |
//!        |            from the second            |                 Paused, for as
//!        |            retry on: Paused,           |                 long as the NAK
//!        |            longer each time            |                 says
//!        |                 |                      |                    |
//!        +-----------------+-----------+----------+--------------------+
//!                                      v
//!            GoBack: everything from `una` on is sent again (go-back-N)
//!                                      |
//!                                      v
//!            an acknowledgement of something new resets all counts and timers.
//!            If it is for more than the one packet that was sent again after some
//!            round trips, nothing was lost: the window is restored, and nothing
//!            else is sent again (as in RFC 3522).
//! ```
//!
//! Only its timer ends a pause. NAKs that arrive in a pause, or before anything is sent again, are late
//! copies and are ignored.

use std::time::Duration;

use super::controller::{Acknowledged, Controller, Loss, Sent, Verdict};
use super::rtt::RoundTrip;
use super::window::SendWindow;
use crate::event::RetryCause;
use crate::queue::Status;
use crate::service::QpView;
use crate::types::{AckTimeout, QpAttr, RnrTimer, Time};

/// At least one packet in this many asks for an acknowledgement.
const ACK_REQ_INTERVAL: u32 = 32;
/// The pause when the peer reports the same missing packet a second time. The pause doubles with each
/// further report.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
/// The shortest pause after an RNR NAK. Without a minimum, a peer with a tiny RNR timer would be asked
/// in a tight loop.
const MIN_RNR_PAUSE: Duration = Duration::from_micros(10);
/// The `rnr_retry` that stands for unlimited retries.
const UNLIMITED: u8 = 7;

/// The window, the timers and the retry counts of one requester.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    window: SendWindow,
    gate: Gate,
    limits: RetryLimits,
    /// Retries left; reset by every new response.
    left: u8,
    /// Retries left after "receiver not ready".
    rnr_left: u8,
    /// Packets sent since the last one that asked for a response (AckReq, READs and atomics): fewer
    /// than [`ACK_REQ_INTERVAL`].
    since_ack_req: u8,
    /// The deadline of this try was extended once, because this host did not run.
    excused: bool,
    /// The response to the oldest READ or atomic was found lost. Later responses that show the same
    /// loss start no further retry.
    skip_known: bool,
    /// When this try ends without a response.
    ack_deadline: Option<Time>,
    /// When the oldest packet is sent again within a try; `None` before the first loss or congestion
    /// notification, since most connections never meet either.
    round_trip: Option<Box<RoundTrip>>,
    /// Makes the timers differ among the connections of a peer, for [`RoundTrip`].
    seed: u32,
}

/// The attributes that limit retries.
#[derive(Clone, Copy, Debug, Default)]
struct RetryLimits {
    timeout: AckTimeout,
    retry_cnt: u8,
    rnr_retry: u8,
}

/// Whether the requester may send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    /// The last attempt found nothing that may be sent. Every event that may change this opens the
    /// gate.
    Idle,
    /// Nothing is sent until then. `rnr`: the peer has asked for the pause.
    Paused { until: Time, rnr: bool },
}

impl Recovery {
    fn check(&self) {
        debug_assert!(self.left <= 7 && self.rnr_left <= 7, "fields of 3 bits: {self:?}");
        debug_assert!(u32::from(self.since_ack_req) < ACK_REQ_INTERVAL, "{self:?}");
        debug_assert!(self.window.limit() >= 1, "one packet may always be sent");
    }

    /// Starts the timers, if they do not run. The try lasts exactly as long as `timeout` says.
    #[inline]
    fn start_timers(&mut self, now: Time) {
        if self.ack_deadline.is_none() {
            self.ack_deadline = self.limits.timeout.duration().map(|timeout| now + timeout);
        }
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.start(now, self.ack_deadline);
        }
    }

    fn round_trip(&mut self) -> &mut RoundTrip {
        self.round_trip.get_or_insert_with(|| Box::new(RoundTrip::new(self.seed)))
    }

    /// Everything outstanding will be sent again, so a response tells nothing about the round trip.
    fn stop_timing(&mut self) {
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.stop_timing();
        }
    }

    /// Stops the round-trip timer: the time that has passed says nothing about the peer.
    fn cancel_resend(&mut self) {
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.stop_timing();
            round_trip.cancel();
        }
    }

    /// Ends the try and stops its timers.
    fn end_try(&mut self) {
        self.ack_deadline = None;
        self.excused = false;
        if let Some(round_trip) = &mut self.round_trip {
            round_trip.cancel();
        }
    }

    /// Pauses if the peer has reported the same missing packet more than once: all senders together
    /// send more than it can receive. Pauses longer each time, so that the retries are not all used up
    /// within one short overload. Returns whether it pauses now. The specification does not say when a
    /// requester must react to such a NAK.
    fn back_off(&mut self, now: Time) -> bool {
        let retries = self.limits.retry_cnt.saturating_sub(self.left).min(7);
        let Some(times) = retries.checked_sub(2) else { return false };
        debug_assert!(times <= 5, "at most 7 retries");
        self.gate = Gate::Paused { until: now + FIRST_PAUSE * (1 << times), rnr: false };
        true
    }

    /// Returns for how many packets of a long message one acknowledgement is asked for: a quarter of the
    /// window, so that the window keeps moving. With a shared window, one acknowledgement for all of it
    /// is enough, because other queue pairs send while this one waits.
    fn ack_req_interval(&self, peer_window: u32) -> u32 {
        let own = self.window.limit();
        ACK_REQ_INTERVAL.min(if peer_window < own { peer_window } else { own.div_ceil(4) })
    }
}

impl Controller for Recovery {
    fn new(view: &QpView<'_>) -> Self {
        let mut recovery = Self {
            window: SendWindow::new(view),
            seed: view.attr.dest_qp_num.value(),
            ..Self::default()
        };
        recovery.set_limits(view.attr);
        (recovery.left, recovery.rnr_left) = (view.attr.retry_cnt, view.attr.rnr_retry);
        recovery.check();
        recovery
    }

    fn set_limits(&mut self, attr: &QpAttr) {
        let &QpAttr { timeout, retry_cnt, rnr_retry, .. } = attr;
        debug_assert!(retry_cnt <= 7 && rnr_retry <= 7, "fields of 3 bits");
        self.limits = RetryLimits { timeout, retry_cnt, rnr_retry };
    }

    #[inline]
    fn window(&self, peer_window: u32) -> u32 {
        self.window.limit().min(peer_window)
    }

    #[inline]
    fn room(&self, used: u32, peer_window: u32) -> u32 {
        // Where the peer's window has become smaller, more packets may be on the way than it allows. The
        // peer is then asked to acknowledge them.
        let asked = self.since_ack_req == 0;
        let limit = if asked { self.window(peer_window) } else { self.window.limit() };
        limit.saturating_sub(used)
    }

    #[inline]
    fn segment_room(&self, used: u32, peer_window: u32) -> u32 {
        let to_ack_req =
            self.ack_req_interval(peer_window).saturating_sub(self.since_ack_req.into());
        self.window(peer_window).saturating_sub(used).min(to_ack_req)
    }

    fn read_chunk(&self, peer_window: u32, max_rd_atomic: u8) -> u32 {
        self.window.read_chunk(peer_window, max_rd_atomic)
    }

    #[inline(always)]
    fn asks(&self, used: u32, count: u32, peer_window: u32) -> bool {
        let since = u32::from(self.since_ack_req) + count;
        used >= self.window(peer_window) || since >= self.ack_req_interval(peer_window)
    }

    fn must_ask_again(&mut self, used: u32) -> bool {
        let must = self.since_ack_req > 0 && used > 0;
        if must {
            self.since_ack_req = 0;
            self.stop_timing();
        }
        must
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.gate == Gate::Open
    }

    #[inline]
    fn is_paused(&self) -> bool {
        matches!(self.gate, Gate::Paused { .. })
    }

    #[inline]
    fn note_idle(&mut self) {
        debug_assert!(!self.is_paused(), "only its timer ends a pause");
        self.gate = Gate::Idle;
    }

    #[inline]
    fn reopen(&mut self) {
        if !self.is_paused() {
            self.gate = Gate::Open;
        }
    }

    #[inline]
    fn is_timing(&self) -> bool {
        self.round_trip.is_some()
    }

    #[inline(always)]
    fn on_sent(&mut self, now: Time, sent: Sent) {
        if let (Some(psn), Some(round_trip)) = (sent.timed, &mut self.round_trip) {
            round_trip.on_sent(now, psn);
        }
        let since = if sent.asks { 0 } else { u32::from(self.since_ack_req) + sent.psns };
        self.since_ack_req = u8::try_from(since).unwrap_or(u8::MAX);
        self.start_timers(now);
        self.check();
    }

    #[inline]
    fn on_acknowledged(&mut self, now: Time, acknowledged: Acknowledged) -> bool {
        let Acknowledged { una, packets, responses, outstanding } = acknowledged;
        debug_assert!(packets > 0 && responses > 0, "{acknowledged:?}");
        (self.left, self.rnr_left) = (self.limits.retry_cnt, self.limits.rnr_retry);
        self.ack_deadline = None;
        (self.excused, self.skip_known) = (false, false);
        let before = self.round_trip.as_mut().and_then(|it| it.on_progress(now, una));
        if outstanding {
            self.start_timers(now);
        }
        // After a round-trip timeout one packet was sent. If the response is for more, it is one to
        // what was sent before: nothing was lost but time or an acknowledgement (as in RFC 3522).
        let before = before.filter(|_| packets > 1);
        if let Some(before) = before {
            self.window.restore(before);
        }
        (0..responses).for_each(|_| self.window.on_progress(packets, una));
        debug_assert!(outstanding || self.ack_deadline.is_none(), "nothing waits for a response");
        self.check();
        before.is_some()
    }

    fn on_loss(&mut self, now: Time, loss: Loss) -> Verdict {
        let Loss { cause, high, outstanding, awaits_data } = loss;
        match cause {
            RetryCause::RoundTripTimeout => {
                debug_assert!(!self.is_paused() && self.round_trip.is_some(), "its timer ran");
                self.skip_known = false;
                if awaits_data {
                    // Each packet of a READ's response is progress by itself, so nothing tells later
                    // whether the first request was answered after all. The window is kept for that.
                    self.window.on_silence(high);
                } else {
                    let window = self.window;
                    self.round_trip().save(window);
                    self.window.on_timeout(high);
                }
                self.reopen();
                return Verdict::GoBack;
            }
            RetryCause::Timeout => self.skip_known = false,
            // The oldest packet will be sent again anyway: this tells of a loss that is known.
            _ if !outstanding || self.is_paused() => return Verdict::Ignore,
            RetryCause::ImpliedNak if self.skip_known => return Verdict::Ignore,
            RetryCause::ImpliedNak => self.skip_known = true,
            RetryCause::SequenceNak => {}
            RetryCause::ReceiverNotReady => debug_assert!(false, "see `on_not_ready`"),
        }
        debug_assert!(self.left <= 7, "a field of 3 bits");
        let Some(left) = self.left.checked_sub(1) else {
            return Verdict::GiveUp(Status::RetryExceeded);
        };
        self.left = left;
        self.end_try();
        let reported = cause != RetryCause::Timeout;
        if reported {
            self.window.on_loss(high);
        } else {
            self.window.on_timeout(high);
        }
        self.round_trip().on_loss(reported);
        if cause == RetryCause::SequenceNak && self.back_off(now) {
            self.window.on_same_loss();
        }
        self.reopen();
        debug_assert!(self.ack_deadline.is_none() && !self.excused, "the next try begins anew");
        self.check();
        Verdict::GoBack
    }

    fn on_not_ready(&mut self, now: Time, timer: RnrTimer, outstanding: bool) -> Verdict {
        if !outstanding || self.is_paused() {
            return Verdict::Ignore;
        }
        if self.rnr_left != UNLIMITED {
            let Some(left) = self.rnr_left.checked_sub(1) else {
                return Verdict::GiveUp(Status::RnrRetryExceeded);
            };
            self.rnr_left = left;
        }
        self.end_try();
        self.stop_timing();
        let until = now + timer.duration().max(MIN_RNR_PAUSE);
        self.gate = Gate::Paused { until, rnr: true };
        debug_assert!(self.deadline() == Some(until) && until > now, "only the pause ends it");
        Verdict::GoBack
    }

    fn on_marked(&mut self, now: Time) {
        // Packets may be lost: round trips are timed from now on.
        let end = self.ack_deadline;
        self.round_trip().start(now, end);
    }

    fn excuse(&mut self, now: Time) {
        if self.ack_deadline.is_none() {
            return;
        }
        self.cancel_resend();
        // Only once, so that retries also run out on a host that is always late.
        if !self.excused {
            self.excused = true;
            self.ack_deadline = None;
        }
        self.start_timers(now);
    }

    fn restart(&mut self, now: Time) {
        if self.ack_deadline.take().is_some() {
            self.cancel_resend();
            self.start_timers(now);
        }
    }

    fn stop(&mut self) {
        self.end_try();
        self.gate = Gate::Open;
        debug_assert!(self.deadline().is_none(), "no timer runs");
    }

    fn deadline(&self) -> Option<Time> {
        if let Gate::Paused { until, .. } = self.gate {
            return Some(until);
        }
        let resend = self.round_trip.as_ref().and_then(|round_trip| round_trip.deadline());
        debug_assert!(
            resend.zip(self.ack_deadline).is_none_or(|(resend, end)| resend <= end),
            "the oldest packet is sent again within the try"
        );
        resend.or(self.ack_deadline)
    }

    fn take_due(&mut self, now: Time, awaits_data: bool) -> Option<RetryCause> {
        if let Gate::Paused { until, rnr } = self.gate {
            if until > now {
                return None;
            }
            self.gate = Gate::Open;
            return rnr.then_some(RetryCause::ReceiverNotReady);
        }
        if self.ack_deadline.is_some_and(|at| at <= now) {
            self.ack_deadline = None;
            return Some(RetryCause::Timeout);
        }
        let round_trip = self.round_trip.as_mut()?;
        let due = round_trip.take_due(now, self.ack_deadline);
        // If nothing was lost yet, there was only a congestion notification. The peer then sends
        // responses, unlike acknowledgements, at its own pace.
        (due && (!awaits_data || round_trip.is_lossy())).then_some(RetryCause::RoundTripTimeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Psn;

    fn recovery() -> Recovery {
        let limits =
            RetryLimits { timeout: AckTimeout::new(14).unwrap(), retry_cnt: 7, rnr_retry: 7 };
        Recovery { window: SendWindow::of(256), limits, left: 7, ..Recovery::default() }
    }

    fn loss(cause: RetryCause) -> Loss {
        Loss { cause, high: Psn::new(2), outstanding: true, awaits_data: false }
    }

    const SENT: Sent = Sent { psns: 1, asks: true, timed: None };

    /// How long each try waits, in timeouts, until the retries run out. `excused`: the host is late
    /// by half a timeout each time.
    fn waits(excused: bool) -> Vec<f64> {
        let mut recovery = recovery();
        let unit = recovery.limits.timeout.duration().unwrap();
        let mut now = Time::ZERO;
        let mut waits = Vec::new();
        loop {
            // Only tries are of interest.
            recovery.round_trip = None;
            let sent = now;
            recovery.on_sent(now, SENT);
            loop {
                now = recovery.deadline().unwrap();
                if !excused {
                    break;
                }
                now = now + unit / 2;
                let before = recovery.deadline();
                recovery.excuse(now);
                if recovery.deadline() == before {
                    break;
                }
            }
            assert_eq!(recovery.take_due(now, false), Some(RetryCause::Timeout));
            waits.push((now - sent).as_secs_f64() / unit.as_secs_f64());
            let verdict = recovery.on_loss(now, loss(RetryCause::Timeout));
            if verdict == Verdict::GiveUp(Status::RetryExceeded) {
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
        let mut recovery = recovery();
        let mut now = Time::ZERO;
        let mut pauses = Vec::new();
        while recovery.on_loss(now, loss(RetryCause::SequenceNak)) == Verdict::GoBack {
            let until = recovery.deadline().filter(|_| recovery.is_paused()).unwrap_or(now);
            pauses.push((until - now).as_micros());
            now = until;
            if recovery.is_paused() {
                let again = recovery.on_loss(now, loss(RetryCause::SequenceNak));
                assert_eq!(again, Verdict::Ignore);
            }
            assert_eq!(recovery.take_due(now, false), None);
            assert!(!recovery.is_paused());
        }
        assert_eq!(pauses, [0, 500, 1000, 2000, 4000, 8000, 16_000]);
    }
}
