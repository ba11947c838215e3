//! Queue pairs: attributes, the state machine, and what one is composed of. IBTA 10.2.4, 10.3, 11.2.5.
//!
//! A queue pair has a send side (a requester) and a receive side (a responder) that share nothing
//! but the link: what both need to know and neither changes.

mod attr;
mod congestion;
mod handle;
mod modify;
mod receives;
mod sends;
mod sides;
mod state;

use std::sync::Arc;

pub use attr::{AddressVector, AttrMask, QpAttr, QpCap, QpState, QpType};
pub use handle::{Doorbells, QpHandle, QpInit};
pub(crate) use modify::address;
pub(crate) use receives::{Receives, take_shared};
pub(crate) use sends::{Drain, bad_memory, check_memory, complete_send, completion_op, do_local};
pub use state::check_modify;

use crate::engine::{Event, EventSink};
use crate::mem::{Access, AccessError, MemoryGuard, PdId, Span, WritableSpan};
use crate::prefetch;
use crate::queue::{Completion, CompletionQueue, RecvRequest, SharedReceiveQueue};
use crate::types::{Key, Mtu, Qpn, Time};
use crate::wire::{DropReason, Ext, NetHeader, OpKind, Packet, Service, TxBatch, cnp, emit};

use congestion::Congestion;
use sides::{RecvSide, SendSide, Stop};

/// A queue pair as its engine holds it: all in one piece, of as many cache lines as a message needs,
/// so that one of ten thousand costs no chain of cache misses. What a packet need not touch stands
/// behind the handle.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Qp {
    pub(crate) handle: Arc<QpHandle>,
    pub(crate) made: Made,
    attr: QpAttr,
    /// How packets to the peer are addressed; known from RTR on.
    net: NetHeader,
    send: SendSide,
    recv: RecvSide,
    congestion: Congestion,
    /// The last attempt to send was held up before it was known what there is to send.
    cut_off: bool,
    /// Whether the first packet of the peer has been seen.
    established: bool,
    /// Where the engine has put it.
    pub(crate) scheduled: Scheduled,
}

/// What never changes of a QP: a copy of what its handle says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Made {
    pub(crate) qpn: Qpn,
    pub(crate) pd: PdId,
    pub(crate) service: QpType,
    /// The most bytes in a message.
    pub(crate) max_message: u64,
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
    pub(crate) made: &'a Made,
    pub(crate) attr: &'a QpAttr,
    pub(crate) net: NetHeader,
    pub(crate) window: Window,
    /// The shared queue that the XRC request being handled names.
    pub(crate) target: Option<&'a Arc<SharedReceiveQueue>>,
}

impl Link<'_> {
    pub(crate) fn qpn(&self) -> Qpn {
        self.made.qpn
    }

    /// Under which service packets travel.
    pub(crate) fn service(&self) -> Service {
        match self.made.service {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        }
    }

    /// The protection domain that a peer's keys must belong to. For XRC that of the queue named.
    pub(crate) fn pd(&self) -> PdId {
        self.target.map_or(self.made.pd, |srq| srq.pd())
    }

    /// The protection domain of the receives' buffers: for a shared queue, its own. IBTA 10.2.9.3.
    pub(crate) fn receive_pd(&self) -> PdId {
        match (self.target, &self.handle.rq) {
            (Some(srq), _) | (None, Receives::Shared(srq)) => srq.pd(),
            (None, Receives::Own(_) | Receives::None) => self.made.pd,
        }
    }

    /// The next receive for a message from the peer.
    pub(crate) fn take_receive(&self, ctx: &mut Ctx<'_>) -> Option<RecvRequest> {
        match self.target {
            Some(srq) => take_shared(srq, ctx),
            None => self.handle.rq.take(ctx),
        }
    }

    /// Whether no receive is posted.
    pub(crate) fn has_no_receive(&self) -> bool {
        self.target.map_or_else(|| self.handle.rq.is_empty(), |srq| srq.is_empty())
    }

    /// Where receives complete.
    pub(crate) fn recv_cq(&self) -> &CompletionQueue {
        let named = self.target.and_then(|srq| srq.cq());
        named.unwrap_or(&self.handle.init.recv_cq)
    }

    /// The largest payload that the device's link carries.
    pub(crate) fn max_mtu(&self) -> Mtu {
        self.window.max_mtu
    }
}

/// How much one QP may leave unacknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) packets: u32,
    pub(crate) bytes: u32,
    /// The largest payload that the link carries.
    pub(crate) max_mtu: Mtu,
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

    /// Memory that a peer names, for a QP.
    pub(crate) fn remote(
        &self,
        link: &Link<'_>,
        rkey: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Span<'a>, AccessError> {
        self.mem.remote(link.pd(), link.qpn(), rkey, addr, len, need)
    }

    /// The same to be written.
    pub(crate) fn remote_writable(
        &self,
        link: &Link<'_>,
        rkey: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<WritableSpan<'a>, AccessError> {
        self.mem.remote_writable(link.pd(), link.qpn(), rkey, addr, len, need)
    }

    /// Tells why a copy of the program's memory failed, if the memory itself was not there.
    pub(crate) fn faulted(&mut self, link: &Link<'_>, why: AccessError) {
        if let AccessError::Faulted(fault) = why {
            self.events.emit(Event::MemoryFaulted { qpn: link.qpn(), fault });
        }
    }

    /// Drops the packet being handled.
    pub(crate) fn drop_packet(&mut self, link: &Link<'_>, reason: DropReason) {
        let psn = self.events.psn;
        self.events.emit(Event::Dropped { reason, qpn: Some(link.qpn()), psn });
    }

    /// Adds a completion; the QP notices an overflow when its call ends.
    pub(crate) fn complete(&mut self, cq: &CompletionQueue, completion: Completion) {
        let Err(overflow) = cq.push(completion) else { return };
        self.overflow = true;
        if overflow.first {
            self.events.overflowed = true;
            self.events.emit(Event::CqOverflow { cq: cq.id(), qpn: completion.qpn });
        }
    }
}

/// The QP can not go on: the failing request has its completion, the rest must be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dead;

/// Only the send side can not go on (UC, UD): likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendError;

/// The link of a QP, leaving its sides free to be changed.
macro_rules! link_of {
    ($qp:expr, $ctx:expr) => {
        Link {
            handle: &$qp.handle,
            made: &$qp.made,
            attr: &$qp.attr,
            net: $qp.net,
            window: $ctx.window,
            target: None,
        }
    };
}
use link_of;

impl Qp {
    pub(crate) fn new(handle: Arc<QpHandle>) -> Self {
        let service = handle.init.service;
        let (qpn, pd, max_message) = (handle.qpn, handle.init.pd, handle.max_message());
        Self {
            handle,
            made: Made { qpn, pd, service, max_message },
            attr: QpAttr::default(),
            net: NetHeader::default(),
            send: SendSide::idle(service),
            recv: RecvSide::idle(service),
            congestion: Congestion::default(),
            cut_off: false,
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
    pub(crate) fn receive(&mut self, ctx: &mut Ctx<'_>, net: &NetHeader, packet: &Packet<'_>) {
        if !self.established {
            self.established = true;
            if self.state() == QpState::Rtr {
                ctx.events.emit(Event::CommunicationEstablished { qpn: self.made.qpn });
            }
        }
        if packet.info().kind == OpKind::Cnp {
            // Marked or not: a notification is not answered with another.
            ctx.events.emit(Event::CongestionNotified { qpn: self.made.qpn });
            return self.congestion.notified(ctx.now);
        }
        let connected = self.made.service != QpType::Ud;
        if connected && self.congestion.observe(ctx.now, net) {
            ctx.events.emit(Event::CongestionSeen { qpn: self.made.qpn });
        }
        let target = packet.xrc_srq().and_then(|srq| {
            // The 8 bits above the number are reserved.
            self.handle.init.xrcd.as_ref()?.find(srq & 0xff_ffff)
        });
        let link = Link { target: target.as_ref(), ..link_of!(self, ctx) };
        let result = if packet.info().is_request {
            self.recv.receive(&link, ctx, net, packet)
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
        match self.state() {
            // What was posted since.
            QpState::Err => self.flush(ctx),
            QpState::Sqe => self.send.flush(&link_of!(self, ctx), ctx),
            _ => {}
        }
        let before = batch.total().1;
        let connected = self.made.service != QpType::Ud;
        if connected {
            self.net.tos = self.congestion.mark(self.attr.ah_attr.traffic_class);
            if self.congestion.take_cnp() {
                self.notify_peer(batch);
            }
        }
        let mtu = self.attr.path_mtu.bytes();
        let budget = budget.min(self.congestion.allowance(ctx.now, mtu));
        // What acknowledges is small and never held up: the peer would take it for lost.
        self.cut_off = budget == 0;
        let mut more = false;
        // Requests first: an acknowledgement is smaller than most of them, and so leaves in the same
        // run as the last of them, in one call.
        if budget > 0 && matches!(self.state(), QpState::Rts | QpState::Sqd) {
            let link = link_of!(self, ctx);
            let result = match self.send.transmit(&link, ctx, batch, budget) {
                Ok(unfinished) => {
                    more |= unfinished;
                    Ok(())
                }
                Err(Stop::Sending) => {
                    self.set_state(QpState::Sqe);
                    self.send.flush(&link_of!(self, ctx), ctx);
                    Ok(())
                }
                Err(Stop::Everything) => Err(Dead),
            };
            self.settle(ctx, result);
        }
        let link = link_of!(self, ctx);
        let (unfinished, result) = self.recv.transmit(&link, ctx, batch, budget);
        self.settle(ctx, result);
        let bytes = batch.total().1 - before;
        self.congestion.sent(ctx.now, bytes);
        if bytes > 0 && self.congestion.is_pacing() {
            self.send.restart_timer(&link_of!(self, ctx), ctx);
        }
        if budget > 0 { more | unfinished } else { self.recv.has_small_work() }
    }

    /// Tells the peer that its packets arrive marked.
    fn notify_peer(&self, batch: &mut TxBatch) {
        // The class that hardware sends its notifications in.
        const CNP_TOS: u8 = 0xc2;
        let net = NetHeader { tos: CNP_TOS, ..self.net };
        let bth = cnp::bth(self.attr.dest_qp_num);
        batch.push_to(net, bth.dest_qp, emit::len(bth.opcode, 0), |net, buf| {
            emit::packet(net, buf, &bth, &Ext::default(), 0, |_| {});
        });
    }

    /// Does what is due at `ctx.now`.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        let link = link_of!(self, ctx);
        if self.congestion.is_held() {
            self.send.restart_timer(&link, ctx);
        }
        self.congestion.release(ctx.now);
        let result = self.send.handle_timeout(&link, ctx);
        self.settle(ctx, result);
    }

    /// This host did not run for a while: the peer's silence since then says nothing.
    pub(crate) fn excuse(&mut self, ctx: &Ctx<'_>) {
        self.send.excuse(&link_of!(self, ctx), ctx);
    }

    /// When it next wants to be called.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let deadlines = [self.send.deadline(), self.congestion.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Asks the processor for what this QP needs to send, beside itself.
    pub(crate) fn prefetch(&self) {
        prefetch::value(&*self.handle);
        self.send.prefetch();
    }

    /// The program may have posted requests: its doorbell rang.
    pub(crate) fn posted(&mut self) {
        self.handle.answered();
        self.send.posted();
    }

    /// Whether `transmit` would do something.
    pub(crate) fn has_work(&self, window: Window) -> bool {
        if self.congestion.has_cnp() {
            return true;
        }
        if self.congestion.is_held() {
            return self.recv.has_small_work();
        }
        self.cut_off || self.recv.has_work() || self.has_requests(window)
    }

    /// Whether `transmit` would send acknowledgements at most, which may as well go later.
    pub(crate) fn can_wait(&self, window: Window) -> bool {
        !self.congestion.has_cnp()
            && !self.cut_off
            && self.recv.can_wait()
            && !self.has_requests(window)
    }

    fn has_requests(&self, window: Window) -> bool {
        let (handle, made, attr, net) = (&self.handle, &self.made, &self.attr, self.net);
        let link = Link { handle, made, attr, net, window, target: None };
        matches!(self.state(), QpState::Rts | QpState::Sqd) && self.send.has_work(&link)
    }

    /// After every call: the error state where the call ended in it, the drained event where due.
    fn settle(&mut self, ctx: &mut Ctx<'_>, result: Result<(), Dead>) {
        if (result.is_err() || ctx.overflow) && self.state() != QpState::Err {
            self.enter_error(ctx);
        }
        if self.state() == QpState::Sqd && self.send.take_drained() && self.attr.en_sqd_async_notify
        {
            ctx.events.emit(Event::SqDrained { qpn: self.made.qpn });
        }
    }

    /// Goes into the error state if a queue that it completes to has overflowed.
    pub(crate) fn fail_if_overflowed(&mut self, ctx: &mut Ctx<'_>) {
        let init = &self.handle.init;
        let behind = init.send_cq.is_overflowed() || init.recv_cq.is_overflowed();
        if behind && !matches!(self.state(), QpState::Reset | QpState::Err) {
            self.enter_error(ctx);
        }
    }

    fn enter_error(&mut self, ctx: &mut Ctx<'_>) {
        self.set_state(QpState::Err);
        self.flush(ctx);
        if self.handle.rq.is_shared() {
            ctx.events.emit(Event::LastWqeReached { qpn: self.made.qpn });
        }
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
