//! The send and receive side of a queue pair, by transport service: one place that chooses.

use crate::service::{Ctx, Dead, Link, QpHandle, SendError};
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

/// The receive side. That of a datagram QP has no state.
#[derive(Debug)]
pub(super) enum RecvSide {
    Rc(rc::Responder),
    Uc(uc::Responder),
    Ud,
}

/// How a send side ended its queue.
pub(super) enum Stop {
    /// Only sending has stopped: the QP goes to SQE.
    Sending,
    /// Nothing goes on: the QP goes to ERR.
    Everything,
}

/// The same call on whichever side it is.
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
    /// Not yet ready to send.
    pub(super) fn idle(service: QpType) -> Self {
        match service {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => Self::Rc(rc::Requester::default()),
            QpType::Uc => Self::Uc(uc::Requester::default()),
            QpType::Ud => Self::Ud(ud::Requester::default()),
        }
    }

    /// In RTS.
    pub(super) fn start(sq_psn: Psn, link: &Link<'_>) -> Self {
        match link.made.service {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                Self::Rc(rc::Requester::new(sq_psn, link))
            }
            QpType::Uc => Self::Uc(uc::Requester::new(sq_psn)),
            QpType::Ud => Self::Ud(ud::Requester::new(sq_psn)),
        }
    }

    /// Takes a response. Only RC has such.
    pub(super) fn receive(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Dead> {
        match self {
            Self::Rc(requester) => requester.receive(link, ctx, packet),
            Self::Uc(_) | Self::Ud(_) => Ok(()),
        }
    }

    /// Sends up to about `budget` packets. Whether it stopped although more may be sent.
    pub(super) fn transmit(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> Result<bool, Stop> {
        match self {
            Self::Rc(requester) => {
                let more = requester.transmit(link, ctx, batch, budget);
                requester.reap(link, ctx).map_err(|Dead| Stop::Everything)?;
                Ok(more)
            }
            Self::Uc(requester) => {
                requester.transmit(link, ctx, batch, budget).map_err(|SendError| Stop::Sending)
            }
            Self::Ud(requester) => {
                requester.transmit(link, ctx, batch, budget).map_err(|SendError| Stop::Sending)
            }
        }
    }

    /// Asks the processor for what it needs to send, beside itself.
    pub(super) fn prefetch(&self) {
        if let Self::Rc(requester) = self {
            requester.prefetch();
        }
    }

    /// The doorbell rang.
    pub(super) fn posted(&mut self) {
        if let Self::Rc(requester) = self {
            requester.posted();
        }
    }

    pub(super) fn has_work(&self, link: &Link<'_>) -> bool {
        match self {
            Self::Rc(requester) => requester.has_work(),
            Self::Uc(requester) => requester.has_work(link),
            Self::Ud(requester) => requester.has_work(link),
        }
    }

    pub(super) fn handle_timeout(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), Dead> {
        match self {
            Self::Rc(requester) => requester.handle_timeout(link, ctx),
            Self::Uc(_) | Self::Ud(_) => Ok(()),
        }
    }

    /// Requests were held up on this side: the peer has the whole time to answer again.
    pub(super) fn restart_timer(&mut self, link: &Link<'_>, ctx: &Ctx<'_>) {
        if let Self::Rc(requester) = self {
            requester.restart_timer(link, ctx);
        }
    }

    /// This host did not run for a while.
    pub(super) fn excuse(&mut self, link: &Link<'_>, ctx: &Ctx<'_>) {
        if let Self::Rc(requester) = self {
            requester.excuse(link, ctx);
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Rc(requester) => requester.deadline(),
            Self::Uc(_) | Self::Ud(_) => None,
        }
    }

    pub(super) fn flush(&mut self, link: &Link<'_>, ctx: &mut Ctx<'_>) {
        each!(Self, self, it => it.flush(link, ctx));
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
}

impl RecvSide {
    /// Not yet ready to receive.
    pub(super) fn idle(service: QpType) -> Self {
        Self::start(service, Psn::ZERO)
    }

    /// In RTR.
    pub(super) fn start(service: QpType, rq_psn: Psn) -> Self {
        match service {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => Self::Rc(rc::Responder::new(rq_psn)),
            QpType::Uc => Self::Uc(uc::Responder::new(rq_psn)),
            QpType::Ud => Self::Ud,
        }
    }

    /// Takes a request.
    pub(super) fn receive(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
        net: &NetHeader,
        packet: &Packet<'_>,
    ) -> Result<(), Dead> {
        match self {
            Self::Rc(responder) => return responder.receive(link, ctx, packet),
            Self::Uc(responder) => responder.receive(link, ctx, packet),
            Self::Ud => ud::receive(link, ctx, net, packet),
        }
        Ok(())
    }

    /// Sends answers, of these at most `budget` packets with READ data; whether more are waiting.
    /// Only RC has such.
    pub(super) fn transmit(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> (bool, Result<(), Dead>) {
        match self {
            Self::Rc(responder) => responder.transmit(link, ctx, batch, budget),
            Self::Uc(_) | Self::Ud => (false, Ok(())),
        }
    }

    pub(super) fn has_work(&self) -> bool {
        matches!(self, Self::Rc(responder) if responder.has_work())
    }

    /// Whether the next answer is one without READ data.
    pub(super) fn has_small_work(&self) -> bool {
        matches!(self, Self::Rc(responder) if responder.has_small_work())
    }

    pub(super) fn can_wait(&self) -> bool {
        !matches!(self, Self::Rc(responder) if !responder.can_wait())
    }

    pub(super) fn flush(&mut self, link: &Link<'_>, ctx: &mut Ctx<'_>) {
        match self {
            Self::Rc(responder) => responder.flush(link, ctx),
            Self::Uc(responder) => responder.flush(link, ctx),
            Self::Ud => crate::message::Assembly::default().flush(link, ctx),
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
