//! The progress policy: decisions only. Nothing here reads a clock, takes a lock or makes a system
//! call, so all of it is tested in virtual time. `docs/en/project/decisions/017-progress-policy.md` gives the
//! reasons.
//!
//! - [`acks`]: when acknowledgements leave.
//! - [`reply_predictor`]: when a post waits for the peer's reply.
//! - [`doorbell_batching`]: when posted requests leave.
//! - [`watchers`]: which thread watches the sockets: a poller, a waiting thread (the leader) or the
//!   driver.
//! - [`turn`]: how long a turn may be.
//! - [`timers`]: when timers run, and when silence is not the peer's.
//! - [`polling`]: when the driver polls instead of sleeping.
//!
//! Guarantees, as long as the process runs and the socket accepts packets (`progress/invariants.rs`
//! checks them with random programs in virtual time):
//!
//! 1. A posted request leaves before the call returns, unless it continues a stream: it is at least
//!    the eighth post in a row that came within 10 µs of the previous one, after a poll, or after a
//!    full batch. A request that follows no other within 10 µs also leaves if it comes after a poll
//!    that found the last completion of a reliable queue pair.
//! 2. A waiting request leaves within [`MAX_POST_WAIT`]. After each 16 batches in a row that left
//!    before the driver's timer fired, this limit doubles, up to [`MAX_STREAM_WAIT`]. Fewer than
//!    [`Post::MAX_PACKETS`] packets wait. A request with a solicited event, or with
//!    [`Post::MAX_PACKETS`] packets itself, never waits.
//! 3. At the end of every turn, whichever thread takes it, no request waits.
//! 4. The acknowledgement of a message leaves before the poll returns that received the message,
//!    unless the eight messages before were each answered within 50 µs. Then it leaves with the
//!    next post, at the next poll, or after [`TICK`]. It never waits under [`AckPolicy::Prompt`],
//!    or if the peer is on this host.
//! 5. Packets are read within [`TICK`] plus the time of two turns after their arrival.
//! 6. A turn takes at most 16 steps, and begins no step after 0.25 ms. The driver continues with
//!    what is left.
//! 7. Timers run after all available input has been read. An answer that has arrived, and time in
//!    which the process did not run, never count as silence of the peer.
//! 8. A post waits for a reply only after eight rounds of a ping-pong, and [`MAX_REPLY_WAIT`] at
//!    most.
//! 9. While there is nothing to do, no timer is set, and the driver sleeps on the sockets.

mod acks;
mod doorbell_batching;
mod polling;
mod reply_predictor;
mod timers;
mod turn;
mod watchers;

pub use acks::AckPolicy;
pub(super) use acks::PingPong;
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
