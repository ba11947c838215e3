//! Shared receive queues: receives that several queue pairs share. IBTA 10.2.9, 11.2.3.

use std::sync::Arc;

use super::bounded::Bounded;
use super::{CompletionQueue, RecvRequest};
use crate::error::VerbsError;
use crate::mem::PdId;
use crate::sync::{AtomicU32, Ordering};

/// A shared receive queue. Programs post to it; the responders of its queue pairs take from it.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    number: u32,
    pd: PdId,
    list: Bounded<RecvRequest>,
    max_sge: u32,
    /// The number of receives below which an event is due; 0 means never.
    limit: AtomicU32,
    /// The completion queue of receives consumed by XRC requests.
    cq: Option<Arc<CompletionQueue>>,
}

/// A receive taken from a shared queue.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) receive: RecvRequest,
    /// Whether the queue has just fallen below its limit.
    pub(crate) limit_reached: bool,
}

impl SharedReceiveQueue {
    /// Creates a queue with this number, for `max_wr` receives of at most `max_sge` elements.
    pub fn new(number: u32, pd: PdId, max_wr: u32, max_sge: u32) -> Self {
        let limit = AtomicU32::new(0);
        Self { number, pd, list: Bounded::new(max_wr), max_sge, limit, cq: None }
    }

    /// Creates a queue for an XRC domain. Its receives complete in `cq`, whichever target QP takes
    /// them.
    pub fn new_xrc(
        number: u32,
        pd: PdId,
        max_wr: u32,
        max_sge: u32,
        cq: Arc<CompletionQueue>,
    ) -> Self {
        Self { cq: Some(cq), ..Self::new(number, pd, max_wr, max_sge) }
    }

    /// Returns the completion queue of receives consumed by XRC requests. It is `None` outside XRC
    /// domains.
    pub fn cq(&self) -> Option<&Arc<CompletionQueue>> {
        self.cq.as_ref()
    }

    /// Returns the number with which XRC peers name the queue.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Returns the number of receives that the queue can hold.
    pub fn depth(&self) -> u32 {
        self.list.depth()
    }

    /// Returns the maximum number of elements of a receive.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Returns the number of receives that are posted and not yet taken by a message.
    pub fn len(&self) -> u32 {
        self.list.len()
    }

    /// Returns whether no receive is posted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The queue is full, or the scatter list is longer than `max_sge`.
    pub fn post_recv(&self, request: RecvRequest) -> Result<(), VerbsError> {
        let (asked, limit) = (request.sges.len() as u64, u64::from(self.max_sge));
        if asked > limit {
            let what = "elements in the scatter/gather list";
            return Err(VerbsError::LimitExceeded { what, asked, limit });
        }
        let full = || VerbsError::QueueFull { queue: "shared receive", depth: self.depth() };
        self.list.push(request).map_err(|_| full())
    }

    /// Posts a receive in two steps, as if the thread were preempted in between.
    #[cfg(test)]
    pub(crate) fn begin_post(&self) -> impl FnOnce(RecvRequest) {
        self.list.begin_push()
    }

    /// Changes the depth to `max_wr` receives. Posted receives stay.
    ///
    /// # Errors
    /// `max_wr` is less than the number of posted receives or than the armed limit. Nothing is
    /// changed.
    pub fn resize(&self, max_wr: u32) -> Result<(), VerbsError> {
        let refused = |why: String| VerbsError::InvalidAttribute { name: "max_wr", why };
        let limit = self.limit();
        if max_wr < limit {
            return Err(refused(format!("{max_wr}: an event is asked for below {limit} receives")));
        }
        let result = self.list.resize(max_wr);
        result.map_err(|len| {
            refused(format!("{max_wr}: {len} receives are posted: let them be used"))
        })
    }

    /// Requests one event when fewer than `limit` receives are left; 0 requests none.
    ///
    /// # Errors
    /// The limit is larger than the depth of the queue.
    pub fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        if limit > self.depth() {
            let (what, asked) = ("srq_limit", u64::from(limit));
            let limit = u64::from(self.depth());
            return Err(VerbsError::LimitExceeded { what, asked, limit });
        }
        self.limit.store(limit, Ordering::SeqCst);
        Ok(())
    }

    /// Returns the armed limit, or 0 if none is armed.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> Option<Taken> {
        // The message keeps the receive; its place in the queue becomes free.
        let receive = self.list.pop()?;
        let limit = self.limit();
        let limit_reached = limit > 0
            && self.len() < limit
            && self.limit.compare_exchange(limit, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        Some(Taken { receive, limit_reached })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(id: u64) -> RecvRequest {
        RecvRequest { id, sges: Default::default() }
    }

    #[test]
    fn the_limit_is_told_once() {
        let srq = SharedReceiveQueue::new(1, PdId(1), 4, 1);
        (0..4).for_each(|id| srq.post_recv(receive(id)).unwrap());
        assert!(srq.post_recv(receive(4)).is_err());
        srq.set_limit(3).unwrap();
        let told: Vec<_> = std::iter::from_fn(|| srq.take()).map(|t| t.limit_reached).collect();
        assert_eq!(told, [false, true, false, false]);
        assert!(srq.set_limit(5).is_err());
    }

    #[test]
    fn it_changes_size_but_not_below_what_is_posted_or_asked_for() {
        let srq = SharedReceiveQueue::new(1, PdId(1), 2, 1);
        (0..2).for_each(|id| srq.post_recv(receive(id)).unwrap());
        assert!(srq.post_recv(receive(2)).is_err());
        srq.resize(8).unwrap();
        srq.post_recv(receive(2)).unwrap();
        assert_eq!(srq.resize(2).unwrap_err().errno(), 22);
        assert!(srq.take().is_some());
        srq.set_limit(3).unwrap();
        assert_eq!(srq.resize(2).unwrap_err().errno(), 22);
        srq.set_limit(0).unwrap();
        srq.resize(2).unwrap();
        let left: Vec<_> = std::iter::from_fn(|| srq.take()).map(|t| t.receive.id).collect();
        assert_eq!((left, srq.depth()), (vec![1, 2], 2));
    }
}
