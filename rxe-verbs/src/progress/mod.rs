//! Who turns the engine, and when.
//!
//! A [`Shard`] is one engine and its way onto the wire behind one lock. There is no thread that all
//! work goes through: whoever is there and gets the lock does what there is to do.
//!
//! - A thread that *posts* turns the sending side, if the lock is free. If it is not, the holder
//!   sees the doorbell when it unlocks ([`Shard::answer_doorbells`] says why none is ever missed).
//! - A thread that *polls* and finds nothing turns everything, without blocking.
//! - A thread that *waits* sleeps on the sockets themselves and turns the engine when they become
//!   readable ([`Shard::sleep`]): of several, one, the leader.
//! - The *driver* thread sleeps on the sockets when none of these is there, and always on the timer
//!   that tells the engine's next deadline. So peers are served while the program computes or
//!   sleeps, and an idle process uses no CPU. While others poll or wait it leaves the sockets to
//!   them, and looks again a millisecond later ([`policy`]).
//!
//! Locks, in the order in which they may be taken: the shard's, then a completion queue's list of
//! waiters, then a channel's queue. Nothing is held while sleeping.

mod at_exit;
mod await_reply;
mod doorbells;
mod driver;
mod groups;
#[cfg(test)]
mod invariants;
mod manager;
mod owed;
mod policy;
mod qp1;
mod refuser;
mod shard;
mod sleep;
#[cfg(test)]
mod testing;
mod turn;
mod wakeup;

pub use at_exit::flush_before_exit;
pub(crate) use await_reply::POLLS_BEFORE_YIELD;
pub(crate) use driver::{Driver, Monitor};
pub(crate) use manager::{CmList, ConnectionManager};
pub use policy::AckPolicy;
pub(crate) use policy::{Post, ReplyPredictor, Timers};
pub(crate) use shard::{Shard, ShardParts, WakeAll};
pub(crate) use sleep::Waker;
pub(crate) use turn::Core;
pub(crate) use wakeup::Wakeup;
