//! How long a turn may be. A turn holds the shard's lock, so every other user of the shard waits
//! for its end: other queue pairs of the same engine, `ibv_modify_qp`, the driver.
//!
//! A turn is limited in steps and in time. A step sends one batch or reads the sockets once. A peer
//! that reads a gigabyte by RDMA READ is served in many turns.

use std::time::Duration;

use rxe_core::types::Time;

/// The most steps of a turn.
pub(super) const MAX_STEPS: u32 = 16;

/// After this time a turn takes no further step. A step sends up to 512 KiB, which takes some 0.1
/// ms on an idle machine.
pub(super) const MAX_TIME: Duration = Duration::from_micros(250);

/// The steps and the time that a turn has used.
#[derive(Debug, Default)]
pub(in crate::progress) struct TurnLimit {
    steps: u32,
    /// When the first step began.
    since: Option<Time>,
    /// The current time, if this turn has just read the clock.
    noted: Option<Time>,
}

impl TurnLimit {
    /// Allows one step only, for a verb called during a long transfer of the driver.
    pub(in crate::progress) fn one_step() -> Self {
        Self { steps: MAX_STEPS - 1, ..Self::default() }
    }

    /// Records the time that this turn has just read, for a few packets. The next step need not
    /// read it again.
    pub(in crate::progress) fn note(&mut self, now: Option<Time>) {
        self.noted = now;
    }

    /// Takes the time that was noted.
    pub(in crate::progress) fn noted(&mut self) -> Option<Time> {
        self.noted.take()
    }

    /// Records that a step begins at `now`.
    pub(in crate::progress) fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// Records that a step has ended at `now`. Returns whether the turn may take another one.
    pub(in crate::progress) fn may_continue(&mut self, now: Time) -> bool {
        self.steps += 1;
        let since = *self.since.get_or_insert(now);
        self.steps < MAX_STEPS && now.since(since) < MAX_TIME
    }

    /// Returns whether waiting threads must get the lock before this thread again. Handing a lock
    /// over costs a context switch, so turns without a completed step do not.
    pub(in crate::progress) fn hands_over(&self) -> bool {
        self.steps > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_turn_ends_after_its_steps() {
        let mut turn = TurnLimit::default();
        let steps = (1..).find(|_| !turn.may_continue(at(7)));
        assert_eq!(steps, Some(MAX_STEPS));
    }

    #[test]
    fn a_turn_of_slow_steps_ends_after_its_time() {
        let mut turn = TurnLimit::default();
        turn.begin(at(100));
        assert!(turn.may_continue(at(200)));
        turn.begin(at(200));
        assert!(turn.may_continue(at(349)));
        assert!(!turn.may_continue(at(350)));
    }

    #[test]
    fn a_time_that_was_noted_is_used_once_and_not_after_a_later_look() {
        let mut turn = TurnLimit::default();
        assert_eq!(turn.noted(), None);
        turn.note(Some(at(3)));
        assert_eq!((turn.noted(), turn.noted()), (Some(at(3)), None));
        turn.note(Some(at(4)));
        turn.note(None);
        assert_eq!(turn.noted(), None);
    }

    #[test]
    fn a_caller_beside_a_long_transfer_takes_one_step() {
        let mut turn = TurnLimit::one_step();
        turn.begin(at(0));
        assert!(!turn.may_continue(at(0)));
        assert!(turn.hands_over());
    }

    #[test]
    fn a_turn_of_one_step_keeps_the_lock_and_a_longer_one_hands_it_over() {
        let mut turn = TurnLimit::default();
        turn.begin(at(0));
        assert!(!turn.hands_over(), "nobody asked whether it may go on");
        turn.may_continue(at(1));
        assert!(turn.hands_over());
    }
}
