//! When to try again and how often. IBTA 9.7.5.2.1 (ACK timeout), 9.7.5.2.8 (RNR).

use std::time::Duration;

use crate::qp::QpAttr;
use crate::types::{RnrTimer, Time};

/// The timers and counts of one requester.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// Retries left without an answer.
    left: u8,
    /// Retries left after "receiver not ready"; 7 stays 7.
    rnr_left: u8,
    /// An answer must have come by then.
    ack_deadline: Option<Time>,
    /// The peer asked not to try before then.
    rnr_until: Option<Time>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// No answer came in time.
    AckTimeout,
    /// The peer may be ready now.
    RnrOver,
}

/// There are no more retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

impl Retry {
    /// Something new was answered: all counts begin anew.
    pub(super) fn on_progress(&mut self, now: Time, attr: &QpAttr, outstanding: bool) {
        self.left = attr.retry_cnt;
        self.rnr_left = attr.rnr_retry;
        self.ack_deadline = None;
        if outstanding {
            self.on_sent(now, attr);
        }
    }

    /// Something was sent that wants an answer.
    pub(super) fn on_sent(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_deadline.is_none() {
            self.ack_deadline = attr.timeout.duration().map(|timeout| now + timeout);
        }
    }

    /// What is awaited was held up on this side: the peer has the whole time again.
    pub(super) fn restart(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_deadline.take().is_some() {
            self.on_sent(now, attr);
        }
    }

    /// One more try without an answer.
    pub(super) fn again(&mut self) -> Result<(), Exhausted> {
        self.left = self.left.checked_sub(1).ok_or(Exhausted)?;
        self.ack_deadline = None;
        Ok(())
    }

    /// The peer has no receive: wait as long as it says.
    pub(super) fn receiver_not_ready(
        &mut self,
        now: Time,
        timer: RnrTimer,
    ) -> Result<(), Exhausted> {
        const FOR_EVER: u8 = 7;
        if self.rnr_left != FOR_EVER {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(Exhausted)?;
        }
        self.ack_deadline = None;
        // A peer that says "at once" would be asked in a tight loop.
        self.rnr_until = Some(now + timer.duration().max(Duration::from_micros(10)));
        Ok(())
    }

    /// Whether sending must wait because the peer is not ready.
    pub(super) fn is_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.rnr_until.or(self.ack_deadline)
    }

    /// What is due at `now`; it is then no longer.
    pub(super) fn due(&mut self, now: Time) -> Option<Due> {
        if self.rnr_until.is_some_and(|at| at <= now) {
            self.rnr_until = None;
            return Some(Due::RnrOver);
        }
        if self.rnr_until.is_none() && self.ack_deadline.is_some_and(|at| at <= now) {
            self.ack_deadline = None;
            return Some(Due::AckTimeout);
        }
        None
    }

    /// Nothing is awaited any more.
    pub(super) fn stop(&mut self) {
        self.ack_deadline = None;
        self.rnr_until = None;
    }

    /// Counts as at the start of a connection.
    pub(super) fn new(attr: &QpAttr) -> Self {
        Self { left: attr.retry_cnt, rnr_left: attr.rnr_retry, ..Self::default() }
    }
}
