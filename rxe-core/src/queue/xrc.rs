//! XRC domains: the shared receive queues that requests of a peer may name. IBTA annex A14.

use std::collections::HashMap;
use std::sync::Arc;

use super::SharedReceiveQueue;
use crate::sync::RwLock;

/// The XRC shared receive queues of a domain, by number. Its target QPs deliver to them.
#[derive(Debug, Default)]
pub struct XrcDomain {
    queues: RwLock<HashMap<u32, Arc<SharedReceiveQueue>>>,
}

impl XrcDomain {
    /// Creates a domain without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a queue, so that peers may name it. Returns `false`, and adds nothing, if its number is
    /// already used or it has no completion queue (see [`SharedReceiveQueue::new_xrc`]).
    pub fn add(&self, srq: Arc<SharedReceiveQueue>) -> bool {
        let mut queues = self.queues.write();
        if srq.cq().is_none() || queues.contains_key(&srq.number()) {
            return false;
        }
        queues.insert(srq.number(), srq);
        true
    }

    /// Removes a queue, so that requests that name it are refused. Returns whether it was present.
    pub fn remove(&self, number: u32) -> bool {
        self.queues.write().remove(&number).is_some()
    }

    /// Returns the number of queues in the domain.
    pub fn len(&self) -> usize {
        self.queues.read().len()
    }

    /// Returns whether the domain has no queue.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<SharedReceiveQueue>> {
        self.queues.read().get(&number).cloned()
    }
}
