//! When timers run: after the input, and not for time in which this process did not run.
//!
//! The driver's timer is always armed no later than the next deadline of the engine and the
//! connection manager. If a deadline is first noticed long after it has passed, no thread ran: the
//! process was stopped, or the host had no CPU for it. Packets that arrived meanwhile wait in the
//! sockets. They are read first; then every request that is still unanswered gets its full timeout
//! again. The same applies if no thread runs for long while a timer waits for input to be read.

use std::time::Duration;

use rxe_core::types::Time;

/// A ready thread runs within this time, on a host that is not overloaded.
pub(super) const SLACK: Duration = Duration::from_millis(4);

/// The longest time that timers wait for input to be read. A flood must not stop timers, and within
/// this time everything is read that had arrived before.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(20);

/// What to do about timers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Timers {
    /// No timer is due.
    #[default]
    None,
    /// A timer is due, but there may be input: check again in the next turn.
    Wait,
    /// Run those that are due.
    Run,
    /// This process did not run: first give outstanding requests their full timeout again.
    ExcuseAndRun,
}

/// Decides when timers run.
#[derive(Debug, Default)]
pub(in crate::progress) struct TimerGate {
    seen: Option<Seen>,
}

/// A timer that was noticed to be due, and waits for input to be read.
#[derive(Debug)]
struct Seen {
    /// When it was first noticed.
    since: Time,
    /// When it was last checked.
    last: Time,
    /// For a while before that, no thread of the process ran.
    late: bool,
}

impl TimerGate {
    /// Records that no timer is due.
    pub(in crate::progress) fn none_due(&mut self) {
        self.seen = None;
    }

    /// Returns what to do about timers at `now`. `deadline` is the earliest. `drained` is called
    /// only if it is due, and returns whether all input that has arrived was read.
    pub(in crate::progress) fn decide(
        &mut self,
        deadline: Option<Time>,
        now: Time,
        drained: impl FnOnce() -> bool,
    ) -> Timers {
        let Some(deadline) = deadline.filter(|&deadline| deadline <= now) else {
            self.none_due();
            return Timers::None;
        };
        let late = now.since(deadline) > SLACK;
        let seen = self.seen.get_or_insert(Seen { since: now, last: now, late });
        if !seen.late && now.since(seen.last) > SLACK {
            *seen = Seen { since: now, last: now, late: true };
        }
        seen.last = now;
        if now.since(seen.since) < MAX_WAIT && !drained() {
            return Timers::Wait;
        }
        let late = seen.late;
        self.seen = None;
        if late { Timers::ExcuseAndRun } else { Timers::Run }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_timer_runs_when_it_is_due_and_the_input_is_read() {
        let mut gate = TimerGate::default();
        assert_eq!(gate.decide(None, at(5), || true), Timers::None);
        let deadline = Some(at(1_000));
        assert_eq!(gate.decide(deadline, at(999), || true), Timers::None);
        assert_eq!(gate.decide(deadline, at(1_000), || false), Timers::Wait);
        // Reading the input takes long, but the process runs meanwhile.
        assert_eq!(gate.decide(deadline, at(4_000), || true), Timers::Run);
    }

    #[test]
    fn a_process_that_is_stopped_while_a_timer_waits_for_input_is_late() {
        let mut gate = TimerGate::default();
        let deadline = Some(at(1_000));
        assert_eq!(gate.decide(deadline, at(1_000), || false), Timers::Wait);
        assert_eq!(gate.decide(deadline, at(300_000), || false), Timers::Wait, "input comes first");
        assert_eq!(gate.decide(deadline, at(300_050), || true), Timers::ExcuseAndRun);
    }

    #[test]
    fn turns_that_are_always_long_do_not_stop_timers() {
        let mut gate = TimerGate::default();
        let mut now = at(1_000);
        while gate.decide(Some(at(1_000)), now, || false) == Timers::Wait {
            now = now + 2 * SLACK;
        }
        assert!(now <= at(1_000) + 2 * MAX_WAIT, "{now:?}");
    }

    #[test]
    fn a_timer_that_is_seen_late_means_that_this_process_did_not_run() {
        let mut gate = TimerGate::default();
        let deadline = Some(at(1_000));
        assert_eq!(gate.decide(deadline, at(300_000), || false), Timers::Wait);
        assert_eq!(gate.decide(deadline, at(300_050), || true), Timers::ExcuseAndRun);
        assert_eq!(gate.decide(Some(at(400_000)), at(400_100), || true), Timers::Run);
    }

    #[test]
    fn an_answer_that_comes_while_the_input_is_read_moves_the_deadline() {
        for known_to_be_far in [false, true] {
            let mut gate = TimerGate::default();
            assert_eq!(gate.decide(Some(at(1_000)), at(300_000), || false), Timers::Wait);
            if known_to_be_far {
                gate.none_due();
            } else {
                assert_eq!(gate.decide(Some(at(367_000)), at(300_010), || true), Timers::None);
            }
            assert_eq!(gate.decide(Some(at(367_000)), at(367_001), || true), Timers::Run);
        }
    }

    #[test]
    fn a_flood_does_not_stop_timers() {
        let mut gate = TimerGate::default();
        let mut now = at(1_000);
        while gate.decide(Some(at(1_000)), now, || false) == Timers::Wait {
            now = now + Duration::from_micros(100);
        }
        assert_eq!(now, at(1_000) + MAX_WAIT);
    }
}
