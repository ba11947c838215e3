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
            let patience = self.patience(attr);
            self.ack_deadline = attr.timeout.duration().map(|timeout| now + timeout * patience);
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

    /// How many times the timeout of the attributes this try may take. Up to four are allowed (9.7.6.1.3): the
    /// first two tries take one, so that a loss is made up for quickly; later ones take more, so
    /// that a peer that is only slow (a machine with more to do than it has processors) is not given
    /// up for dead.
    fn patience(&self, attr: &QpAttr) -> u32 {
        match attr.retry_cnt.saturating_sub(self.left) {
            0 | 1 => 1,
            2 => 2,
            _ => 4,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::AckTimeout;

    #[test]
    fn later_tries_are_given_more_time_up_to_four_times_the_timeout() {
        let attr =
            QpAttr { retry_cnt: 7, timeout: AckTimeout::new(14).unwrap(), ..QpAttr::default() };
        let unit = attr.timeout.duration().unwrap();
        let mut retry = Retry::new(&attr);
        let mut now = Time::ZERO;
        let mut waits = Vec::new();
        loop {
            retry.on_sent(now, &attr);
            let due = retry.deadline().unwrap();
            waits.push((due - now).as_nanos() / unit.as_nanos());
            now = due;
            assert_eq!(retry.due(now), Some(Due::AckTimeout));
            if retry.again().is_err() {
                break;
            }
        }
        assert_eq!(waits, [1, 1, 2, 4, 4, 4, 4, 4]);
        retry.on_progress(now, &attr, true);
        assert_eq!(retry.deadline(), Some(now + unit), "an answer makes the peer alive again");
    }
}
