//! Shared receive queues: receives for any of several queue pairs. IBTA 10.2.9, 11.2.3.

use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_core::queue::{self, RecvRequest, Sge};

use crate::device::closed;
use crate::error::Result;
use crate::pd::ProtectionDomain;

/// A shared receive queue. Queue pairs made with [`crate::QpBuilder::srq`] take their receives from
/// it, whichever gets a message first. Any thread may post to it.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    inner: Arc<SrqInner>,
}

#[derive(Debug)]
struct SrqInner {
    queue: Arc<queue::SharedReceiveQueue>,
    pd: ProtectionDomain,
}

impl SharedReceiveQueue {
    /// Its number: names it in [`crate::AsyncEvent`].
    pub fn number(&self) -> u32 {
        self.inner.queue.number()
    }

    /// The domain that its receives' memory belongs to. That of its queue pairs may be another.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Receives that it can hold.
    pub fn depth(&self) -> u32 {
        self.inner.queue.depth()
    }

    /// Elements that a receive may have.
    pub fn max_sge(&self) -> u32 {
        self.inner.queue.max_sge()
    }

    /// Receives posted and not yet taken by a message.
    pub fn len(&self) -> u32 {
        self.inner.queue.len()
    }

    /// Whether none is posted.
    pub fn is_empty(&self) -> bool {
        self.inner.queue.is_empty()
    }

    /// Posts a receive: where the next message of any of its queue pairs may go.
    ///
    /// # Errors
    /// It is full, the list is too long, or the device has failed.
    pub fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.inner.pd.device().shard().check()?;
        Ok(self.inner.queue.post_recv(request)?)
    }

    /// Posts a receive: where the next message of any of its queue pairs may go.
    ///
    /// # Errors
    /// As [`SharedReceiveQueue::post_recv`].
    pub fn recv(&self, id: u64, into: &[Sge]) -> Result<()> {
        self.post_recv(RecvRequest { id, sges: into.into() })
    }

    /// Asks for one [`crate::AsyncKind::SrqLimitReached`] when fewer than `limit` receives are left;
    /// 0 asks for none.
    ///
    /// # Errors
    /// The limit is larger than the queue.
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        Ok(self.inner.queue.set_limit(limit)?)
    }

    /// The limit that is armed; 0 if none is, or if it has been reached.
    pub fn limit(&self) -> u32 {
        self.inner.queue.limit()
    }

    /// How many others have it: handles and queue pairs.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something still uses it; it then ends with the last of these.
    pub fn close(self) -> Result<()> {
        closed(self.users(), "the shared receive queue")
    }

    /// As the engine has it.
    pub(crate) fn queue(&self) -> &Arc<queue::SharedReceiveQueue> {
        &self.inner.queue
    }
}

impl ProtectionDomain {
    /// Makes a queue of `max_wr` receives, each of at most `max_sge` elements, for queue pairs to
    /// share.
    ///
    /// # Errors
    /// A size is 0 or more than the device allows.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue> {
        let device = self.device();
        device.shard().check()?;
        let limits = device.limits();
        for (what, asked, least, limit) in [
            ("max_wr of a shared receive queue (at least 1)", max_wr, 1, limits.max_qp_wr),
            ("max_sge of a shared receive queue", max_sge, 0, limits.max_sge),
        ] {
            if asked < least || asked > limit {
                let (asked, limit) = (asked.into(), limit.into());
                return Err(VerbsError::LimitExceeded { what, asked, limit }.into());
            }
        }
        let number = device.next_srq();
        let queue = queue::SharedReceiveQueue::new(number, self.id(), max_wr, max_sge);
        let inner = SrqInner { queue: Arc::new(queue), pd: self.clone() };
        Ok(SharedReceiveQueue { inner: Arc::new(inner) })
    }
}
