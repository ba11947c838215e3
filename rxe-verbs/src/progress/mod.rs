//! Which thread turns the engine, and when. A *turn* receives, runs timers and sends, under the
//! lock.
//!
//! A [`Shard`] is one engine and its backend behind one lock. No single thread does all the work: a
//! thread that needs progress takes the lock, if it is free, and does the pending work.
//!
//! - A thread that *posts* sends, if the lock is free. If it is taken, the holder sees the doorbell
//!   after it unlocks ([`Shard::answer_doorbells`] says why no doorbell is missed).
//! - A thread that *polls* and finds no completion takes a whole turn, without blocking.
//! - A thread that *waits* sleeps on the sockets and turns the engine when they become readable
//!   ([`Shard::sleep`]). Of several waiting threads one, the leader, does this.
//! - The *driver* thread sleeps on the sockets while no thread polls or waits, and always on a
//!   timer set to the engine's next deadline. So peers are served while the program computes or
//!   sleeps, and an idle process uses no CPU. While other threads poll or wait, the driver leaves
//!   the sockets to them and checks again a millisecond later ([`policy`]).
//!
//! Locks, in the order in which they may be taken: the shard's, then a completion queue's list of
//! waiters, then a channel's queue. No thread sleeps with a lock held.

mod at_exit;
mod await_reply;
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
mod waiting_posts;
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
