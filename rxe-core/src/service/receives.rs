//! The source of a queue pair's receives: its own queue or a shared one.

use std::sync::Arc;

use super::Ctx;
use crate::error::VerbsError;
use crate::event::Event;
use crate::queue::{RecvRequest, SharedReceiveQueue, WorkRing};

/// The source of a queue pair's receives.
#[derive(Debug)]
pub(crate) enum Receives {
    /// Its own queue.
    Own(WorkRing<RecvRequest>),
    /// A queue shared with other QPs.
    Shared(Arc<SharedReceiveQueue>),
    /// None: XRC QPs deliver to the queues that requests name.
    None,
}

impl Receives {
    /// The next receive.
    pub(crate) fn take(&self, ctx: &mut Ctx<'_>) -> Option<RecvRequest> {
        match self {
            Self::Own(ring) => ring.take(),
            Self::Shared(srq) => take_shared(srq, ctx),
            Self::None => None,
        }
    }

    /// The next receive of the QP's own queue, to be flushed. Receives of a shared queue are not
    /// flushed with the QP.
    pub(crate) fn take_own(&self) -> Option<RecvRequest> {
        match self {
            Self::Own(ring) => ring.take(),
            Self::Shared(_) | Self::None => None,
        }
    }

    /// Frees the slot of a receive that is complete.
    pub(crate) fn release(&self) {
        if let Self::Own(ring) = self {
            ring.release();
        }
    }

    /// Whether no receive is posted.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Own(ring) => ring.is_empty(),
            Self::Shared(srq) => srq.is_empty(),
            Self::None => true,
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Receives posted to the QP and not complete.
    pub(crate) fn outstanding(&self) -> u32 {
        match self {
            Self::Own(ring) => ring.outstanding(),
            Self::Shared(_) | Self::None => 0,
        }
    }

    pub(crate) fn post(&self, request: RecvRequest) -> Result<(), VerbsError> {
        match self {
            Self::Own(ring) => {
                let full = VerbsError::QueueFull { queue: "receive", depth: ring.depth() };
                ring.post(request).map_err(|_| full)
            }
            Self::Shared(_) => Err(VerbsError::InvalidRequest {
                why: "the QP takes its receives from a shared receive queue: post to that",
            }),
            Self::None => Err(VerbsError::InvalidRequest {
                why: "an XRC QP has no receives of its own: post to the shared receive queue",
            }),
        }
    }
}

/// The next receive of a shared queue. Emits the event if that reaches the queue's limit.
pub(crate) fn take_shared(srq: &SharedReceiveQueue, ctx: &mut Ctx<'_>) -> Option<RecvRequest> {
    let taken = srq.take()?;
    if taken.limit_reached {
        ctx.events.emit(Event::SrqLimitReached { srq: srq.number() });
    }
    Some(taken.receive)
}
