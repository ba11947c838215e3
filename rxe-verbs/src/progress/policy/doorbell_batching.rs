//! When posted requests leave.
//!
//! If each request left immediately, a program that posts one at a time would pay a system call per
//! request. So in a stream a request waits for the next ones, and many leave in one call. A request
//! never waits where the program needs its answer to continue: at the beginning of a stream, in a
//! ping-pong, or with a solicited event.

use std::time::Duration;

use rxe_core::qp::QpHandle;
use rxe_core::queue::{SendFlags, SendRequest};
use rxe_core::types::Time;

/// The longest time that a request waits, not counting the time until the driver runs. In a long
/// stream the limit rises up to [`MAX_STREAM_WAIT`].
pub(in crate::progress) const MAX_POST_WAIT: Duration = Duration::from_micros(50);

/// The number of batches in a row after which requests may wait twice as long. Only batches count
/// that were sent before the driver's timer fired. In a virtual machine, setting a timer that fires
/// soon takes 18 µs, because the hypervisor must set one too; with a longer wait, a stream sets the
/// timer less often.
pub(in crate::progress) const BATCHES_IN_TIME: u32 = 16;

/// The longest time that a request of a long stream waits.
pub(in crate::progress) const MAX_STREAM_WAIT: Duration = Duration::from_micros(800);

/// The longest time between two posts of one stream.
const STREAM_GAP: Duration = Duration::from_micros(10);

/// The post of a stream from which on posts wait; those before leave immediately, each alone.
const STREAM_POSTS: u32 = 8;

/// The number of incomplete requests from which on a program does not wait for each answer.
const DEEP_QUEUE: u32 = 4;

/// The requests that a program has posted in one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Post {
    /// The approximate number of packets.
    pub(crate) packets: u32,
    /// The number of requests.
    pub(crate) requests: u32,
    /// Requests of the queue pair that are not complete, including these.
    pub(crate) incomplete: u32,
    /// The service is reliable: the peer acknowledges requests.
    pub(crate) acknowledged: bool,
    /// The post must leave immediately: it requests a solicited event, or belongs to a
    /// ping-pong.
    pub(crate) must_leave: bool,
}

impl Post {
    /// As many packets leave in one system call; fewer than these may wait.
    pub(in crate::progress) const MAX_PACKETS: u32 = 64;

    /// Adds a request of the same call.
    pub(crate) fn add(&mut self, request: &SendRequest) {
        // Assumes a path MTU of 1024; an estimate is enough.
        let packets = u32::try_from(request.payload.len() / 1024).unwrap_or(u32::MAX);
        self.packets = self.packets.saturating_add(packets).saturating_add(1);
        self.requests = self.requests.saturating_add(1);
        self.must_leave |= request.flags.contains(SendFlags::SOLICITED);
    }

    /// Adds what is known of the queue pair that it is posted on.
    pub(crate) fn on(self, qp: &QpHandle) -> Self {
        let acknowledged = qp.init().service.is_reliable();
        Self { incomplete: qp.sends_outstanding(), acknowledged, ..self }
    }

    /// Returns whether the post is too large to wait, or must leave.
    pub(in crate::progress) fn leaves_immediately(&self) -> bool {
        self.must_leave || self.packets >= Self::MAX_PACKETS
    }

    /// Returns whether the queue pair has no other outstanding request. Returns `false` for
    /// unreliable services, which complete requests when they leave.
    fn is_alone(&self) -> bool {
        self.acknowledged && self.incomplete <= self.requests
    }
}

/// Detects streams of posts.
#[derive(Debug, Default)]
pub(in crate::progress) struct DoorbellBatching {
    /// Posts in a row that belong to a stream.
    streak: u32,
    /// The time of the last post.
    last: Time,
    /// The program has polled since the last post.
    polled: bool,
    /// Packets have arrived since the last post.
    received: bool,
    /// The time since which requests wait.
    waiting: Option<Time>,
    /// Batches in a row that left before the driver's timer fired.
    in_time: u32,
}

impl DoorbellBatching {
    /// Returns whether a post at `now` may wait for the next post. No other post waits.
    pub(in crate::progress) fn posted(&mut self, post: &Post, now: Time) -> bool {
        let polled = std::mem::take(&mut self.polled);
        let follows = now.since(self.last) <= STREAM_GAP;
        let soon = polled || follows;
        // Unreliable services complete requests when they leave, and no packet answers them.
        let unanswered = !std::mem::take(&mut self.received) || post.incomplete >= DEEP_QUEUE;
        self.last = now;
        if polled && !follows && post.is_alone() {
            // All earlier requests were complete, so no arriving packet would cause a turn that
            // sends this one. The next posts may continue the stream.
            return false;
        }
        if !soon || (!unanswered && self.streak < STREAM_POSTS) {
            self.streak = 0;
            return false;
        }
        self.streak = (self.streak + 1).min(STREAM_POSTS);
        let waits = self.streak == STREAM_POSTS && !post.leaves_immediately();
        if waits {
            self.waiting = Some(now);
        }
        waits
    }

    /// Records that the batch is full: all waiting posts leave at `now` with this one.
    pub(in crate::progress) fn filled(&mut self, now: Time) {
        self.last = now;
        self.polled = true;
    }

    /// Records that the program has polled.
    pub(in crate::progress) fn polled(&mut self) {
        self.polled = true;
    }

    /// Records that packets have arrived.
    pub(in crate::progress) fn received(&mut self) {
        self.received = true;
    }

    /// Returns how long requests may wait that begin to wait now.
    pub(in crate::progress) fn max_wait(&self) -> Duration {
        let doubled = MAX_POST_WAIT * (1 << (self.in_time / BATCHES_IN_TIME).min(8));
        doubled.min(MAX_STREAM_WAIT)
    }

    /// Records that the driver's timer for waiting requests has fired: the stream has ended.
    pub(in crate::progress) fn timed_out(&mut self) {
        self.in_time = 0;
        if self.waiting.take().is_some() {
            self.streak = 0;
        }
    }

    /// Records that the waiting requests leave at `now`.
    pub(in crate::progress) fn left(&mut self, now: Time) {
        let Some(since) = self.waiting.take() else { return };
        if now.since(since) >= self.max_wait() {
            // No post followed in time: the stream has ended.
            (self.streak, self.in_time) = (0, 0);
        } else {
            self.in_time = self.in_time.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Post =
        Post { packets: 1, requests: 1, incomplete: 2, acknowledged: true, must_leave: false };
    const ALONE: Post = Post { incomplete: 1, ..SMALL };

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    /// Returns a detector that has seen a stream until 1 ms.
    fn streaming() -> DoorbellBatching {
        let mut batching = DoorbellBatching { last: at(1_000), ..DoorbellBatching::default() };
        for i in 1..STREAM_POSTS {
            assert!(!batching.posted(&SMALL, at(1_000)), "post {i}");
        }
        batching
    }

    #[test]
    fn posts_wait_once_a_stream_is_seen() {
        let mut batching = streaming();
        assert!(batching.posted(&SMALL, at(1_001)));
        batching.left(at(1_005));
        assert!(batching.posted(&SMALL, at(1_006)));
        // Posting a full batch took long.
        batching.filled(at(1_046));
        batching.left(at(1_047));
        assert!(batching.posted(&SMALL, at(1_060)));
        batching.left(at(1_065));
        // The window is full, and the program polls until there is room again.
        batching.polled();
        batching.received();
        assert!(batching.posted(&SMALL, at(1_500)));
    }

    #[test]
    fn a_post_now_and_then_leaves_at_once() {
        let mut batching = DoorbellBatching::default();
        for i in 1..100 {
            assert!(!batching.posted(&SMALL, at(100 * i)));
        }
        let mut batching = streaming();
        assert!(batching.posted(&SMALL, at(1_001)));
        batching.left(at(1_005));
        assert!(!batching.posted(&SMALL, at(1_100)), "the stream has ended");
    }

    #[test]
    fn after_a_stream_and_its_last_completion_the_next_post_leaves_at_once() {
        let ended = || {
            let mut batching = streaming();
            assert!(batching.posted(&SMALL, at(1_001)));
            batching.left(at(1_005));
            batching.received();
            batching.polled();
            batching
        };
        let mut batching = ended();
        assert!(!batching.posted(&ALONE, at(2_000)));
        assert!(batching.posted(&SMALL, at(2_001)), "the stream goes on");
        assert!(ended().posted(&ALONE, at(1_010)), "it comes soon enough to go on with the stream");
        let unreliable = Post { acknowledged: false, incomplete: 0, ..ALONE };
        assert!(ended().posted(&unreliable, at(2_000)));
    }

    #[test]
    fn a_ping_pong_leaves_at_once() {
        // Each post answers a message, whether the program polls the completion queue or its
        // memory.
        for polls in [false, true] {
            let mut batching = DoorbellBatching::default();
            for i in 1..100 {
                batching.received();
                if polls {
                    batching.polled();
                }
                assert!(!batching.posted(&ALONE, at(2 * i)), "post {i}, polls: {polls}");
            }
        }
    }

    #[test]
    fn a_deep_queue_is_a_stream_though_acknowledgements_come() {
        let mut batching = DoorbellBatching::default();
        let deep = Post { incomplete: DEEP_QUEUE, ..SMALL };
        let waits = (1..100).find(|&i| {
            batching.received();
            batching.posted(&deep, at(i))
        });
        assert_eq!(waits, Some(u64::from(STREAM_POSTS)));
    }

    #[test]
    fn what_waited_in_vain_ends_the_stream() {
        let mut batching = streaming();
        assert!(batching.posted(&SMALL, at(1_001)));
        batching.left(at(1_001) + MAX_POST_WAIT);
        assert!(!batching.posted(&SMALL, at(1_052)));
    }

    #[test]
    fn a_long_stream_may_wait_longer_until_the_timer_has_ended_it() {
        let mut batching = streaming();
        let mut waits = Vec::new();
        for i in 0..6 * u64::from(BATCHES_IN_TIME) {
            waits.push(batching.max_wait().as_micros());
            assert!(batching.posted(&SMALL, at(1_001 + 2 * i)));
            batching.left(at(1_002 + 2 * i));
        }
        let expected = [50, 100, 200, 400, 800, 800].map(|wait| [wait; BATCHES_IN_TIME as usize]);
        assert_eq!(waits, expected.concat());
        assert!(batching.posted(&SMALL, at(1_200)));
        batching.timed_out();
        assert_eq!(batching.max_wait(), MAX_POST_WAIT);
        assert!(!batching.posted(&SMALL, at(1_201)), "the stream begins anew");
    }

    #[test]
    fn what_is_urgent_or_large_leaves_at_once() {
        let mut batching = streaming();
        assert!(!batching.posted(&Post { must_leave: true, ..SMALL }, at(1_001)));
        assert!(!batching.posted(&Post { packets: Post::MAX_PACKETS, ..SMALL }, at(1_002)));
        assert!(batching.posted(&SMALL, at(1_003)));
    }
}
