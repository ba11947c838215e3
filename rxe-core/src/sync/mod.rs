//! The atomics, locks and lock-free queues of this crate. All code uses them through this module,
//! so that the models in `sync/models.rs` can replace them by loom's and try every order of steps
//! that the memory model allows. docs/en/project/testing.md explains how to run the models.

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
