//! When posted requests leave.
//!
//! A program that posts one request at a time pays a system call for each if each leaves at once. So a
//! request waits for those that follow it, if the program is in the middle of a stream: many leave
//! together, in one call. A request never waits where its answer is what the program needs to go on: at
//! the beginning of a stream, in a ping-pong, or with a solicited event.

use std::time::Duration;

use rxe_core::qp::QpHandle;
use rxe_core::queue::{SendFlags, SendRequest};
use rxe_core::types::Time;

/// No request waits longer than this, but for the time until the driver runs; in a long stream not longer
/// than [`MAX_STREAM_WAIT`].
pub(in crate::progress) const MAX_POST_WAIT: Duration = Duration::from_micros(50);

/// After so many batches in a row that left before the driver's timer went off, those that follow may wait
/// twice as long. Setting a timer that goes off soon takes 18 µs in a virtual machine, because its
/// hypervisor has to set it; a stream then has to set it less often.
pub(in crate::progress) const BATCHES_IN_TIME: u32 = 16;

/// No request of a long stream waits longer than this.
pub(in crate::progress) const MAX_STREAM_WAIT: Duration = Duration::from_micros(800);

/// Posts that follow one another within this time are one stream.
const STREAM_GAP: Duration = Duration::from_micros(10);

/// This many posts of a stream leave at once, each alone.
const STREAM_POSTS: u32 = 8;

/// A connected queue pair with this many incomplete requests does not wait for answers one by one.
const DEEP_QUEUE: u32 = 4;

/// What a program has posted in one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Post {
    /// About how many packets it is.
    pub(crate) packets: u32,
    /// How many requests these are.
    pub(crate) requests: u32,
    /// Requests of the queue pair that are not complete, these included.
    pub(crate) incomplete: u32,
    /// Its peer acknowledges requests.
    pub(crate) acknowledged: bool,
    /// It must leave now.
    pub(crate) urgent: bool,
}

impl Post {
    /// Packets that wait at most: as many as leave in one call of the system.
    pub(in crate::progress) const MAX_PACKETS: u32 = 64;

    /// One more request of the same call.
    pub(crate) fn add(&mut self, request: &SendRequest) {
        // At the usual path MTU. More exact it need not be.
        let packets = u32::try_from(request.payload.len() / 1024).unwrap_or(u32::MAX);
        self.packets = self.packets.saturating_add(packets).saturating_add(1);
        self.requests = self.requests.saturating_add(1);
        self.urgent |= request.flags.contains(SendFlags::SOLICITED);
    }

    /// The same, posted on this queue pair.
    pub(crate) fn on(self, qp: &QpHandle) -> Self {
        let acknowledged = qp.init().service.is_reliable();
        Self { incomplete: qp.sends_outstanding(), acknowledged, ..self }
    }

    /// Whether it is too much, or too urgent, to wait.
    pub(in crate::progress) fn goes_at_once(&self) -> bool {
        self.urgent || self.packets >= Self::MAX_PACKETS
    }

    /// Whether nothing else of the queue pair is on its way. Unreliable services complete requests when they
    /// leave, so of them this cannot be said.
    fn is_alone(&self) -> bool {
        self.acknowledged && self.incomplete <= self.requests
    }
}

/// Detects streams of posts.
#[derive(Debug, Default)]
pub(in crate::progress) struct DoorbellBatching {
    /// Posts in a row that belong to a stream.
    streak: u32,
    /// When the last post was seen.
    last: Time,
    /// Since then the program has polled.
    polled: bool,
    /// Since then packets have come.
    received: bool,
    /// Requests wait since then.
    waiting: Option<Time>,
    /// Batches in a row that left before the driver's timer went off.
    in_time: u32,
}

impl DoorbellBatching {
    /// The program posts at `now`, and nothing waits. Whether this may wait for the next post.
    pub(in crate::progress) fn posted(&mut self, post: &Post, now: Time) -> bool {
        let polled = std::mem::take(&mut self.polled);
        let follows = now.since(self.last) <= STREAM_GAP;
        let soon = polled || follows;
        // Unreliable services complete requests when they leave, and nothing answers them.
        let unanswered = !std::mem::take(&mut self.received) || post.incomplete >= DEEP_QUEUE;
        self.last = now;
        if polled && !follows && post.is_alone() {
            // All was complete: nothing that comes would send it. The stream may go on behind it.
            return false;
        }
        if !soon || (!unanswered && self.streak < STREAM_POSTS) {
            self.streak = 0;
            return false;
        }
        self.streak = (self.streak + 1).min(STREAM_POSTS);
        let waits = self.streak == STREAM_POSTS && !post.goes_at_once();
        if waits {
            self.waiting = Some(now);
        }
        waits
    }

    /// So many wait that all leave at `now`, with this post.
    pub(in crate::progress) fn filled(&mut self, now: Time) {
        self.last = now;
        self.polled = true;
    }

    /// The program has polled.
    pub(in crate::progress) fn polled(&mut self) {
        self.polled = true;
    }

    /// Packets have come.
    pub(in crate::progress) fn received(&mut self) {
        self.received = true;
    }

    /// How long requests may wait that begin to wait now.
    pub(in crate::progress) fn max_wait(&self) -> Duration {
        let doubled = MAX_POST_WAIT * (1 << (self.in_time / BATCHES_IN_TIME).min(8));
        doubled.min(MAX_STREAM_WAIT)
    }

    /// The driver's timer has gone off, which was set for requests that wait: the stream has ended.
    pub(in crate::progress) fn timed_out(&mut self) {
        self.in_time = 0;
        if self.waiting.take().is_some() {
            self.streak = 0;
        }
    }

    /// What waited leaves at `now`.
    pub(in crate::progress) fn left(&mut self, now: Time) {
        let Some(since) = self.waiting.take() else { return };
        if now.since(since) >= self.max_wait() {
            // It waited in vain.
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
        Post { packets: 1, requests: 1, incomplete: 2, acknowledged: true, urgent: false };
    const ALONE: Post = Post { incomplete: 1, ..SMALL };

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    /// One that has seen a stream until 1 ms.
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
        // That many took their time.
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
        // Each post answers what has come, whether the program polls or looks at its memory.
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
        assert!(!batching.posted(&Post { urgent: true, ..SMALL }, at(1_001)));
        assert!(!batching.posted(&Post { packets: Post::MAX_PACKETS, ..SMALL }, at(1_002)));
        assert!(batching.posted(&SMALL, at(1_003)));
    }
}
