//! How long a turn may be. A turn holds the shard's lock, so its length is what every other user of
//! the shard waits for: other queue pairs of the same engine, `ibv_modify_qp`, the driver.
//!
//! A turn is bounded in steps and in time. A step is one batch sent or one read of the sockets. A
//! peer that asks for a gigabyte by READ gets it in many turns.

use std::time::Duration;

use rxe_core::types::Time;

/// Batches sent and reads of the sockets in one turn.
pub(super) const MAX_STEPS: u32 = 16;

/// After this time a turn takes no further step. A step is up to 512 KiB, which takes some 0.1 ms on
/// an idle machine.
pub(super) const MAX_TIME: Duration = Duration::from_micros(250);

/// What a turn has used up.
#[derive(Debug, Default)]
pub(in crate::progress) struct TurnLimit {
    steps: u32,
    /// When the first step began.
    since: Option<Time>,
    /// The time, where this turn has just asked for it.
    noted: Option<Time>,
}

impl TurnLimit {
    /// One step: for a caller of a verb, when the driver is busy with a long transfer anyway.
    pub(in crate::progress) fn one_step() -> Self {
        Self { steps: MAX_STEPS - 1, ..Self::default() }
    }

    /// The turn has asked for the time, for a few packets: what follows need not ask again.
    pub(in crate::progress) fn note(&mut self, now: Option<Time>) {
        self.noted = now;
    }

    /// The time that was noted, once.
    pub(in crate::progress) fn noted(&mut self) -> Option<Time> {
        self.noted.take()
    }

    /// A step begins at `now`.
    pub(in crate::progress) fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// A step has ended at `now`. Whether the turn may take another one.
    pub(in crate::progress) fn goes_on(&mut self, now: Time) -> bool {
        self.steps += 1;
        let since = *self.since.get_or_insert(now);
        self.steps < MAX_STEPS && now.since(since) < MAX_TIME
    }

    /// Whether the turn was long enough that waiting threads must get the lock before this thread
    /// can have it again. Handing a lock over costs a context switch, so short turns do not.
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
        let steps = (1..).find(|_| !turn.goes_on(at(7)));
        assert_eq!(steps, Some(MAX_STEPS));
    }

    #[test]
    fn a_turn_of_slow_steps_ends_after_its_time() {
        let mut turn = TurnLimit::default();
        turn.begin(at(100));
        assert!(turn.goes_on(at(200)));
        turn.begin(at(200));
        assert!(turn.goes_on(at(349)));
        assert!(!turn.goes_on(at(350)));
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
        assert!(!turn.goes_on(at(0)));
        assert!(turn.hands_over());
    }

    #[test]
    fn a_turn_of_one_step_keeps_the_lock_and_a_longer_one_hands_it_over() {
        let mut turn = TurnLimit::default();
        turn.begin(at(0));
        assert!(!turn.hands_over(), "nobody asked whether it may go on");
        turn.goes_on(at(1));
        assert!(turn.hands_over());
    }
}
