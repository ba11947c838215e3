//! Extended reliable connection: one connection into a program reaches all of its shared receive
//! queues. IBTA annex A14.
//!
//! Invariant: a queue can be named by peers exactly as long as a handle to it exists.

use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_core::queue;

use crate::cq::CompletionQueue;
use crate::device::{Device, closed};
use crate::error::Result;
use crate::pd::ProtectionDomain;
use crate::qp::QpBuilder;
use crate::srq::{self, SharedReceiveQueue};

/// An XRC domain: target queue pairs ([`XrcDomain::qp`]) and the shared receive queues
/// ([`ProtectionDomain::create_xrc_srq`]) that requests to them name by number. Made by
/// [`Device::create_xrc_domain`].
///
/// The peer sends from a queue pair of [`crate::QpType::XrcSend`] and says with
/// [`crate::Request::to_srq`] which queue takes the message. So a program with many workers needs one
/// connection from each peer, not one for each pair of workers.
#[derive(Clone, Debug)]
pub struct XrcDomain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    queues: Arc<queue::XrcDomain>,
    /// Those of the target QPs, which use neither: requests are checked against the domain of the
    /// shared queue that they name, and complete where that says.
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl XrcDomain {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let queues = Arc::new(queue::XrcDomain::new());
        let inner = Inner { queues, pd: device.create_pd()?, cq: device.create_cq(1)? };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        self.inner.pd.device()
    }

    /// Begins a target queue pair: what its peer sends goes to the shared receive queue of this
    /// domain that each request names, and completes where that queue says. It has neither receives
    /// nor anything to send: its completion queue stays empty, and its protection domain allows
    /// nothing.
    pub fn qp(&self) -> QpBuilder {
        QpBuilder::xrc_target(self.clone(), self.inner.pd.clone(), self.inner.cq.clone())
    }

    /// Shared receive queues in it.
    pub fn srq_count(&self) -> usize {
        self.inner.queues.len()
    }

    /// How many others have it: handles, shared receive queues and queue pairs.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something still uses it; it then ends with the last of these.
    pub fn close(self) -> Result<()> {
        closed(self.users(), "the XRC domain")
    }

    /// As the engine has it.
    pub(crate) fn queues(&self) -> &Arc<queue::XrcDomain> {
        &self.inner.queues
    }
}

impl Device {
    /// Makes an XRC domain.
    ///
    /// # Errors
    /// The device has failed.
    pub fn create_xrc_domain(&self) -> Result<XrcDomain> {
        XrcDomain::new(self)
    }
}

impl ProtectionDomain {
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
        let permit = srq::check_sizes(device, max_wr, max_sge)?;
        for _ in 0..ATTEMPTS {
            let number = device.next_srq();
            let cq_queue = Arc::clone(cq.queue());
            let queue =
                queue::SharedReceiveQueue::new_xrc(number, self.id(), max_wr, max_sge, cq_queue);
            let queue = Arc::new(queue);
            if domain.queues().add(Arc::clone(&queue)) {
                let target = srq::Target { domain: domain.clone(), cq: cq.clone() };
                return Ok(SharedReceiveQueue::new(queue, self.clone(), Some(target), permit));
            }
        }
        let what = "numbers of shared receive queues: all near the next are taken".into();
        Err(VerbsError::Busy { what }.into())
    }
}

/// Numbers come in turn out of 2²⁴; after as many queues were made, one may still be taken.
const ATTEMPTS: usize = 1 << 16;
