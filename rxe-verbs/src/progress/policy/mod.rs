//! The progress policy: decisions only. Nothing here reads a clock, takes a lock or makes a system
//! call, so all of it is tested in virtual time. `docs/decisions/progress-policy.md` gives the
//! reasons.
//!
//! - [`watchers`]: who looks at the sockets: a poller, a waiting thread (the leader) or the driver.
//! - [`turn`]: how long a turn may be.
//! - [`polling`]: when the driver polls instead of sleeping.

mod polling;
mod turn;
mod watchers;

pub(super) use polling::AdaptivePolling;
pub(super) use turn::TurnLimit;
pub(super) use watchers::{Interest, Plan, TICK, Watchers};
