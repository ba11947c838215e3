//! When a post waits for the peer's reply.
//!
//! A program may detect a message by polling its memory, which the peer writes to. While it polls
//! memory it calls no verb, so the driver must run for each message, often on the CPU that the
//! program keeps busy. But in a ping-pong the program's next call is a post, and after it the
//! program can only wait for the reply. So the post itself turns the engine until the reply has
//! arrived.

use std::time::Duration;

use rxe_core::types::Time;

use super::acks::AT_ONCE;

/// The longest time that a post waits for a reply. Longer than a message waits where only the
/// driver checks for it ([`super::TICK`]): an end that has not detected the ping-pong yet must not
/// end it for the other end.
pub(in crate::progress) const MAX_REPLY_WAIT: Duration = Duration::from_millis(2);

/// The score from which on rounds are taken for a ping-pong.
const PING_PONG_SCORE: u32 = 8;

/// The highest score. It is high enough that one incident, such as a thread that loses its CPU,
/// does not end a ping-pong.
const MAX_SCORE: u32 = 16;

/// Subtracted from the score for each round that does not fit a ping-pong.
const PENALTY: u32 = 4;

/// How long a post waits for another thread's turn to end: long enough for a whole turn and a delay
/// of the scheduler. A test waits for the end itself.
const MAX_TURN_WAIT: Duration =
    if cfg!(test) { Duration::from_secs(60) } else { Duration::from_millis(1) };

/// How many posts in a row may wait in vain for another thread's turn.
const MAX_VAIN_WAITS: u32 = 16;

/// The limit for an immediate answer on a single CPU: the program continues only when other threads
/// let it, some ticks of the scheduler later.
const AT_ONCE_SINGLE_CPU: Duration = Duration::from_millis(10);

/// Detects ping-pongs on a queue pair whose program polls memory. A round is some posts and the
/// messages that answer them.
#[derive(Debug, Default)]
pub(crate) struct ReplyPredictor {
    /// The message sequence number at the last post.
    msn: Option<u32>,
    /// The number of posts in this round.
    posts: u32,
    /// The numbers of posts and messages in the previous round.
    last: (u32, u32),
    /// When this round began.
    began: Time,
    /// The evidence for a ping-pong. Rises by 1 for each round that is like the previous one and
    /// began soon after the last packet, and falls by [`PENALTY`] for each other round.
    score: u32,
    /// Posts that have waited for another thread's turn since the score last rose.
    vain_waits: u32,
}

/// The state of the queue pair when a program posts.
#[derive(Clone, Copy, Debug)]
pub(in crate::progress) struct PostContext {
    /// The number of messages that the queue pair has received, modulo 2^24.
    pub(in crate::progress) msn: u32,
    /// When the last packet arrived.
    pub(in crate::progress) received: Time,
    /// When the post was made.
    pub(in crate::progress) now: Time,
    /// The thread's previous post that could wait for a reply was on the same queue pair.
    pub(in crate::progress) sole: bool,
    /// All threads of the process share one CPU.
    pub(in crate::progress) single_cpu: bool,
}

impl ReplyPredictor {
    /// Returns how long this post may wait for another thread's turn. After the turn it is known
    /// how many messages have arrived: a program that polls its memory often sees a message, and
    /// answers it, before the driver's turn that delivered it has ended. Returns `None` if such
    /// waits were in vain too often.
    pub(in crate::progress) fn turn_wait(&mut self) -> Option<Duration> {
        let may = self.vain_waits < MAX_VAIN_WAITS;
        self.vain_waits += u32::from(may);
        may.then_some(MAX_TURN_WAIT)
    }

    /// Records a post. Returns how many messages to wait for, if any.
    pub(in crate::progress) fn posted(&mut self, post: &PostContext) -> Option<u32> {
        let before = self.msn.replace(post.msn).unwrap_or(post.msn);
        let messages = messages(before, post.msn);
        if messages > 0 {
            let round = (self.posts, messages);
            let alike = std::mem::replace(&mut self.last, round) == round;
            let began = std::mem::replace(&mut self.began, post.now);
            // Where everything takes longer, the program may too: on a busy or slow processor. But a
            // thread that posts on several queue pairs may have other replies to expect.
            let part = (post.now.since(began) * 3 / 4).min(MAX_REPLY_WAIT / 2);
            let at_once = match post {
                PostContext { single_cpu: true, .. } => AT_ONCE_SINGLE_CPU,
                PostContext { sole: true, .. } => AT_ONCE.max(part),
                _ => AT_ONCE,
            };
            if alike && post.now.since(post.received) <= at_once {
                self.score = (self.score + 1).min(MAX_SCORE);
                self.vain_waits = 0;
            } else {
                self.missed();
            }
            self.posts = 0;
        }
        self.posts = self.posts.saturating_add(1);
        let (posts, messages) = self.last;
        (self.is_ping_pong() && self.posts == posts).then_some(messages)
    }

    /// Returns whether the queue pair is in a ping-pong. Then no post may wait for the next one.
    pub(crate) fn is_ping_pong(&self) -> bool {
        self.score >= PING_PONG_SCORE
    }

    /// Lowers the score: the reply did not arrive within [`MAX_REPLY_WAIT`], or a round did not fit
    /// a ping-pong.
    pub(in crate::progress) fn missed(&mut self) {
        self.score = self.score.saturating_sub(PENALTY);
    }
}

/// Returns how many messages arrived between two message sequence numbers.
pub(in crate::progress) fn messages(before: u32, after: u32) -> u32 {
    after.wrapping_sub(before) & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    fn post(predictor: &mut ReplyPredictor, msn: u32, think: u64) -> Option<u32> {
        let (received, now) = (at(100), at(100 + think));
        let msn = msn & 0xff_ffff;
        predictor.posted(&PostContext { msn, received, now, sole: true, single_cpu: false })
    }

    /// Plays rounds of posts and messages. The program takes `think` microseconds to answer.
    /// Returns how many messages each post of the last round waits for.
    fn play(
        predictor: &mut ReplyPredictor,
        rounds: u32,
        round: (u32, u32),
        think: u64,
    ) -> Vec<Option<u32>> {
        let mut waits = Vec::new();
        for _ in 0..rounds {
            let msn = predictor.msn.unwrap_or(0xff_fffa) + round.1;
            waits = (0..round.0).map(|_| post(predictor, msn, think)).collect();
        }
        waits
    }

    /// Returns a predictor that has just detected a ping-pong.
    fn seen() -> ReplyPredictor {
        let mut predictor = ReplyPredictor::default();
        // The first two rounds show what a round is.
        assert_eq!(play(&mut predictor, PING_PONG_SCORE + 1, (1, 1), 5), [None]);
        assert_eq!(play(&mut predictor, 1, (1, 1), 5), [Some(1)]);
        predictor
    }

    #[test]
    fn a_post_waits_once_a_ping_pong_is_seen() {
        assert!(seen().is_ping_pong());
    }

    #[test]
    fn the_last_post_of_a_round_waits_for_all_its_answers() {
        let mut predictor = ReplyPredictor::default();
        play(&mut predictor, PING_PONG_SCORE + 1, (3, 2), 5);
        assert_eq!(play(&mut predictor, 1, (3, 2), 5), [None, None, Some(2)]);
        let msn = predictor.msn.unwrap();
        assert_eq!(post(&mut predictor, msn, 5), None, "one more");
        assert_eq!(play(&mut predictor, 1, (3, 2), 5), [None, None, None]);
    }

    #[test]
    fn posts_wait_for_a_turn_while_rounds_are_alike() {
        let mut predictor = ReplyPredictor::default();
        for _ in 0..10 {
            (0..MAX_VAIN_WAITS - 1).for_each(|_| assert!(predictor.turn_wait().is_some()));
            play(&mut predictor, 4, (1, 1), 5);
        }
        // A stream: no message arrives, or each round differs.
        (0..MAX_VAIN_WAITS).for_each(|_| assert!(predictor.turn_wait().is_some()));
        play(&mut predictor, 1, (7, 3), 5);
        assert_eq!(predictor.turn_wait(), None);
    }

    #[test]
    fn a_stream_is_no_ping_pong_in_either_direction_or_in_both() {
        let mut predictor = ReplyPredictor::default();
        (0..1000).for_each(|_| assert_eq!(post(&mut predictor, 5, 0), None));
        for i in 0..1000 {
            // Posts and messages come in batches of all sizes.
            let round = (1 + i % 7, 1 + i % 5);
            assert!(play(&mut predictor, 1, round, 0).iter().all(Option::is_none), "{i}");
        }
    }

    #[test]
    fn a_program_that_does_other_things_first_does_not_wait() {
        let mut predictor = ReplyPredictor::default();
        assert_eq!(play(&mut predictor, 100, (1, 1), 51), [None]);
        assert_eq!(play(&mut seen(), 1, (1, 1), 51), [None]);
    }

    #[test]
    fn where_rounds_take_long_a_post_may_come_later() {
        let waits = |period, think, sole| {
            let mut predictor = ReplyPredictor::default();
            let mut waits = None;
            for msn in 1..=2 * PING_PONG_SCORE {
                let received = at(period * u64::from(msn));
                let now = received + Duration::from_micros(think);
                let post = PostContext { msn, received, now, sole, single_cpu: false };
                waits = predictor.posted(&post);
            }
            waits
        };
        assert_eq!(waits(200, 149, true), Some(1));
        assert_eq!(waits(200, 151, true), None);
        assert_eq!(waits(1_000_000, 1_001, true), None, "it does other things");
        assert_eq!(waits(200, 50, false), Some(1));
        assert_eq!(waits(200, 51, false), None, "it may expect other replies");
    }

    #[test]
    fn a_single_late_answer_does_not_end_a_long_ping_pong() {
        let mut predictor = seen();
        play(&mut predictor, MAX_SCORE, (1, 1), 5);
        assert_eq!(play(&mut predictor, 1, (1, 1), 51), [Some(1)]);
        play(&mut predictor, 3, (1, 1), 51);
        assert!(!predictor.is_ping_pong());
    }

    #[test]
    fn on_a_single_cpu_the_program_need_not_go_on_at_once() {
        let mut predictor = ReplyPredictor::default();
        let mut waits = None;
        for msn in 0..=PING_PONG_SCORE + 2 {
            let (received, now) = (at(0), at(9_999));
            let post = PostContext { msn, received, now, sole: false, single_cpu: true };
            waits = predictor.posted(&post);
        }
        assert_eq!(waits, Some(1));
    }

    #[test]
    fn an_answer_that_does_not_come_ends_the_waiting_for_a_while() {
        let mut predictor = seen();
        predictor.missed();
        assert_eq!(play(&mut predictor, PENALTY - 1, (1, 1), 5), [None]);
        assert_eq!(play(&mut predictor, 1, (1, 1), 5), [Some(1)]);
    }
}
