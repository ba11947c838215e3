//! The interface of a transport service to its queue pair and its engine: the context of a call,
//! the view of the queue pair, the handle that programs post to, and code that the services share.

mod handle;
mod receives;
mod sends;

use std::sync::Arc;

pub use handle::{QpHandle, QpInit};
pub(crate) use receives::{Receives, take_shared};
pub(crate) use sends::{Drain, bad_memory, check_memory, complete_send, completion_op, do_local};

use crate::event::{Event, EventSink};
use crate::mem::{Access, AccessError, MemoryGuard, PdId, Span, WritableSpan};
use crate::queue::{Completion, CompletionQueue, RecvRequest, SharedReceiveQueue};
use crate::types::{Key, Mtu, QpAttr, QpType, Qpn, Time};
use crate::wire::{Direct, DropReason, NetHeader, Service};

/// The constant properties of a QP, copied from its handle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QpIdentity {
    pub(crate) qpn: Qpn,
    pub(crate) pd: PdId,
    pub(crate) service: QpType,
    /// The maximum bytes of a message.
    pub(crate) max_message: u64,
}

/// A read-only view of a QP, which its requester and responder share.
#[derive(Clone, Copy)]
pub(crate) struct QpView<'a> {
    pub(crate) handle: &'a QpHandle,
    pub(crate) identity: &'a QpIdentity,
    pub(crate) attr: &'a QpAttr,
    pub(crate) net: &'a NetHeader,
    pub(crate) limits: SendLimits,
    /// The shared queue that the current XRC request names.
    pub(crate) target: Option<&'a Arc<SharedReceiveQueue>>,
}

impl QpView<'_> {
    pub(crate) fn qpn(&self) -> Qpn {
        self.identity.qpn
    }

    /// Returns the transport service as it is encoded in opcodes.
    pub(crate) fn service(&self) -> Service {
        match self.identity.service {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        }
    }

    /// Returns the protection domain that a peer's keys must belong to. For XRC, that of the named
    /// queue.
    pub(crate) fn pd(&self) -> PdId {
        self.target.map_or(self.identity.pd, |srq| srq.pd())
    }

    /// Returns the protection domain of receive buffers: that of the shared queue, if there is one.
    /// IBTA 10.2.9.3.
    pub(crate) fn receive_pd(&self) -> PdId {
        match (self.target, &self.handle.rq) {
            (Some(srq), _) | (None, Receives::Shared(srq)) => srq.pd(),
            (None, Receives::Own(_) | Receives::None) => self.identity.pd,
        }
    }

    /// Takes the next receive for a message from the peer.
    pub(crate) fn take_receive(&self, ctx: &mut Ctx<'_>) -> Option<RecvRequest> {
        match self.target {
            Some(srq) => take_shared(srq, ctx),
            None => self.handle.rq.take(ctx),
        }
    }

    /// Returns whether no receive is posted.
    pub(crate) fn has_no_receive(&self) -> bool {
        self.target.map_or_else(|| self.handle.rq.is_empty(), |srq| srq.is_empty())
    }

    /// Returns the completion queue of receives.
    pub(crate) fn recv_cq(&self) -> &CompletionQueue {
        let named = self.target.and_then(|srq| srq.cq());
        named.unwrap_or(&self.handle.init.recv_cq)
    }

    /// Returns the largest path MTU that the device's link carries.
    pub(crate) fn max_mtu(&self) -> Mtu {
        self.limits.max_mtu
    }
}

/// The amount of data that a QP may leave unacknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) packets: u32,
    pub(crate) bytes: u32,
    /// The current share of this QP in the packets that its peer accepts from all QPs.
    pub(crate) peer_window: u32,
    /// The largest path MTU that the link carries.
    pub(crate) max_mtu: Mtu,
}

/// The maximum number of packets in a coalesced segment.
const MAX_COALESCED: u16 = 64;

/// The context of one call into a QP.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Time,
    pub(crate) mem: &'a MemoryGuard<'a>,
    pub(crate) events: &'a mut EventSink,
    pub(crate) limits: SendLimits,
    /// The direct path for packets that need not wait in the batch, if there is one.
    pub(crate) direct: Option<&'a mut (dyn Direct + 'a)>,
    /// Whether a completion did not find a place in its queue.
    pub(crate) overflow: bool,
}

impl<'a> Ctx<'a> {
    pub(crate) fn new(
        now: Time,
        mem: &'a MemoryGuard<'a>,
        events: &'a mut EventSink,
        limits: SendLimits,
    ) -> Self {
        Self { now, mem, events, limits, direct: None, overflow: false }
    }

    /// Returns the direct path for packets that need not wait in the batch, if there is one.
    #[inline]
    pub(crate) fn direct(&mut self) -> Option<&mut (dyn Direct + 'a)> {
        self.direct.as_deref_mut()
    }

    /// Returns how many packets of the path MTU may be sent as one coalesced segment. The result is
    /// 1 where segments are not supported. See [`Coalesced`](crate::wire::Coalesced).
    #[inline]
    pub(crate) fn max_coalesced(&mut self, view: &QpView<'_>) -> u16 {
        let Some(direct) = self.direct.as_deref_mut() else { return 1 };
        let bytes = direct.max_coalesced(view.net, view.attr.dest_qp_num);
        if bytes == 0 {
            return 1;
        }
        let mtu = view.attr.path_mtu.bytes();
        u16::try_from(bytes / mtu).unwrap_or(u16::MAX).clamp(1, MAX_COALESCED)
    }

    /// Looks up memory that a peer names, for reading.
    pub(crate) fn remote(
        &self,
        view: &QpView<'_>,
        rkey: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Span<'a>, AccessError> {
        self.mem.remote(view.pd(), view.qpn(), rkey, addr, len, need)
    }

    /// Looks up memory that a peer names, for writing.
    pub(crate) fn remote_writable(
        &self,
        view: &QpView<'_>,
        rkey: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<WritableSpan<'a>, AccessError> {
        self.mem.remote_writable(view.pd(), view.qpn(), rkey, addr, len, need)
    }

    /// Emits an event if a copy failed because the program's memory is not mapped.
    pub(crate) fn report_memory_fault(&mut self, view: &QpView<'_>, why: AccessError) {
        if let AccessError::Faulted(fault) = why {
            self.events.emit(Event::MemoryFaulted { qpn: view.qpn(), fault });
        }
    }

    /// Drops the current packet.
    pub(crate) fn drop_packet(&mut self, view: &QpView<'_>, reason: DropReason) {
        let psn = self.events.psn;
        self.events.emit(Event::Dropped { reason, qpn: Some(view.qpn()), psn });
    }

    /// Adds a completion. The QP handles an overflow at the end of its call.
    pub(crate) fn complete(&mut self, cq: &CompletionQueue, completion: Completion) {
        let Err(overflow) = cq.push(completion) else { return };
        self.overflow = true;
        if overflow.first {
            self.events.overflowed = true;
            self.events.emit(Event::CqOverflow { cq: cq.id(), qpn: completion.qpn });
        }
    }
}

/// The error of a QP that must enter the error state. The failed request has its completion; the
/// other requests must be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionError;

/// The error of a UC or UD send queue that must enter the send queue error state. The failed
/// request has its completion; the other requests must be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendError;
