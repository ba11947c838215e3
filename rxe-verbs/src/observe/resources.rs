//! The objects of an open device: their number and limit by kind, and lists of those that nothing
//! else lists. Queue pairs, memory and connections are listed where they are kept.
//!
//! Nothing here keeps an object or the device open.

use std::collections::BTreeMap;
use std::sync::Weak;

use parking_lot::Mutex;
use rxe_core::engine::Limits;
use rxe_core::queue::{CompletionQueue, SharedReceiveQueue};
use rxe_sys::fork_generation;

use super::UseCounters;
use super::quota::{GroupQuota, Quota};

/// The quotas and lists of a device's objects, by kind.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) pds: Quota,
    pub(crate) cqs: Quota,
    pub(crate) qps: Quota,
    pub(crate) mrs: Quota,
    pub(crate) mws: Quota,
    pub(crate) srqs: Quota,
    pub(crate) ahs: Quota,
    /// Bytes of device memory.
    pub(crate) dm_bytes: Quota,
    pub(crate) groups: GroupQuota,
    pub(crate) pd_list: List<Weak<UseCounters>>,
    pub(crate) cq_list: List<(Weak<CompletionQueue>, Weak<UseCounters>)>,
    pub(crate) srq_list: List<Weak<SharedReceiveQueue>>,
}

impl Resources {
    pub(crate) fn new(limits: &Limits, dm_bytes: u32) -> Self {
        Self {
            pds: Quota::new("protection domains", limits.max_pd),
            cqs: Quota::new("completion queues", limits.max_cq),
            qps: Quota::new("queue pairs", limits.max_qp),
            mrs: Quota::new("memory regions", limits.max_mr),
            mws: Quota::new("memory windows", limits.max_mw),
            srqs: Quota::new("shared receive queues", limits.max_srq),
            ahs: Quota::new("address handles", limits.max_ah),
            dm_bytes: Quota::new("bytes of device memory", dm_bytes),
            groups: GroupQuota::new(limits),
            pd_list: List::new(),
            cq_list: List::new(),
            srq_list: List::new(),
        }
    }
}

/// The objects of one kind, by number.
#[derive(Debug)]
pub(crate) struct List<T> {
    /// The fork generation of the process that owns the device. In a forked child the lock may be
    /// held forever.
    generation: u64,
    all: Mutex<BTreeMap<u64, T>>,
}

impl<T: Clone> List<T> {
    fn new() -> Self {
        Self { generation: fork_generation(), all: Mutex::default() }
    }

    pub(crate) fn add(&self, number: u64, object: T) {
        if self.is_own() {
            self.all.lock().insert(number, object);
        }
    }

    pub(crate) fn remove(&self, number: u64) {
        if self.is_own() {
            self.all.lock().remove(&number);
        }
    }

    /// Returns up to `max` objects, those with the lowest numbers.
    pub(super) fn some(&self, max: usize) -> Vec<(u64, T)> {
        self.all.lock().iter().take(max).map(|(number, object)| (*number, object.clone())).collect()
    }

    fn is_own(&self) -> bool {
        self.generation == fork_generation()
    }
}
