//! Where a queue pair's receives come from: its own queue or a shared one.

use std::sync::Arc;

use super::Ctx;
use crate::engine::Event;
use crate::error::VerbsError;
use crate::mem::PdId;
use crate::queue::{RecvRequest, SharedReceiveQueue, WorkRing};

/// The source of a queue pair's receives.
#[derive(Debug)]
pub(crate) enum Receives {
    /// Its own queue; the receives belong to the QP's protection domain.
    Own(Box<WorkRing<RecvRequest>>, PdId),
    /// A queue shared with others.
    Shared(Arc<SharedReceiveQueue>),
}

impl Receives {
    /// The next receive.
    pub(crate) fn take(&self, ctx: &mut Ctx<'_>) -> Option<RecvRequest> {
        match self {
            Self::Own(ring, _) => ring.take(),
            Self::Shared(srq) => {
                let taken = srq.take()?;
                if taken.limit_reached {
                    ctx.events.emit(Event::SrqLimitReached { srq: srq.number() });
                }
                Some(taken.receive)
            }
        }
    }

    /// The next receive of the QP's own queue; those of a shared one are not the QP's to flush.
    pub(crate) fn take_own(&self) -> Option<RecvRequest> {
        match self {
            Self::Own(ring, _) => ring.take(),
            Self::Shared(_) => None,
        }
    }

    /// A receive is complete.
    pub(crate) fn release(&self) {
        if let Self::Own(ring, _) = self {
            ring.release();
        }
    }

    /// Whether no receive is posted.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Own(ring, _) => ring.is_empty(),
            Self::Shared(srq) => srq.is_empty(),
        }
    }

    /// The protection domain of the receives' buffers. IBTA 10.2.9.3: for a shared queue, its own.
    pub(crate) fn pd(&self) -> PdId {
        match self {
            Self::Own(_, pd) => *pd,
            Self::Shared(srq) => srq.pd(),
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Receives posted to the QP and not complete.
    pub(crate) fn outstanding(&self) -> u32 {
        match self {
            Self::Own(ring, _) => ring.outstanding(),
            Self::Shared(_) => 0,
        }
    }

    pub(crate) fn post(&self, request: RecvRequest) -> Result<(), VerbsError> {
        match self {
            Self::Own(ring, _) => {
                let full = VerbsError::QueueFull { queue: "receive", depth: ring.depth() };
                ring.post(request).map_err(|_| full)
            }
            Self::Shared(_) => Err(VerbsError::InvalidRequest {
                why: "the QP takes its receives from a shared receive queue: post to that",
            }),
        }
    }
}
