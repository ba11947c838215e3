//! Extended reliable connection (XRC): one connection into a program reaches all its shared receive
//! queues. IBTA annex A14.
//!
//! Invariant: peers can name a queue exactly as long as a handle to the queue exists.

use std::sync::Arc;

use rxe_core::queue;

use crate::device::Device;
use crate::error::Result;
use crate::objects::cq::CompletionQueue;
use crate::objects::pd::ProtectionDomain;
use crate::observe::{Counted, UseCounters, UseCounts, closed};

/// An XRC domain: target queue pairs and the shared receive queues that they reach.
///
/// [`XrcDomain::qp`] creates the target queue pairs, [`ProtectionDomain::create_xrc_srq`] the
/// shared receive queues, which requests name by number. Created by [`Device::create_xrc_domain`].
///
/// The peer sends from a queue pair of [`crate::QpType::XrcSend`] and selects the queue of each
/// message with [`crate::Request::to_srq`]. A program with many workers therefore needs one
/// connection from each peer, not one for each pair of workers.
#[derive(Clone, Debug)]
pub struct XrcDomain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    queues: Arc<queue::XrcDomain>,
    /// Placeholders for the target QPs, which use neither a protection domain nor a completion
    /// queue of their own. Requests are checked against the domain of the shared receive queue that
    /// they name, and complete in its completion queue.
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

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.inner.pd.device()
    }

    /// Returns the number of shared receive queues in the domain.
    pub fn srq_count(&self) -> usize {
        self.inner.queues.len()
    }

    /// Returns the number of other references: handles, shared receive queues and queue pairs.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Returns how many objects of each kind exist in the domain.
    pub fn used_by(&self) -> UseCounts {
        self.inner.uses.read()
    }

    /// Closes the domain and reports remaining users.
    ///
    /// # Errors
    /// Fails if the domain is in use. It is then destroyed with its last user.
    pub fn close(self) -> Result<()> {
        closed(self.used_by(), self.users(), "the XRC domain")
    }

    /// Returns the protection domain and the completion queue of the target queue pairs.
    pub(crate) fn placeholders(&self) -> (&ProtectionDomain, &CompletionQueue) {
        (&self.inner.pd, &self.inner.cq)
    }

    /// Returns the engine's part of the domain.
    pub(crate) fn queues(&self) -> &Arc<queue::XrcDomain> {
        &self.inner.queues
    }
}

impl Device {
    /// Creates an XRC domain.
    ///
    /// # Errors
    /// Fails if the device has failed, or allows no more protection domains or completion queues.
    pub fn create_xrc_domain(&self) -> Result<XrcDomain> {
        XrcDomain::new(self)
    }
}
