//! The objects of an open device by number, for a person who asks what there is. Queue pairs, memory and
//! connections are listed where they are kept.
//!
//! Nothing here keeps an object or the device open.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rxe_core::queue::{CompletionQueue, SharedReceiveQueue};
use rxe_sys::fork_generation;

use super::UseCounters;

/// The objects of a device, by number.
#[derive(Debug)]
pub(crate) struct Resources {
    pds: List<Weak<UseCounters>>,
    cqs: List<(Weak<CompletionQueue>, Weak<UseCounters>)>,
    srqs: List<Weak<SharedReceiveQueue>>,
}

impl Resources {
    pub(crate) fn new() -> Self {
        Self { pds: List::new(), cqs: List::new(), srqs: List::new() }
    }

    pub(crate) fn add_pd(&self, number: u32, uses: &Arc<UseCounters>) {
        self.pds.add(number.into(), Arc::downgrade(uses));
    }

    pub(crate) fn remove_pd(&self, number: u32) {
        self.pds.remove(number.into());
    }

    pub(crate) fn add_cq(&self, queue: &Arc<CompletionQueue>, uses: &Arc<UseCounters>) {
        self.cqs.add(queue.id(), (Arc::downgrade(queue), Arc::downgrade(uses)));
    }

    pub(crate) fn remove_cq(&self, queue: &CompletionQueue) {
        self.cqs.remove(queue.id());
    }

    pub(crate) fn add_srq(&self, queue: &Arc<SharedReceiveQueue>) {
        self.srqs.add(queue.number().into(), Arc::downgrade(queue));
    }

    pub(crate) fn remove_srq(&self, queue: &SharedReceiveQueue) {
        self.srqs.remove(queue.number().into());
    }

    /// Up to `max` protection domains, and how many objects use each.
    pub(crate) fn pds(&self, max: usize) -> Vec<(u64, u32)> {
        let all = self.pds.some(max);
        all.into_iter().map(|(number, uses)| (number, users(&uses))).collect()
    }

    /// Up to `max` completion queues, and how many objects use each.
    pub(crate) fn cqs(&self, max: usize) -> Vec<(Arc<CompletionQueue>, u32)> {
        let all = self.cqs.some(max);
        let present =
            all.iter().filter_map(|(_, (queue, uses))| Some((queue.upgrade()?, users(uses))));
        present.collect()
    }

    /// Up to `max` shared receive queues.
    pub(crate) fn srqs(&self, max: usize) -> Vec<Arc<SharedReceiveQueue>> {
        self.srqs.some(max).iter().filter_map(|(_, queue)| queue.upgrade()).collect()
    }
}

/// How many objects are counted.
fn users(uses: &Weak<UseCounters>) -> u32 {
    uses.upgrade().map_or(0, |uses| uses.read().total())
}

/// Objects of a kind by number.
#[derive(Debug)]
struct List<T> {
    /// Of the process that it is of. In a forked child the lock may be held for ever.
    generation: u64,
    all: Mutex<BTreeMap<u64, T>>,
}

impl<T: Clone> List<T> {
    fn new() -> Self {
        Self { generation: fork_generation(), all: Mutex::default() }
    }

    fn add(&self, number: u64, object: T) {
        if self.is_own() {
            self.all.lock().insert(number, object);
        }
    }

    fn remove(&self, number: u64) {
        if self.is_own() {
            self.all.lock().remove(&number);
        }
    }

    fn some(&self, max: usize) -> Vec<(u64, T)> {
        self.all.lock().iter().take(max).map(|(number, object)| (*number, object.clone())).collect()
    }

    fn is_own(&self) -> bool {
        self.generation == fork_generation()
    }
}
