//! The progress policy: decisions only. Nothing here reads a clock, takes a lock or makes a system
//! call, so all of it is tested in virtual time. `docs/en/project/decisions/017-progress-policy.md` gives the
//! reasons.
//!
//! - [`acks`]: when acknowledgements leave.
//! - [`reply_predictor`]: when a post waits for the peer's answer.
//! - [`doorbell_batching`]: when posted requests leave.
//! - [`watchers`]: who looks at the sockets: a poller, a waiting thread (the leader) or the driver.
//! - [`turn`]: how long a turn may be.
//! - [`timers`]: what runs before timers, and when silence is not the peer's.
//! - [`polling`]: when the driver polls instead of sleeping.
//!
//! What holds, as long as the process runs and the socket takes what is sent
//! (`progress/invariants.rs` has random programs check it in virtual time):
//!
//! 1. A posted request leaves before the call returns, unless it goes on with a stream: it is at least
//!    the eighth post in a row that came within 10 µs of the one before, after a poll, or after as many as
//!    leave in one call. A request that follows no other within 10 µs, after a poll that found the last
//!    completion of a reliable queue pair, leaves too.
//! 2. A request that waits leaves within [`MAX_POST_WAIT`]; after each 16 batches in a row that left before
//!    the driver's timer went off, within twice as long, and always within [`MAX_STREAM_WAIT`]. Fewer than
//!    [`Post::MAX_PACKETS`] packets wait. A request with a solicited event, or with so many packets itself,
//!    never waits.
//! 3. The end of every turn, whoever takes it, leaves no request waiting.
//! 4. The acknowledgement of a message leaves before the poll returns that has brought the message,
//!    unless eight answers were posted within 50 µs of their messages before. Then it leaves with the next
//!    post, at the next poll, or after [`TICK`]. It never waits under [`AckPolicy::Prompt`], or if the
//!    peer is on this host.
//! 5. Packets are read within [`TICK`] of their arrival and the time of two turns.
//! 6. A turn takes 16 steps, or 0.25 ms and the step that began within it. The driver goes on with what
//!    is left.
//! 7. Timers run after the input that has come. An answer that has come, and time in which the process
//!    did not run, are never taken for silence of the peer.
//! 8. A post waits for an answer only after eight rounds of a ping-pong, and [`MAX_REPLY_WAIT`] at most.
//! 9. While there is nothing to do, no timer is set, and the driver sleeps on the sockets.

mod acks;
mod doorbell_batching;
mod polling;
mod reply_predictor;
mod timers;
mod turn;
mod watchers;

pub use acks::AckPolicy;
pub(super) use acks::Acks;
pub(super) use doorbell_batching::DoorbellBatching;
pub(crate) use doorbell_batching::Post;
#[cfg(test)]
pub(super) use doorbell_batching::{BATCHES_IN_TIME, MAX_POST_WAIT, MAX_STREAM_WAIT};
pub(super) use polling::AdaptivePolling;
pub(crate) use reply_predictor::ReplyPredictor;
pub(super) use reply_predictor::{MAX_REPLY_WAIT, PostContext, messages};
pub(super) use timers::TimerGate;
pub(crate) use timers::Timers;
pub(super) use turn::TurnLimit;
pub(super) use watchers::{Interest, Plan, TICK, Watchers};
