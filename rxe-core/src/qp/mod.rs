//! Queue pairs: attributes, the state machine, and what one is composed of. IBTA 10.2.4, 10.3, 11.2.5.
//!
//! A queue pair has a send side (a requester) and a receive side (a responder) that share nothing
//! but the [`Link`]: what both need to know and neither changes.

mod attr;
mod handle;
mod modify;
mod state;

use std::sync::Arc;

pub use attr::{AddressVector, AttrMask, QpAttr, QpCap, QpState, QpType};
pub use handle::{Doorbells, QpHandle, QpInit};
pub use state::check_modify;

use crate::engine::{Event, EventSink};
use crate::mem::MemoryGuard;
use crate::queue::{Completion, CompletionQueue};
use crate::rc::{Requester, Responder};
use crate::types::{Qpn, Time};
use crate::wire::{NetHeader, Packet, TxBatch};

/// A queue pair as its engine holds it.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) handle: Arc<QpHandle>,
    attr: QpAttr,
    /// How packets to the peer are addressed; known from RTR on.
    net: NetHeader,
    send: Requester,
    recv: Responder,
    /// Whether the first packet of the peer has been seen.
    established: bool,
    /// Where the engine has put it.
    pub(crate) scheduled: Scheduled,
}

/// Where a QP stands in the engine's lists.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Scheduled {
    /// In the ready list.
    pub(crate) ready: bool,
    /// Its entry among the timers.
    pub(crate) timer: Option<Time>,
}

/// What both sides of a QP need to know and neither changes.
#[derive(Clone, Copy)]
pub(crate) struct Link<'a> {
    pub(crate) handle: &'a QpHandle,
    pub(crate) attr: &'a QpAttr,
    pub(crate) net: NetHeader,
    pub(crate) window: Window,
}

impl Link<'_> {
    pub(crate) fn qpn(&self) -> Qpn {
        self.handle.qpn
    }
}

/// How much one QP may leave unacknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) packets: u32,
    pub(crate) bytes: u32,
}

/// The surroundings in which a QP works for the length of one call.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Time,
    pub(crate) mem: &'a MemoryGuard<'a>,
    pub(crate) events: &'a mut EventSink,
    pub(crate) window: Window,
    /// A completion did not find room.
    pub(crate) overflow: bool,
}

impl<'a> Ctx<'a> {
    pub(crate) fn new(
        now: Time,
        mem: &'a MemoryGuard<'a>,
        events: &'a mut EventSink,
        window: Window,
    ) -> Self {
        Self { now, mem, events, window, overflow: false }
    }

    /// Adds a completion; the QP notices an overflow when its call ends.
    pub(crate) fn complete(&mut self, cq: &CompletionQueue, completion: Completion) {
        if cq.push(completion).is_err() && !self.overflow {
            self.overflow = true;
            self.events.emit(Event::CqOverflow { qpn: completion.qpn });
        }
    }
}

/// The QP can not go on: the failing request has its completion, the rest must be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dead;

/// One side of the QP, with the link beside it.
macro_rules! link_of {
    ($qp:expr, $ctx:expr) => {
        Link { handle: &$qp.handle, attr: &$qp.attr, net: $qp.net, window: $ctx.window }
    };
}
use link_of;

impl Qp {
    pub(crate) fn new(handle: Arc<QpHandle>) -> Self {
        Self {
            handle,
            attr: QpAttr::default(),
            net: NetHeader::default(),
            send: Requester::default(),
            recv: Responder::default(),
            established: false,
            scheduled: Scheduled::default(),
        }
    }

    pub(crate) fn state(&self) -> QpState {
        self.attr.qp_state
    }

    pub(crate) fn attr(&self) -> &QpAttr {
        &self.attr
    }

    /// The addresses that packets to the peer carry; those from it must carry the reverse.
    pub(crate) fn net(&self) -> &NetHeader {
        &self.net
    }

    /// Takes a packet that is meant for this QP, well-formed and unharmed.
    pub(crate) fn receive(&mut self, ctx: &mut Ctx<'_>, packet: &Packet<'_>) {
        if !self.established {
            self.established = true;
            if self.state() == QpState::Rtr {
                ctx.events.emit(Event::CommunicationEstablished { qpn: self.handle.qpn });
            }
        }
        let link = link_of!(self, ctx);
        let result = if packet.info().is_request {
            self.recv.receive(&link, ctx, packet)
        } else {
            self.send.receive(&link, ctx, packet)
        };
        self.settle(ctx, result);
    }

    /// Sends what it can, at most about `budget` packets. Whether more could be sent at once.
    pub(crate) fn transmit(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> bool {
        if self.state() == QpState::Err {
            // What was posted since.
            self.flush(ctx);
        }
        let link = link_of!(self, ctx);
        let (mut more, result) = self.recv.transmit(&link, ctx, batch, budget);
        self.settle(ctx, result);
        if matches!(self.state(), QpState::Rts | QpState::Sqd) {
            let link = link_of!(self, ctx);
            more |= self.send.transmit(&link, ctx, batch, budget);
            let result = self.send.reap(&link, ctx);
            self.settle(ctx, result);
        }
        more
    }

    /// Does what is due at `ctx.now`.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        let link = link_of!(self, ctx);
        let result = self.send.handle_timeout(&link, ctx);
        self.settle(ctx, result);
    }

    /// When it next wants to be called.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.send.deadline()
    }

    /// Whether `transmit` would do something.
    pub(crate) fn has_work(&self, window: Window) -> bool {
        let link = Link { handle: &self.handle, attr: &self.attr, net: self.net, window };
        self.recv.has_work()
            || match self.state() {
                QpState::Rts | QpState::Sqd => self.send.has_work(&link),
                _ => false,
            }
    }

    /// After every call: the error state where the call ended in it, the drained event where due.
    fn settle(&mut self, ctx: &mut Ctx<'_>, result: Result<(), Dead>) {
        if (result.is_err() || ctx.overflow) && self.state() != QpState::Err {
            self.enter_error(ctx);
        }
        if self.state() == QpState::Sqd && self.send.take_drained() && self.attr.en_sqd_async_notify
        {
            ctx.events.emit(Event::SqDrained { qpn: self.handle.qpn });
        }
    }

    fn enter_error(&mut self, ctx: &mut Ctx<'_>) {
        self.set_state(QpState::Err);
        self.flush(ctx);
    }

    fn flush(&mut self, ctx: &mut Ctx<'_>) {
        let link = link_of!(self, ctx);
        self.send.flush(&link, ctx);
        self.recv.flush(&link, ctx);
    }

    fn set_state(&mut self, state: QpState) {
        self.attr.qp_state = state;
        self.attr.cur_qp_state = state;
        self.handle.set_state(state);
    }
}
