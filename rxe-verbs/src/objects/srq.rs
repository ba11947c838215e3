//! Shared receive queues: receives for any of several queue pairs. IBTA 10.2.9, 11.2.3.

use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_core::engine::Affiliation;
use rxe_core::queue::{self, RecvRequest, Sge};

use crate::device::Device;
use crate::error::Result;
use crate::objects::cq::CompletionQueue;
use crate::objects::pd::ProtectionDomain;
use crate::objects::xrc::XrcDomain;
use crate::observe::{Counted, Kind, Permit, UseCounters, UseCounts, Used, closed};

/// A shared receive queue. Queue pairs made with [`crate::QpBuilder::srq`] take their receives from
/// it, whichever gets a message first. Any thread may post to it.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    inner: Arc<SrqInner>,
}

#[derive(Debug)]
struct SrqInner {
    queue: Arc<queue::SharedReceiveQueue>,
    pd: Used<ProtectionDomain>,
    /// Where peers find it, if it is an XRC one.
    target: Option<Target>,
    uses: UseCounters,
    _permit: Permit,
}

/// What only an XRC shared receive queue has.
#[derive(Debug)]
struct Target {
    domain: Used<XrcDomain>,
    cq: Used<CompletionQueue>,
}

impl Counted for SharedReceiveQueue {
    fn use_counters(&self) -> &UseCounters {
        &self.inner.uses
    }
}

impl SharedReceiveQueue {
    fn new(
        queue: Arc<queue::SharedReceiveQueue>,
        pd: Used<ProtectionDomain>,
        target: Option<Target>,
        permit: Permit,
    ) -> Self {
        let uses = UseCounters::default();
        pd.device().resources().srq_list.add(queue.number().into(), Arc::downgrade(&queue));
        Self { inner: Arc::new(SrqInner { queue, pd, target, uses, _permit: permit }) }
    }

    /// Its number: names it in [`crate::AsyncEvent`], and, if it is an XRC one, in the requests of
    /// peers ([`crate::Request::to_srq`]).
    pub fn number(&self) -> u32 {
        self.inner.queue.number()
    }

    /// The domain that its receives' memory belongs to. That of its queue pairs may be another.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// The XRC domain that it is in, if it is in one.
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.inner.target.as_ref().map(|target| &*target.domain)
    }

    /// Where its receives complete, if it is an XRC one; those of others complete where the queue
    /// pair says that took them.
    pub fn cq(&self) -> Option<&CompletionQueue> {
        self.inner.target.as_ref().map(|target| &*target.cq)
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

    /// Makes it hold `max_wr` receives from now on. Those posted stay.
    ///
    /// # Errors
    /// That is 0, more than the device allows, fewer than are posted, or fewer than the limit that is
    /// armed; it is as it was.
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        let device = self.inner.pd.device();
        device.shard().check()?;
        check_wr(device, max_wr)?;
        Ok(self.inner.queue.resize(max_wr)?)
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

    /// The queue pairs that take their receives from it.
    pub fn used_by(&self) -> UseCounts {
        self.inner.uses.read()
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something still uses it; it then ends with the last of these.
    pub fn close(self) -> Result<()> {
        closed(self.used_by(), self.users(), "the shared receive queue")
    }

    /// As the engine has it.
    pub(crate) fn queue(&self) -> &Arc<queue::SharedReceiveQueue> {
        &self.inner.queue
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let device = self.pd.device();
        // In a forked child the locks may be held for ever.
        if !device.shard().is_own() {
            return;
        }
        device.resources().srq_list.remove(self.queue.number().into());
        device.asyncs().forget(Affiliation::Srq(self.queue.number()));
        if let Some(target) = &self.target {
            target.domain.queues().remove(self.queue.number());
        }
    }
}

impl ProtectionDomain {
    /// Makes a queue of `max_wr` receives, each of at most `max_sge` elements, for queue pairs to
    /// share.
    ///
    /// # Errors
    /// A size is 0 or more than the device allows, or there are as many queues as it allows.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue> {
        let permit = check_sizes(self.device(), max_wr, max_sge)?;
        let number = self.device().next_srq();
        let queue = queue::SharedReceiveQueue::new(number, self.id(), max_wr, max_sge);
        let pd = self.used_as(Kind::SharedReceiveQueue);
        Ok(SharedReceiveQueue::new(Arc::new(queue), pd, None, permit))
    }

    /// Makes a queue of `max_wr` receives, each of at most `max_sge` elements, that peers of the
    /// domain's target queue pairs name by its number. What it takes completes in `cq`. The memory of
    /// its receives, and what peers WRITE, READ and do atomics to, is this protection domain's.
    ///
    /// # Errors
    /// As [`ProtectionDomain::create_srq`]; or the XRC domain or completion queue is another device's.
    pub fn create_xrc_srq(
        &self,
        domain: &XrcDomain,
        cq: &CompletionQueue,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SharedReceiveQueue> {
        let device = self.device();
        device.owns(domain.device(), "the XRC domain")?;
        device.owns(cq.device(), "the completion queue")?;
        let permit = check_sizes(device, max_wr, max_sge)?;
        // All targets are of the first shard.
        cq.add_shard(0);
        for _ in 0..ATTEMPTS {
            let number = device.next_srq();
            let cq_queue = Arc::clone(cq.queue());
            let queue =
                queue::SharedReceiveQueue::new_xrc(number, self.id(), max_wr, max_sge, cq_queue);
            let queue = Arc::new(queue);
            if domain.queues().add(Arc::clone(&queue)) {
                let target = Target {
                    domain: domain.used_as(Kind::SharedReceiveQueue),
                    cq: cq.used_as(Kind::SharedReceiveQueue),
                };
                let pd = self.used_as(Kind::SharedReceiveQueue);
                return Ok(SharedReceiveQueue::new(queue, pd, Some(target), permit));
            }
        }
        let what = "numbers of shared receive queues: all near the next are taken".into();
        Err(VerbsError::Busy { what }.into())
    }
}

/// Numbers come in turn out of 2²⁴; after as many queues were made, one may still be taken.
const ATTEMPTS: usize = 1 << 16;

/// A permit for a shared receive queue of this size, if the device makes such.
fn check_sizes(device: &Device, max_wr: u32, max_sge: u32) -> Result<Permit> {
    device.shard().check()?;
    check_wr(device, max_wr)?;
    let limit = device.limits().max_srq_sge;
    if max_sge > limit {
        let what = "max_sge of a shared receive queue";
        let (asked, limit) = (max_sge.into(), limit.into());
        return Err(VerbsError::LimitExceeded { what, asked, limit }.into());
    }
    device.resources().srqs.take()
}

fn check_wr(device: &Device, max_wr: u32) -> Result<()> {
    let limit = device.limits().max_srq_wr;
    if max_wr == 0 || max_wr > limit {
        let what = "max_wr of a shared receive queue (at least 1)";
        let (asked, limit) = (max_wr.into(), limit.into());
        return Err(VerbsError::LimitExceeded { what, asked, limit }.into());
    }
    Ok(())
}
