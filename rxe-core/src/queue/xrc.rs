//! XRC domains: the shared receive queues that a peer's requests may name. IBTA annex A14.

use std::collections::HashMap;
use std::sync::Arc;

use super::SharedReceiveQueue;
use crate::sync::RwLock;

/// The XRC shared receive queues that the target QPs of a domain deliver to, by number.
#[derive(Debug, Default)]
pub struct XrcDomain {
    queues: RwLock<HashMap<u32, Arc<SharedReceiveQueue>>>,
}

impl XrcDomain {
    /// A domain without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a queue, which peers may name from now on. Returns `false`, and adds nothing, if its
    /// number is taken or it has no completion queue (see [`SharedReceiveQueue::new_xrc`]).
    pub fn add(&self, srq: Arc<SharedReceiveQueue>) -> bool {
        let mut queues = self.queues.write();
        if srq.cq().is_none() || queues.contains_key(&srq.number()) {
            return false;
        }
        queues.insert(srq.number(), srq);
        true
    }

    /// Removes a queue: requests that name it are refused from now on. Returns whether it was there.
    pub fn remove(&self, number: u32) -> bool {
        self.queues.write().remove(&number).is_some()
    }

    /// Queues in the domain.
    pub fn len(&self) -> usize {
        self.queues.read().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<SharedReceiveQueue>> {
        self.queues.read().get(&number).cloned()
    }
}
