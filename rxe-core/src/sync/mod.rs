//! What threads share: atomics, locks and lock-free queues, all by way of this module, so that the
//! models in `sync/models.rs` can put loom's in their place and try every order of steps that the
//! memory model allows. docs/en/project/testing.md says how to run them.

#[cfg(not(loom))]
mod cell;
#[cfg(loom)]
mod modelled;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod read_mostly;

#[cfg(loom)]
pub(crate) use modelled::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, Cell, Mutex, Ordering, ReadMostly, ReadMostlyGuard,
    RwLock, SegQueue, fence,
};

#[cfg(not(loom))]
pub(crate) use {
    cell::Cell,
    crossbeam_queue::SegQueue,
    parking_lot::{Mutex, RwLock},
    read_mostly::{ReadMostly, ReadMostlyGuard},
    std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
