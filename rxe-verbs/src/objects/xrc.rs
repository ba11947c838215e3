//! Extended reliable connection: one connection into a program reaches all of its shared receive
//! queues. IBTA annex A14.
//!
//! Invariant: a queue can be named by peers exactly as long as a handle to it exists.

use std::sync::Arc;

use rxe_core::queue;

use crate::device::Device;
use crate::error::Result;
use crate::objects::cq::CompletionQueue;
use crate::objects::pd::ProtectionDomain;
use crate::observe::{Counted, UseCounters, UseCounts, closed};

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
    uses: UseCounters,
}

impl Counted for XrcDomain {
    fn use_counters(&self) -> &UseCounters {
        &self.inner.uses
    }
}

impl XrcDomain {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let queues = Arc::new(queue::XrcDomain::new());
        let uses = UseCounters::default();
        let inner = Inner { queues, pd: device.create_pd()?, cq: device.create_cq(1)?, uses };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        self.inner.pd.device()
    }

    /// Shared receive queues in it.
    pub fn srq_count(&self) -> usize {
        self.inner.queues.len()
    }

    /// How many others have it: handles, shared receive queues and queue pairs.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// What was made in it and still exists.
    pub fn used_by(&self) -> UseCounts {
        self.inner.uses.read()
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something still uses it; it then ends with the last of these.
    pub fn close(self) -> Result<()> {
        closed(self.used_by(), self.users(), "the XRC domain")
    }

    /// What its target queue pairs have for a protection domain and a completion queue.
    pub(crate) fn placeholders(&self) -> (&ProtectionDomain, &CompletionQueue) {
        (&self.inner.pd, &self.inner.cq)
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
