//! The send and receive side of a queue pair. All dispatch over the transport services (RC, UC, UD) is
//! in this file.

use crate::service::{ConnectionError, Ctx, QpHandle, QpView, SendError};
use crate::types::{Psn, QpType, Time};
use crate::wire::{NetHeader, Packet, TxBatch};
use crate::{rc, uc, ud};

/// The send side.
#[derive(Debug)]
pub(super) enum SendSide {
    Rc(rc::Requester),
    Uc(uc::Requester),
    Ud(ud::Requester),
}

/// The receive side. UD has no state here.
#[derive(Debug)]
pub(super) enum RecvSide {
    Rc(rc::Responder),
    Uc(uc::Responder),
    Ud,
}

/// How far a queue pair has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendProgress {
    /// The PSN of the next packet.
    pub psn: Psn,
    /// Packets that are sent and not acknowledged; 0 for services without acknowledgements.
    pub unacknowledged: u32,
    /// How many packets the loss-driven window allows in flight; 0 for services without a window.
    pub window: u32,
}

/// How much of the QP stops after its send side has failed.
pub(super) enum SendFailure {
    /// Only sending: the QP goes to SQE.
    SendQueue,
    /// Everything: the QP goes to ERR.
    QueuePair,
}

/// Makes the same call for each service.
macro_rules! each {
    ($kind:ident, $side:expr, $it:ident => $call:expr) => {
        match $side {
            $kind::Rc($it) => $call,
            $kind::Uc($it) => $call,
            $kind::Ud($it) => $call,
        }
    };
}

impl SendSide {
    /// Returns the send side of a QP before RTS.
    pub(super) fn idle(service: QpType) -> Self {
        match service {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => Self::Rc(rc::Requester::default()),
            QpType::Uc => Self::Uc(uc::Requester::default()),
            QpType::Ud => Self::Ud(ud::Requester::default()),
        }
    }

    /// Returns the send side of a QP that enters RTS.
    pub(super) fn start(sq_psn: Psn, view: &QpView<'_>) -> Self {
        match view.identity.service {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                Self::Rc(rc::Requester::new(sq_psn, view))
            }
            QpType::Uc => Self::Uc(uc::Requester::new(sq_psn)),
            QpType::Ud => Self::Ud(ud::Requester::new(sq_psn)),
        }
    }

    /// Receives a response. Only RC has responses.
    pub(super) fn receive(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ConnectionError> {
        match self {
            Self::Rc(requester) => requester.receive(view, ctx, packet),
            Self::Uc(_) | Self::Ud(_) => Ok(()),
        }
    }

    /// Receives a coalesced segment of responses. Returns whether it could be received as one.
    pub(super) fn receive_coalesced(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<bool, ConnectionError> {
        match self {
            Self::Rc(requester) => requester.receive_coalesced(view, ctx, packet),
            Self::Uc(_) | Self::Ud(_) => Ok(false),
        }
    }

    /// Sends up to about `budget` packets. Returns whether more may be sent.
    pub(super) fn transmit(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> Result<bool, SendFailure> {
        match self {
            Self::Rc(requester) => {
                let more = requester.transmit(view, ctx, batch, budget);
                requester.reap(view, ctx).map_err(|ConnectionError| SendFailure::QueuePair)?;
                Ok(more)
            }
            Self::Uc(requester) => requester
                .transmit(view, ctx, batch, budget)
                .map_err(|SendError| SendFailure::SendQueue),
            Self::Ud(requester) => requester
                .transmit(view, ctx, batch, budget)
                .map_err(|SendError| SendFailure::SendQueue),
        }
    }

    /// Prefetches the memory that sending needs besides the QP itself.
    pub(super) fn prefetch(&self) {
        if let Self::Rc(requester) = self {
            requester.prefetch();
        }
    }

    /// Returns how far the QP has sent.
    pub(super) fn progress(&self) -> SendProgress {
        match self {
            Self::Rc(requester) => {
                let (unacknowledged, window) = requester.outstanding();
                SendProgress { psn: requester.psn(), unacknowledged, window }
            }
            Self::Uc(requester) => SendProgress { psn: requester.psn(), ..Default::default() },
            Self::Ud(requester) => SendProgress { psn: requester.psn(), ..Default::default() },
        }
    }

    /// Records that the doorbell rang.
    pub(super) fn posted(&mut self) {
        if let Self::Rc(requester) = self {
            requester.posted();
        }
    }

    pub(super) fn has_work(&self, view: &QpView<'_>) -> bool {
        match self {
            Self::Rc(requester) => requester.has_work(),
            Self::Uc(requester) => requester.has_work(view),
            Self::Ud(requester) => requester.has_work(view),
        }
    }

    /// See [`Qp::inflight_weight`](super::Qp::inflight_weight). Only RC has a weight.
    #[inline]
    pub(super) fn inflight_weight(&self) -> u16 {
        match self {
            Self::Rc(requester) => requester.inflight_weight(),
            _ => 0,
        }
    }

    pub(super) fn handle_timeout(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), ConnectionError> {
        match self {
            Self::Rc(requester) => requester.handle_timeout(view, ctx),
            Self::Uc(_) | Self::Ud(_) => Ok(()),
        }
    }

    /// Returns the congestion control and loss recovery of RC; `None` for other services.
    #[inline]
    pub(super) fn control(&mut self) -> Option<&mut impl rc::Controller> {
        match self {
            Self::Rc(requester) => Some(requester.control()),
            Self::Uc(_) | Self::Ud(_) => None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Rc(requester) => requester.deadline(),
            Self::Uc(_) | Self::Ud(_) => None,
        }
    }

    pub(super) fn flush(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        each!(Self, self, it => it.flush(view, ctx));
    }

    pub(super) fn forget(&mut self, handle: &QpHandle) {
        each!(Self, self, it => it.forget(handle));
    }

    pub(super) fn drain(&mut self) {
        each!(Self, self, it => it.drain());
    }

    pub(super) fn resume(&mut self) {
        each!(Self, self, it => it.resume());
    }

    pub(super) fn take_drained(&mut self) -> bool {
        each!(Self, self, it => it.take_drained())
    }

    /// Returns whether the send queue drains and has not drained yet.
    pub(super) fn is_draining(&self) -> bool {
        each!(Self, self, it => it.is_draining())
    }
}

impl RecvSide {
    /// Returns the receive side of a QP before RTR.
    pub(super) fn idle(service: QpType) -> Self {
        Self::start(service, Psn::ZERO)
    }

    /// Returns the receive side of a QP that enters RTR.
    pub(super) fn start(service: QpType, rq_psn: Psn) -> Self {
        match service {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => Self::Rc(rc::Responder::new(rq_psn)),
            QpType::Uc => Self::Uc(uc::Responder::new(rq_psn)),
            QpType::Ud => Self::Ud,
        }
    }

    /// Receives a request.
    pub(super) fn receive(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        net: &NetHeader,
        packet: &Packet<'_>,
    ) -> Result<(), ConnectionError> {
        match self {
            Self::Rc(responder) => return responder.receive(view, ctx, packet),
            Self::Uc(responder) => responder.receive(view, ctx, packet),
            Self::Ud => ud::receive(view, ctx, net, packet),
        }
        Ok(())
    }

    /// Receives a coalesced segment of requests. Returns whether it could be received as one.
    pub(super) fn receive_coalesced(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> bool {
        match self {
            Self::Rc(responder) => responder.receive_coalesced(view, ctx, packet),
            Self::Uc(responder) => responder.receive_coalesced(view, ctx, packet),
            Self::Ud => false,
        }
    }

    /// Sends responses, among them at most `budget` packets with READ data. Returns whether more wait.
    /// Only RC has responses.
    pub(super) fn transmit(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> (bool, Result<(), ConnectionError>) {
        match self {
            Self::Rc(responder) => responder.transmit(view, ctx, batch, budget),
            Self::Uc(_) | Self::Ud => (false, Ok(())),
        }
    }

    pub(super) fn has_work(&self) -> bool {
        matches!(self, Self::Rc(responder) if responder.has_work())
    }

    /// Returns whether the next response has no READ data.
    pub(super) fn has_small_work(&self) -> bool {
        matches!(self, Self::Rc(responder) if responder.has_small_work())
    }

    pub(super) fn can_wait(&self) -> bool {
        !matches!(self, Self::Rc(responder) if !responder.can_wait())
    }

    /// Returns the PSN of the next request; `None` for UD, which accepts any.
    pub(super) fn expected(&self) -> Option<Psn> {
        match self {
            Self::Rc(responder) => Some(responder.expected()),
            Self::Uc(responder) => Some(responder.expected()),
            Self::Ud => None,
        }
    }

    /// Returns the message sequence number; `None` unless the service is RC.
    pub(super) fn msn(&self) -> Option<u32> {
        match self {
            Self::Rc(responder) => Some(responder.msn()),
            Self::Uc(_) | Self::Ud => None,
        }
    }

    pub(super) fn flush(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        match self {
            Self::Rc(responder) => responder.flush(view, ctx),
            Self::Uc(responder) => responder.flush(view, ctx),
            Self::Ud => crate::message::Assembly::default().flush(view, ctx),
        }
    }

    pub(super) fn forget(&mut self, handle: &QpHandle) {
        match self {
            Self::Rc(responder) => responder.forget(handle),
            Self::Uc(responder) => responder.forget(handle),
            Self::Ud => crate::message::Assembly::default().forget(handle),
        }
    }
}
