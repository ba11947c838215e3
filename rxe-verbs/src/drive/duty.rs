//! Whose turn it is to watch the sockets: decisions only, made under the shard's lock.
//!
//! Invariant: packets that arrive are looked at by somebody within [`TICK`]: a leader sleeps on the
//! sockets, or the driver does ([`Interest::Receive`]), or the timer will wake the driver to look.

use std::time::Duration;

use rxe_core::types::Time;

/// How long after the last sign of a polling program the driver looks again.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// So many inline turns since the driver last looked mean that a program is polling.
const BUSY: u32 = 4;

/// For what the driver sleeps on the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Interest {
    /// Nothing: somebody else watches them.
    #[default]
    None,
    /// Packets.
    Receive,
    /// Packets, and room to send: a send was refused for lack of it.
    ReceiveAndSend,
}

/// What the driver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Sleep on the sockets for this.
    pub(super) interest: Interest,
    /// Look again at this time.
    pub(super) tick: Option<Time>,
}

impl Plan {
    const fn watch(interest: Interest) -> Self {
        Self { interest, tick: None }
    }

    /// Whether the driver is the one who watches the sockets.
    pub(super) fn watches(&self) -> bool {
        self.interest != Interest::None
    }

    fn look_again(now: Time) -> Self {
        Self { interest: Interest::None, tick: Some(now + TICK) }
    }
}

/// Who is there.
#[derive(Debug, Default)]
pub(super) struct Duty {
    /// Turns by others since the driver last looked.
    inline: u32,
    /// A waiting thread watches the sockets.
    leader: bool,
    /// Waiting threads, the leader among them.
    sleepers: usize,
    /// While there was a leader, a program armed a queue in order to sleep elsewhere.
    wanted: bool,
}

impl Duty {
    /// Somebody has turned the engine inline.
    pub(super) fn turned_inline(&mut self) {
        self.inline = self.inline.saturating_add(1);
    }

    /// A thread begins to wait.
    pub(super) fn enter(&mut self) {
        self.sleepers += 1;
    }

    /// The place of the leader, if it is free.
    pub(super) fn lead(&mut self) -> bool {
        !std::mem::replace(&mut self.leader, true)
    }

    /// Whether a waiting thread watches the sockets.
    pub(super) fn has_leader(&self) -> bool {
        self.leader
    }

    /// A thread has waited enough. If it led, somebody must follow: the driver at once where others
    /// sleep, else when it turns out that the thread does not come back.
    pub(super) fn leave(&mut self, led: bool, now: Time) -> Option<Plan> {
        self.sleepers -= 1;
        if !led {
            return None;
        }
        self.leader = false;
        let wanted = std::mem::take(&mut self.wanted);
        Some(if self.sleepers > 0 || wanted {
            Plan::watch(Interest::Receive)
        } else {
            Plan::look_again(now)
        })
    }

    /// A program has armed a queue and will sleep where this crate does not see it: its polling
    /// until now says nothing.
    pub(super) fn about_to_sleep(&mut self) -> Option<Plan> {
        self.inline = 0;
        self.wanted = self.leader;
        (!self.leader).then_some(Plan::watch(Interest::Receive))
    }

    /// The driver has woken, done what there was, and asks what to sleep on.
    pub(super) fn look(&mut self, blocked: bool, now: Time) -> Plan {
        let busy = std::mem::take(&mut self.inline) >= BUSY;
        if blocked {
            Plan::watch(Interest::ReceiveAndSend)
        } else if self.leader {
            Plan::watch(Interest::None)
        } else if busy {
            Plan::look_again(now)
        } else {
            Plan::watch(Interest::Receive)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(5);
    const RECEIVE: Plan = Plan::watch(Interest::Receive);

    #[test]
    fn the_driver_watches_when_nobody_else_does() {
        let mut duty = Duty::default();
        assert_eq!(duty.look(false, NOW), RECEIVE);
        assert_eq!(duty.look(true, NOW).interest, Interest::ReceiveAndSend);
    }

    #[test]
    fn a_polling_program_has_the_sockets_until_it_stops() {
        let mut duty = Duty::default();
        (0..BUSY).for_each(|_| duty.turned_inline());
        let plan = duty.look(false, NOW);
        assert_eq!(plan, Plan { interest: Interest::None, tick: Some(NOW + TICK) });
        assert_eq!(duty.look(false, NOW + TICK), RECEIVE);
    }

    #[test]
    fn a_program_that_arms_and_sleeps_is_served_though_it_has_just_polled() {
        let mut duty = Duty::default();
        (0..100).for_each(|_| duty.turned_inline());
        assert_eq!(duty.about_to_sleep(), Some(RECEIVE));
        assert_eq!(duty.look(false, NOW), RECEIVE);
    }

    #[test]
    fn one_leads_and_when_it_leaves_somebody_follows() {
        let mut duty = Duty::default();
        duty.enter();
        duty.enter();
        assert!(duty.lead() && !duty.lead());
        assert_eq!(duty.look(false, NOW), Plan::watch(Interest::None));
        assert_eq!(duty.leave(true, NOW), Some(RECEIVE), "another sleeps");
        assert!(duty.lead());
        assert_eq!(duty.leave(true, NOW), Some(Plan::look_again(NOW)), "nobody does");
        assert_eq!(duty.look(false, NOW), RECEIVE);
    }

    #[test]
    fn who_armed_while_another_led_is_served_when_that_one_leaves() {
        let mut duty = Duty::default();
        duty.enter();
        assert!(duty.lead());
        assert_eq!(duty.about_to_sleep(), None, "the leader watches");
        assert_eq!(duty.leave(true, NOW), Some(RECEIVE));
    }
}
