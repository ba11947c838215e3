//! Shared receive queues: receives that several queue pairs share. IBTA 10.2.9, 11.2.3.

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

/// A shared receive queue. Any thread may post to it.
///
/// Queue pairs created with [`crate::QpBuilder::srq`] take their receives from it, in the order in
/// which messages arrive.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    inner: Arc<SrqInner>,
}

#[derive(Debug)]
struct SrqInner {
    queue: Arc<queue::SharedReceiveQueue>,
    pd: Used<ProtectionDomain>,
    /// Only for an XRC shared receive queue.
    target: Option<Target>,
    uses: UseCounters,
    _permit: Permit,
}

/// The parts that only an XRC shared receive queue has.
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

    /// Returns the number that identifies the queue in [`crate::AsyncEvent`].
    ///
    /// Peers name an XRC shared receive queue by this number ([`crate::Request::to_srq`]).
    pub fn number(&self) -> u32 {
        self.inner.queue.number()
    }

    /// Returns the protection domain of the receives' memory. The queue pairs may be in another.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Returns the XRC domain, if there is one.
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.inner.target.as_ref().map(|target| &*target.domain)
    }

    /// Returns the completion queue of an XRC shared receive queue.
    ///
    /// The receives of other shared receive queues complete in the receive completion queue of the
    /// queue pair that took them.
    pub fn cq(&self) -> Option<&CompletionQueue> {
        self.inner.target.as_ref().map(|target| &*target.cq)
    }

    /// Returns how many receives the queue can hold.
    pub fn depth(&self) -> u32 {
        self.inner.queue.depth()
    }

    /// Returns how many scatter elements a receive may have.
    pub fn max_sge(&self) -> u32 {
        self.inner.queue.max_sge()
    }

    /// Returns the number of receives posted and not yet taken by a message.
    pub fn len(&self) -> u32 {
        self.inner.queue.len()
    }

    /// Returns whether no receive is posted.
    pub fn is_empty(&self) -> bool {
        self.inner.queue.is_empty()
    }

    /// Posts a receive, a buffer for the next message of any of its queue pairs.
    ///
    /// # Errors
    /// Fails if the queue is full, if the list is too long, or if the device has failed.
    pub fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.inner.pd.device().shard().check()?;
        Ok(self.inner.queue.post_recv(request)?)
    }

    /// Posts a receive with this identifier and these scatter elements.
    ///
    /// # Errors
    /// Fails like [`SharedReceiveQueue::post_recv`].
    pub fn recv(&self, id: u64, into: &[Sge]) -> Result<()> {
        self.post_recv(RecvRequest { id, sges: into.into() })
    }

    /// Changes the queue's capacity to `max_wr` receives. Posted receives stay.
    ///
    /// # Errors
    /// Fails, without a change, if `max_wr` is 0, above the device's limit, or less than the posted
    /// receives or the armed limit.
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        let device = self.inner.pd.device();
        device.shard().check()?;
        check_wr(device, max_wr)?;
        Ok(self.inner.queue.resize(max_wr)?)
    }

    /// Requests one [`crate::AsyncKind::SrqLimitReached`] when fewer than `limit` receives are
    /// left; 0 requests none.
    ///
    /// # Errors
    /// Fails if the limit is larger than the queue's capacity.
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        Ok(self.inner.queue.set_limit(limit)?)
    }

    /// Returns the armed limit; 0 if none is armed or it has been reached.
    pub fn limit(&self) -> u32 {
        self.inner.queue.limit()
    }

    /// Returns the number of other references: handles and queue pairs.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Returns how many queue pairs take their receives from the queue.
    pub fn used_by(&self) -> UseCounts {
        self.inner.uses.read()
    }

    /// Closes the queue and reports remaining users.
    ///
    /// # Errors
    /// Fails if the queue is in use. It is then destroyed with its last user.
    pub fn close(self) -> Result<()> {
        closed(self.used_by(), self.users(), "the shared receive queue")
    }

    /// Returns the engine's part of the queue.
    pub(crate) fn queue(&self) -> &Arc<queue::SharedReceiveQueue> {
        &self.inner.queue
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let device = self.pd.device();
        // In a forked child, threads that exist only in the parent may hold the locks.
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
    /// Creates a shared receive queue for `max_wr` receives of at most `max_sge` elements each.
    ///
    /// # Errors
    /// Fails if `max_wr` is 0, if a size is more than the device allows, or if the device allows no
    /// more queues.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue> {
        let permit = check_sizes(self.device(), max_wr, max_sge)?;
        let number = self.device().next_srq();
        let queue = queue::SharedReceiveQueue::new(number, self.id(), max_wr, max_sge);
        let pd = self.used_as(Kind::SharedReceiveQueue);
        Ok(SharedReceiveQueue::new(Arc::new(queue), pd, None, permit))
    }

    /// Creates an XRC shared receive queue for `max_wr` receives of at most `max_sge` elements.
    ///
    /// Peers of the domain's target queue pairs name the queue by its number. Its receives complete
    /// in `cq`. Its receives, and the peers' WRITEs, READs and atomics, access memory of this
    /// protection domain.
    ///
    /// # Errors
    /// Fails like [`ProtectionDomain::create_srq`], and if the XRC domain or the completion queue
    /// belongs to another device.
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
        // All target queue pairs belong to the first shard.
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

/// How many numbers are tried. Numbers are assigned in turn from 24 bits, so after a wrap a number
/// may still be in use.
const ATTEMPTS: usize = 1 << 16;

/// Returns a permit for a shared receive queue of this size, if the device allows one.
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
