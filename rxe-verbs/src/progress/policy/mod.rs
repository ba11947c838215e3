//! The progress policy: decisions only. Nothing here reads a clock, takes a lock or makes a system
//! call, so all of it is tested in virtual time. `docs/decisions/017-progress-policy.md` gives the
//! reasons.
//!
//! - [`acks`]: when acknowledgements leave.
//! - [`answers`]: when a post waits for the peer's answer.
//! - [`posts`]: when posted requests leave.
//! - [`watchers`]: who looks at the sockets: a poller, a waiting thread (the leader) or the driver.
//! - [`turn`]: how long a turn may be.
//! - [`timers`]: what runs before timers, and when silence is not the peer's.
//! - [`polling`]: when the driver polls instead of sleeping.

mod acks;
mod answers;
mod polling;
mod posts;
mod timers;
mod turn;
mod watchers;

pub use acks::AckPolicy;
pub(super) use acks::Acks;
pub(crate) use answers::Answers;
pub(super) use answers::{Asked, MAX_ANSWER_WAIT, messages};
pub(super) use polling::AdaptivePolling;
pub(crate) use posts::Post;
pub(super) use posts::{MAX_POST_WAIT, Posts};
pub(super) use timers::TimerGate;
pub(crate) use timers::Timers;
pub(super) use turn::TurnLimit;
pub(super) use watchers::{Interest, Plan, TICK, Watchers};
