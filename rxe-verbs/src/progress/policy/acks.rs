//! When acknowledgements leave.
//!
//! If the acknowledgement of a polled message waits for the program's answer, both leave in one
//! datagram. In a ping-pong that saves one system call per message. Anywhere else waiting is a
//! risk: if the program ends meanwhile, its peer never learns that the message has arrived.

use std::time::Duration;

use rxe_core::types::Time;

/// When the acknowledgement of a message leaves that a program receives by polling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckPolicy {
    /// Before the poll returns, except in a ping-pong: then up to a millisecond later, with the
    /// program's answer. A program that ends by returning from `main`, by `exit` or by a panic
    /// sends waiting acknowledgements.
    #[default]
    Adaptive,
    /// Always before the program is told of the message, like a network card. However the program
    /// ends, every message that it was told of is acknowledged. Costs one more system call per
    /// message in a ping-pong.
    Prompt,
}

/// The number of answers in a row that make a ping-pong. Each answers a message that has just
/// arrived.
const PING_PONG_ANSWERS: u32 = 8;

/// The longest time for which waiting for an answer is worthwhile.
pub(super) const AT_ONCE: Duration = Duration::from_micros(50);

/// Detects ping-pongs.
#[derive(Debug, Default)]
pub(in crate::progress) struct PingPong {
    policy: AckPolicy,
    /// The number of answers in a row.
    streak: u32,
    /// When the unanswered message arrived. `None` after an answer or a poll in vain.
    open: Option<Time>,
    /// The message arrived while a post waited for it. So the program has not polled for it yet.
    in_a_post: bool,
}

impl PingPong {
    pub(in crate::progress) fn new(policy: AckPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Returns whether acknowledgements wait for the program's answer. A poll has received a
    /// message at `now`, and there is nothing else to send.
    pub(in crate::progress) fn defers_acks(&mut self, now: Time) -> bool {
        if self.policy == AckPolicy::Prompt {
            return false;
        }
        self.in_a_post = false;
        if self.open.replace(now).is_some() {
            // The previous message was not answered.
            self.streak = 0;
        }
        self.streak >= PING_PONG_ANSWERS
    }

    /// Records that the program has posted a request at `now`.
    pub(in crate::progress) fn posted(&mut self, now: Time) {
        if let Some(since) = self.open.take() {
            let at_once = now.since(since) <= AT_ONCE;
            self.streak = if at_once { (self.streak + 1).min(PING_PONG_ANSWERS) } else { 0 };
        }
    }

    /// Records that a post has waited for the last message.
    pub(in crate::progress) fn came_in_a_post(&mut self) {
        self.in_a_post = self.open.is_some();
    }

    /// Records a poll that found nothing. Returns whether acknowledgements continue to wait: if a
    /// post has waited for the message, the first poll after it does not end a ping-pong.
    pub(in crate::progress) fn polled_in_vain(&mut self) -> bool {
        let first = std::mem::take(&mut self.in_a_post);
        if !first {
            self.not_answered();
        }
        first
    }

    /// Records that acknowledgements had to leave without an answer.
    pub(in crate::progress) fn not_answered(&mut self) {
        if self.open.take().is_some() {
            self.streak = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    /// Returns a detector that has seen a ping-pong.
    fn seen() -> PingPong {
        let mut ping_pong = PingPong::default();
        for round in 0..u64::from(PING_PONG_ANSWERS) {
            assert!(!ping_pong.defers_acks(at(10 * round)), "round {round}");
            ping_pong.posted(at(10 * round + 5));
        }
        ping_pong
    }

    #[test]
    fn acknowledgements_wait_once_a_ping_pong_is_seen() {
        let mut ping_pong = seen();
        assert!(ping_pong.defers_acks(at(1_000)));
        ping_pong.posted(at(1_001));
        assert!(ping_pong.defers_acks(at(1_010)));
    }

    #[test]
    fn a_poll_in_vain_ends_the_ping_pong() {
        let mut ping_pong = seen();
        ping_pong.not_answered();
        assert!(
            ping_pong.defers_acks(at(1_000)),
            "a poll between an answer and the next message is part of it"
        );
        assert!(!ping_pong.polled_in_vain());
        assert!(!ping_pong.defers_acks(at(1_010)));
    }

    #[test]
    fn the_first_poll_after_a_post_that_waited_does_not_end_it() {
        let mut ping_pong = seen();
        for round in 0..10 {
            assert!(ping_pong.defers_acks(at(1_000 + 10 * round)));
            ping_pong.came_in_a_post();
            assert!(ping_pong.polled_in_vain());
            ping_pong.posted(at(1_005 + 10 * round));
        }
        assert!(ping_pong.defers_acks(at(1_100)));
        ping_pong.came_in_a_post();
        assert!(ping_pong.polled_in_vain());
        assert!(!ping_pong.polled_in_vain(), "the second one does");
        assert!(!ping_pong.defers_acks(at(1_110)));
    }

    #[test]
    fn a_stream_is_no_ping_pong() {
        let mut ping_pong = seen();
        assert!(ping_pong.defers_acks(at(1_000)));
        assert!(!ping_pong.defers_acks(at(1_001)), "the message before was not answered");
        ping_pong.posted(at(1_002));
        assert!(!ping_pong.defers_acks(at(1_003)));
    }

    #[test]
    fn an_answer_that_takes_its_time_is_no_ping_pong() {
        let mut ping_pong = seen();
        assert!(ping_pong.defers_acks(at(1_000)));
        ping_pong.posted(at(1_001) + AT_ONCE);
        assert!(!ping_pong.defers_acks(at(2_000)));
    }

    #[test]
    fn prompt_acknowledgements_never_wait() {
        let mut ping_pong = PingPong::new(AckPolicy::Prompt);
        for round in 0..100 {
            assert!(!ping_pong.defers_acks(at(10 * round)));
            ping_pong.posted(at(10 * round + 1));
        }
    }
}
