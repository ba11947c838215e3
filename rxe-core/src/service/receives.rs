//! The source of a queue pair's receives: its own receive queue or a shared one.

use std::sync::Arc;

use super::Ctx;
use crate::error::VerbsError;
use crate::event::Event;
use crate::queue::{RecvRequest, SharedReceiveQueue, WorkRing};

/// The source of a queue pair's receives.
#[derive(Debug)]
pub(crate) enum Receives {
    /// The QP's own receive queue.
    Own(WorkRing<RecvRequest>),
    /// A shared receive queue.
    Shared(Arc<SharedReceiveQueue>),
    /// No queue: XRC QPs deliver to the shared queues that requests name.
    None,
}

impl Receives {
    /// Takes the next receive.
    pub(crate) fn take(&self, ctx: &mut Ctx<'_>) -> Option<RecvRequest> {
        match self {
            Self::Own(ring) => ring.take(),
            Self::Shared(srq) => take_shared(srq, ctx),
            Self::None => None,
        }
    }

    /// Takes the next receive of the QP's own queue, to be flushed. Receives of a shared queue are
    /// not flushed with the QP.
    pub(crate) fn take_own(&self) -> Option<RecvRequest> {
        match self {
            Self::Own(ring) => ring.take(),
            Self::Shared(_) | Self::None => None,
        }
    }

    /// Frees the slot of a completed receive.
    pub(crate) fn release(&self) {
        if let Self::Own(ring) = self {
            ring.release();
        }
    }

    /// Returns whether no receive is posted.
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

    /// Returns the number of receives that are posted to the QP and not complete.
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

/// Takes the next receive of a shared queue. Emits the event if this reaches the limit of the
/// queue.
pub(crate) fn take_shared(srq: &SharedReceiveQueue, ctx: &mut Ctx<'_>) -> Option<RecvRequest> {
    let taken = srq.take()?;
    if taken.limit_reached {
        ctx.events.emit(Event::SrqLimitReached { srq: srq.number() });
    }
    Some(taken.receive)
}
