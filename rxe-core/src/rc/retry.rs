//! When to try again and how often. IBTA 9.7.5.2.1 (ACK timeout), 9.7.5.2.8 (RNR).

use std::time::Duration;

use crate::types::{QpAttr, RnrTimer, Time};

/// The timers and counts of one requester.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// Retries left without an answer.
    left: u8,
    /// Retries left after "receiver not ready"; 7 stays 7.
    rnr_left: u8,
    /// An answer must have come by then.
    ack_deadline: Option<Time>,
    /// This try has been given its time once more, because this host did not run.
    excused: bool,
    /// Nothing is sent before then.
    pause: Option<Pause>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Time,
    /// The peer asked for it.
    rnr: bool,
}

/// How long to wait when a packet has been missed a third time; twice as long each time after it.
const FIRST_PAUSE: Duration = Duration::from_micros(500);

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// No answer came in time.
    AckTimeout,
    /// The peer may be ready now.
    RnrOver,
    /// The peer has had time to recover from what it could not take.
    BackOffOver,
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
        self.excused = false;
        if outstanding {
            self.on_sent(now, attr);
        }
    }

    /// Something was sent that wants an answer. The peer gets the time that the attributes say: a
    /// program that sets a limit means it.
    pub(super) fn on_sent(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_deadline.is_none() {
            self.ack_deadline = attr.timeout.duration().map(|timeout| now + timeout);
        }
    }

    /// This host did not run for a while: neither could it take an answer, nor, perhaps, the peer
    /// give one. The try gets its whole time again, but only once, so that retries run out on a
    /// host that is always late.
    pub(super) fn excuse(&mut self, now: Time, attr: &QpAttr) {
        if !self.excused && self.ack_deadline.take().is_some() {
            self.excused = true;
            self.on_sent(now, attr);
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
        self.excused = false;
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
        self.excused = false;
        // A peer that says "at once" would be asked in a tight loop.
        let until = now + timer.duration().max(Duration::from_micros(10));
        self.pause = Some(Pause { until, rnr: true });
        Ok(())
    }

    /// The peer has missed the same packet again: it gets more than it can take, from all who send to
    /// it. Whether this side now waits, longer with each time, lest all tries are used up within one
    /// moment of that. The specification leaves open when a requester answers such a NAK.
    pub(super) fn back_off(&mut self, now: Time, attr: &QpAttr) -> bool {
        let Some(times) = self.tries(attr).checked_sub(2) else { return false };
        let until = now + FIRST_PAUSE * (1 << times);
        self.pause = Some(Pause { until, rnr: false });
        true
    }

    /// Whether sending must wait because the peer is not ready.
    pub(super) fn is_waiting(&self) -> bool {
        self.pause.is_some()
    }

    /// Tries since something new was answered.
    fn tries(&self, attr: &QpAttr) -> u8 {
        attr.retry_cnt.saturating_sub(self.left).min(7)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.pause.map(|pause| pause.until).or(self.ack_deadline)
    }

    /// What is due at `now`; it is then no longer.
    pub(super) fn due(&mut self, now: Time) -> Option<Due> {
        if let Some(pause) = self.pause.take_if(|pause| pause.until <= now) {
            return Some(if pause.rnr { Due::RnrOver } else { Due::BackOffOver });
        }
        if self.pause.is_none() && self.ack_deadline.is_some_and(|at| at <= now) {
            self.ack_deadline = None;
            return Some(Due::AckTimeout);
        }
        None
    }

    /// Nothing is awaited any more.
    pub(super) fn stop(&mut self) {
        self.ack_deadline = None;
        self.pause = None;
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

    /// How long each try waits, in timeouts, until retries run out. `excused`: the host is late each
    /// time, by half a timeout.
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
            if retry.again().is_err() {
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
        while retry.again().is_ok() {
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
