//! Shared receive queues: receives for any of several queue pairs. IBTA 10.2.9, 11.2.3.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{CompletionQueue, RecvRequest, WorkRing};
use crate::error::VerbsError;
use crate::mem::PdId;

/// A shared receive queue. Programs post to it, the responders of its queue pairs take from it.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    number: u32,
    pd: PdId,
    ring: WorkRing<RecvRequest>,
    max_sge: u32,
    /// An event is due when fewer receives than this are left; 0 is never.
    limit: AtomicU32,
    /// Where receives complete that XRC requests take.
    cq: Option<Arc<CompletionQueue>>,
}

/// A receive from a shared queue.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) receive: RecvRequest,
    /// The queue has just fallen below its limit.
    pub(crate) limit_reached: bool,
}

impl SharedReceiveQueue {
    /// A queue named `number`, for `max_wr` receives of at most `max_sge` elements.
    pub fn new(number: u32, pd: PdId, max_wr: u32, max_sge: u32) -> Self {
        let limit = AtomicU32::new(0);
        Self { number, pd, ring: WorkRing::new(max_wr), max_sge, limit, cq: None }
    }

    /// The same for an XRC domain: receives complete in `cq`, whichever target QP takes them.
    pub fn new_xrc(
        number: u32,
        pd: PdId,
        max_wr: u32,
        max_sge: u32,
        cq: Arc<CompletionQueue>,
    ) -> Self {
        Self { cq: Some(cq), ..Self::new(number, pd, max_wr, max_sge) }
    }

    /// Where receives complete that XRC requests take.
    pub fn cq(&self) -> Option<&Arc<CompletionQueue>> {
        self.cq.as_ref()
    }

    /// Its number, by which XRC peers name it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Receives that it can hold.
    pub fn depth(&self) -> u32 {
        self.ring.depth()
    }

    /// Elements of a receive.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Receives posted and not yet taken by a message.
    pub fn len(&self) -> u32 {
        self.ring.outstanding()
    }

    /// Whether none is posted.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The queue is full, or the scatter list longer than the queue was made for.
    pub fn post_recv(&self, request: RecvRequest) -> Result<(), VerbsError> {
        let (asked, limit) = (request.sges.len() as u64, u64::from(self.max_sge));
        if asked > limit {
            let what = "elements in the scatter/gather list";
            return Err(VerbsError::LimitExceeded { what, asked, limit });
        }
        let full = VerbsError::QueueFull { queue: "shared receive", depth: self.ring.depth() };
        self.ring.post(request).map_err(|_| full)
    }

    /// Asks for one event when fewer than `limit` receives are left; 0 asks for none.
    ///
    /// # Errors
    /// The limit is larger than the queue.
    pub fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        if limit > self.ring.depth() {
            let (what, asked) = ("srq_limit", u64::from(limit));
            let limit = u64::from(self.ring.depth());
            return Err(VerbsError::LimitExceeded { what, asked, limit });
        }
        self.limit.store(limit, Ordering::SeqCst);
        Ok(())
    }

    /// The limit that is armed; 0 if none.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> Option<Taken> {
        let receive = self.ring.take()?;
        // The message has it now; its place is free for another.
        self.ring.release();
        let limit = self.limit();
        let limit_reached = limit > 0
            && self.ring.outstanding() < limit
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
}
