//! The handle of a queue pair that programs hold. Any thread posts requests through it, without the
//! engine's lock.

use std::mem::offset_of;
use std::sync::Arc;

use super::Receives;
use crate::error::VerbsError;
use crate::mem::PdId;
use crate::prefetch;
use crate::queue::{
    CompletionQueue, Doorbells, Payload, RecvRequest, SendOp, SendRequest, SharedReceiveQueue,
    WorkRing, XrcDomain,
};
use crate::sync::{AtomicBool, AtomicU8, Ordering};
use crate::types::{QpCap, QpState, QpType, Qpn};

/// The attributes of a new queue pair: `ibv_qp_init_attr` and the protection domain.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The transport service.
    pub service: QpType,
    /// The protection domain.
    pub pd: PdId,
    /// The completion queue of send requests.
    pub send_cq: Arc<CompletionQueue>,
    /// The completion queue of receives.
    pub recv_cq: Arc<CompletionQueue>,
    /// The capacities of the QP's queues.
    pub cap: QpCap,
    /// The shared receive queue, if the QP has no receive queue of its own.
    pub srq: Option<Arc<SharedReceiveQueue>>,
    /// The XRC domain of a target QP, which delivers to the domain's shared queues.
    pub xrcd: Option<Arc<XrcDomain>>,
    /// Whether every send request generates a completion, signalled or not.
    pub sq_sig_all: bool,
}

/// The handle of a queue pair for posting. It is one block of memory that includes the first slots
/// of the queues, because with ten thousand queue pairs every cache line of a post is a miss.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct QpHandle {
    state: AtomicU8,
    /// Whether the QP's doorbell is already rung.
    rung: AtomicBool,
    /// Whether the QP ignores its own datagrams to multicast groups that it is attached to.
    blocks_loopback: AtomicBool,
    pub(crate) qpn: Qpn,
    doorbells: Arc<Doorbells>,
    pub(crate) init: QpInit,
    max_message: u64,
    pub(crate) rq: Receives,
    pub(crate) sq: WorkRing<SendRequest>,
}

impl QpHandle {
    /// Creates the handle of a QP in RESET.
    ///
    /// # Errors
    /// There is not enough memory for queues of these sizes.
    pub(crate) fn new(
        qpn: Qpn,
        init: QpInit,
        doorbells: Arc<Doorbells>,
        max_message: u64,
    ) -> Result<Self, VerbsError> {
        let no_memory = |what| VerbsError::NoMemory { what };
        let own = || WorkRing::new(init.cap.max_recv_wr).ok_or(no_memory("the receive queue"));
        Ok(Self {
            qpn,
            sq: WorkRing::new(init.cap.max_send_wr).ok_or(no_memory("the send queue"))?,
            rq: match &init.srq {
                Some(srq) => Receives::Shared(Arc::clone(srq)),
                None if matches!(init.service, QpType::XrcSend | QpType::XrcRecv) => Receives::None,
                None => Receives::Own(own()?),
            },
            init,
            state: AtomicU8::new(QpState::Reset as u8),
            rung: AtomicBool::new(false),
            blocks_loopback: AtomicBool::new(false),
            doorbells,
            max_message,
        })
    }

    /// Returns the QPN.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the attributes that the QP was created with.
    pub fn init(&self) -> &QpInit {
        &self.init
    }

    /// Makes the QP ignore its own datagrams to multicast groups that it is attached to. Other QPs
    /// still receive them. `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`.
    pub fn block_own_multicast(&self) {
        self.blocks_loopback.store(true, Ordering::Relaxed);
    }

    pub(crate) fn blocks_own_multicast(&self) -> bool {
        self.blocks_loopback.load(Ordering::Relaxed)
    }

    /// Returns the current state. The engine may change it at any moment.
    pub fn state(&self) -> QpState {
        QpState::from_verbs(u32::from(self.state.load(Ordering::Acquire))).unwrap_or_default()
    }

    /// Returns the number of send requests that are posted and not complete.
    pub fn sends_outstanding(&self) -> u32 {
        self.sq.outstanding()
    }

    /// Returns the number of receives that are posted and not complete.
    pub fn receives_outstanding(&self) -> u32 {
        self.rq.outstanding()
    }

    /// Posts a request to the send queue. The engine starts it when it next runs. In the error state
    /// the request is accepted and flushed. IBTA 11.4.1.1.
    ///
    /// # Errors
    /// The request is refused if the QP is not yet ready to send, if the queue is full, or if the
    /// request contradicts itself or exceeds the QP's limits.
    pub fn post_send(&self, request: SendRequest) -> Result<(), VerbsError> {
        // With thousands of queue pairs, this one is in no cache.
        prefetch::until(self, offset_of!(Self, rq));
        prefetch::value(&self.sq);
        self.sq.prefetch();
        self.check_post_send(&request)?;
        let full = VerbsError::QueueFull { queue: "send", depth: self.sq.depth() };
        self.sq.post(request).map_err(|_| full)?;
        self.ring();
        Ok(())
    }

    /// Checks whether [`QpHandle::post_send`] would accept the request if the queue had room.
    ///
    /// # Errors
    /// The errors of `post_send`, except for a full queue.
    pub fn check_post_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        let state = self.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(VerbsError::WrongState { operation: "post_send", state });
        }
        self.check_send(request)
    }

    /// Posts a request to the receive queue. In the error state the request is accepted and flushed.
    /// IBTA 11.4.1.2.
    ///
    /// # Errors
    /// The request is refused if the QP is in RESET, if the queue is full, or if the scatter list
    /// is longer than `max_recv_sge`.
    pub fn post_recv(&self, request: RecvRequest) -> Result<(), VerbsError> {
        prefetch::until(self, offset_of!(Self, sq));
        let state = self.state();
        if state == QpState::Reset {
            return Err(VerbsError::WrongState { operation: "post_recv", state });
        }
        check_sges(request.sges.len(), self.init.cap.max_recv_sge)?;
        self.rq.post(request)?;
        // The QP may have gone into the error state meanwhile, and its flush may have missed this
        // receive. Both sides use a read-modify-write, so whichever comes second sees everything
        // that the first did: either the flush sees the receive, or this sees the state.
        if self.state.fetch_max(0, Ordering::AcqRel) == QpState::Err as u8 {
            self.ring();
        }
        Ok(())
    }

    /// Returns the maximum bytes of a message.
    pub(crate) fn max_message(&self) -> u64 {
        self.max_message
    }

    pub(crate) fn set_state(&self, state: QpState) {
        self.state.swap(state as u8, Ordering::AcqRel);
    }

    /// Records that the engine has seen the doorbell, so that the next post rings it again.
    pub(crate) fn doorbell_seen(&self) {
        // A swap, not a store: it reads the value of a poster that found the doorbell rung and did
        // not ring again. So the engine sees the request that this poster had put into the ring.
        self.rung.swap(false, Ordering::SeqCst);
    }

    fn ring(&self) {
        debug_assert!(self.qpn.value() > 1, "no program posts to QP0 or QP1");
        if !self.rung.swap(true, Ordering::SeqCst) {
            self.doorbells.ring(self.qpn);
        }
    }

    fn check_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        let cap = &self.init.cap;
        let bytes = request.payload.len();
        check_service(self.init.service, request)?;
        match &request.payload {
            Payload::Sges(list) => check_sges(list.len(), cap.max_send_sge)?,
            Payload::Inline(_) if request.op.fetches() => {
                return Err(VerbsError::InvalidRequest {
                    why: "READ and atomics fetch data: they cannot be inline",
                });
            }
            Payload::Inline(_) => {
                check_limit("bytes of inline data", bytes, u64::from(cap.max_inline_data))?;
            }
        }
        check_limit("bytes in a message", bytes, self.max_message)?;
        // A longer list is allowed: devices use its first 8 bytes.
        if request.op.is_atomic() && bytes < 8 {
            return Err(VerbsError::InvalidRequest {
                why: "the result of an atomic is 8 bytes: give it a scatter list of 8 bytes",
            });
        }
        if matches!(request.op, SendOp::AtomicWrite { .. }) && bytes != 8 {
            return Err(VerbsError::InvalidRequest { why: "an ATOMIC WRITE writes 8 bytes" });
        }
        if (request.op.is_local() || matches!(request.op, SendOp::Flush { .. })) && bytes != 0 {
            return Err(VerbsError::InvalidRequest { why: "this operation has no payload" });
        }
        if matches!(request.op, SendOp::Flush { placement, .. } if placement.is_empty()) {
            return Err(VerbsError::InvalidRequest {
                why: "a FLUSH must say how far: GLOBAL, PERSISTENT or both",
            });
        }
        if let SendOp::CompareSwap { remote, .. }
        | SendOp::FetchAdd { remote, .. }
        | SendOp::AtomicWrite { remote } = request.op
            && !remote.addr.is_multiple_of(8)
        {
            return Err(VerbsError::InvalidRequest {
                why: "the remote address of an atomic must be a multiple of 8",
            });
        }
        Ok(())
    }
}

/// Checks that the transport service supports the operation. IBTA table 22 (9.1).
fn check_service(service: QpType, request: &SendRequest) -> Result<(), VerbsError> {
    const NOT_XRC: &str = "only XRC requests name a shared receive queue of the peer";
    let why = match (service, &request.op) {
        (QpType::Uc, op) if op.is_answered() || matches!(op, SendOp::SendInvalidate { .. }) => {
            "UC has neither READ, atomics, FLUSH nor SEND with invalidate: use RC"
        }
        (QpType::Ud, SendOp::Send { .. }) if request.to.is_none() => {
            "a datagram needs an address handle, the peer's QP number and Q_Key"
        }
        (QpType::Ud, SendOp::Send { .. }) if request.xrc_srq.is_some() => NOT_XRC,
        (QpType::Ud, SendOp::Send { .. } | SendOp::Fail { .. }) => return Ok(()),
        (QpType::Ud, _) => "UD has only SEND: use RC or UC",
        (QpType::XrcRecv, _) => "an XRC target QP only receives",
        (QpType::XrcSend, op) if request.xrc_srq.is_none() && !op.is_local() => {
            "an XRC request names the peer's shared receive queue: set its number"
        }
        (_, _) if request.to.is_some() => {
            "a connected QP sends to its peer: the request must not name an address handle"
        }
        (QpType::Rc | QpType::Uc, _) if request.xrc_srq.is_some() => NOT_XRC,
        _ => return Ok(()),
    };
    Err(VerbsError::InvalidRequest { why })
}

fn check_sges(asked: usize, limit: u32) -> Result<(), VerbsError> {
    check_limit("elements in the scatter/gather list", asked as u64, u64::from(limit))
}

fn check_limit(what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
    if asked > limit {
        return Err(VerbsError::LimitExceeded { what, asked, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_poster_needs_of_a_queue_pair_takes_few_cache_lines() {
        // With thousands of queue pairs, each cache line costs some nanoseconds per message:
        // docs/en/project/performance.md.
        let receives = offset_of!(QpHandle, sq);
        assert!(receives <= 3 * 64, "{receives} bytes");
        assert!(size_of::<QpHandle>() <= 6 * 64, "{} bytes", size_of::<QpHandle>());
        assert_eq!(align_of::<QpHandle>(), 64);
    }
}
