//! Decides which thread watches the sockets. All decisions are made under the shard's lock.
//!
//! Waiting threads follow the leader/follower pattern: one of them, the leader, sleeps on the
//! sockets; the others sleep until a completion is there for them.
//!
//! Invariant: some thread reads packets within [`TICK`] of their arrival. A leader sleeps on the
//! sockets, or the driver does ([`Interest::Receive`]), or a timer wakes the driver.

use std::time::Duration;

use rxe_core::types::Time;

/// The time after which the driver checks the sockets that it left to a polling program.
pub(in crate::progress) const TICK: Duration = Duration::from_millis(1);

/// Turns by others, since the driver last looked, from which on a program is polling.
const BUSY: u32 = 4;

/// The events of the sockets that wake the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::progress) enum Interest {
    /// None: another thread watches the sockets.
    #[default]
    None,
    /// Packets.
    Receive,
    /// Packets, and room to send, because a send found none.
    ReceiveAndSend,
}

/// The driver's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::progress) struct Plan {
    /// The socket events that wake the driver from now on.
    pub(in crate::progress) interest: Interest,
    /// When to check the sockets again.
    pub(in crate::progress) tick: Option<Time>,
}

impl Plan {
    const fn watch(interest: Interest) -> Self {
        Self { interest, tick: None }
    }

    /// Returns whether the driver watches the sockets.
    pub(in crate::progress) fn watches(&self) -> bool {
        self.interest != Interest::None
    }

    fn look_again(now: Time) -> Self {
        Self { interest: Interest::None, tick: Some(now + TICK) }
    }
}

/// The threads that make progress, as far as they are known.
#[derive(Debug, Default)]
pub(in crate::progress) struct Watchers {
    /// Turns by others since the driver last looked; at least [`BUSY`] after an awaited reply.
    inline: u32,
    /// Another thread has posted since the driver last looked.
    posted: bool,
    /// When the driver last saw that another thread had turned the engine or posted.
    called: Time,
    /// A waiting thread watches the sockets.
    leader: bool,
    /// Waiting threads: the leader and its followers.
    waiting: usize,
    /// While there was a leader, a program armed a queue in order to sleep outside this crate.
    wanted: bool,
}

impl Watchers {
    /// Records that a thread other than the driver has turned the engine.
    pub(in crate::progress) fn turned_inline(&mut self) {
        self.inline = self.inline.saturating_add(1);
    }

    /// Records that a post has waited until its reply arrived. So its thread polls, even if it took
    /// only one turn before the reply arrived, as on a single CPU.
    pub(in crate::progress) fn awaited_reply(&mut self) {
        self.inline = self.inline.max(BUSY);
    }

    /// Records that a thread other than the driver has posted.
    pub(in crate::progress) fn posted(&mut self) {
        self.posted = true;
    }

    /// Returns whether the driver has seen no other thread do anything for [`TICK`]. If the program
    /// waits for messages, it then polls its memory.
    pub(in crate::progress) fn driver_is_alone(&self, now: Time) -> bool {
        now.since(self.called) >= TICK
    }

    /// Records that a thread begins to wait.
    pub(in crate::progress) fn enter(&mut self) {
        self.waiting += 1;
    }

    /// Makes the calling thread the leader, if there is none.
    pub(in crate::progress) fn lead(&mut self) -> bool {
        !std::mem::replace(&mut self.leader, true)
    }

    /// Returns whether a waiting thread watches the sockets.
    pub(in crate::progress) fn has_leader(&self) -> bool {
        self.leader
    }

    /// Records that a thread stops waiting. If it was the leader, the driver must take over:
    /// immediately if other threads wait or the socket is full (`blocked`), otherwise if the thread
    /// does not return within [`TICK`].
    pub(in crate::progress) fn leave(
        &mut self,
        led: bool,
        blocked: bool,
        now: Time,
    ) -> Option<Plan> {
        self.waiting -= 1;
        if !led {
            return None;
        }
        self.leader = false;
        let wanted = std::mem::take(&mut self.wanted);
        Some(if blocked {
            Plan::watch(Interest::ReceiveAndSend)
        } else if self.waiting > 0 || wanted {
            Plan::watch(Interest::Receive)
        } else {
            Plan::look_again(now)
        })
    }

    /// Prepares for a program that has armed a queue and will sleep outside this crate. Returns the
    /// driver's next step, if it changes. Earlier polls no longer count, because the program may
    /// have stopped polling.
    pub(in crate::progress) fn about_to_sleep(&mut self) -> Option<Plan> {
        self.inline = 0;
        self.wanted = self.leader;
        (!self.leader).then_some(Plan::watch(Interest::Receive))
    }

    /// Returns the driver's next step, after it has woken and done the pending work.
    pub(in crate::progress) fn look(&mut self, blocked: bool, now: Time) -> Plan {
        let turns = std::mem::take(&mut self.inline);
        if std::mem::take(&mut self.posted) || turns > 0 {
            self.called = now;
        }
        let busy = turns >= BUSY;
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
        let mut watchers = Watchers::default();
        assert_eq!(watchers.look(false, NOW), RECEIVE);
        assert_eq!(watchers.look(true, NOW).interest, Interest::ReceiveAndSend);
    }

    #[test]
    fn the_driver_is_alone_while_no_other_thread_posts_or_polls() {
        let mut watchers = Watchers::default();
        let mut now = NOW;
        for call in [Watchers::posted, Watchers::turned_inline] {
            now = now + TICK;
            watchers.look(false, now);
            assert!(watchers.driver_is_alone(now));
            call(&mut watchers);
            watchers.look(false, now);
            // An acknowledgement wakes the driver before the next post.
            watchers.look(false, now + TICK / 2);
            assert!(!watchers.driver_is_alone(now + TICK / 2));
        }
    }

    #[test]
    fn a_polling_program_has_the_sockets_until_it_stops() {
        let mut watchers = Watchers::default();
        (0..BUSY).for_each(|_| watchers.turned_inline());
        let plan = watchers.look(false, NOW);
        assert_eq!(plan, Plan { interest: Interest::None, tick: Some(NOW + TICK) });
        assert_eq!(watchers.look(false, NOW + TICK), RECEIVE);
    }

    #[test]
    fn a_post_that_awaits_its_reply_has_the_sockets_after_a_single_turn() {
        let mut watchers = Watchers::default();
        watchers.turned_inline();
        watchers.awaited_reply();
        assert!(!watchers.look(false, NOW).watches());
        assert_eq!(watchers.look(false, NOW + TICK), RECEIVE, "it has stopped");
    }

    #[test]
    fn a_program_that_arms_and_sleeps_is_served_though_it_has_just_polled() {
        let mut watchers = Watchers::default();
        (0..100).for_each(|_| watchers.turned_inline());
        assert_eq!(watchers.about_to_sleep(), Some(RECEIVE));
        assert_eq!(watchers.look(false, NOW), RECEIVE);
    }

    #[test]
    fn one_leads_and_when_it_leaves_somebody_follows() {
        let mut watchers = Watchers::default();
        watchers.enter();
        watchers.enter();
        assert!(watchers.lead() && !watchers.lead());
        assert_eq!(watchers.look(false, NOW), Plan::watch(Interest::None));
        assert_eq!(watchers.leave(true, false, NOW), Some(RECEIVE), "another waits");
        assert!(watchers.lead());
        assert_eq!(watchers.leave(true, false, NOW), Some(Plan::look_again(NOW)), "nobody does");
        assert_eq!(watchers.look(false, NOW), RECEIVE);
    }

    #[test]
    fn a_full_socket_is_watched_when_the_leader_leaves() {
        for others in [0, 1] {
            let mut watchers = Watchers::default();
            (0..=others).for_each(|_| watchers.enter());
            assert!(watchers.lead());
            let plan = watchers.leave(true, true, NOW).unwrap();
            assert_eq!(plan.interest, Interest::ReceiveAndSend);
        }
    }

    #[test]
    fn a_program_that_armed_under_a_leader_is_served_when_the_leader_leaves() {
        let mut watchers = Watchers::default();
        watchers.enter();
        assert!(watchers.lead());
        assert_eq!(watchers.about_to_sleep(), None, "the leader watches");
        assert_eq!(watchers.leave(true, false, NOW), Some(RECEIVE));
    }
}
