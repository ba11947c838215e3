//! Assembles a SEND or WRITE message from its packets, and takes a receive for it.
//!
//! Invariant: a packet changes memory only after all its checks have passed. An error leaves the
//! message unchanged, so that the packet can be received again.

use std::sync::Arc;

use crate::event::ResponderError;
use crate::queue::{Completion, CompletionOp, Immediate, RecvRequest, SharedReceiveQueue, Status};
use crate::service::{Ctx, QpHandle, QpView};
use crate::types::Key;
use crate::wire::{OpKind, Packet};

use super::check::{self, Assembling};

/// The message being received, if any.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    message: Message,
    /// A receive taken from the queue for a message that was then rejected. The next message that
    /// needs a receive reuses it. It is boxed because it is rarely present.
    carried_over_receive: Option<Box<CarriedOver>>,
}

/// A receive that was taken and not used.
#[derive(Debug)]
struct CarriedOver {
    receive: RecvRequest,
    /// The shared queue that an XRC message named.
    target: Option<Arc<SharedReceiveQueue>>,
}

#[derive(Debug, Default)]
enum Message {
    #[default]
    None,
    Send {
        receive: RecvRequest,
        received: u64,
        /// The shared queue that an XRC message named.
        target: Option<Arc<SharedReceiveQueue>>,
    },
    Write {
        va: u64,
        rkey: Key,
        len: u32,
        received: u32,
    },
}

/// The effect of a packet on its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// The message is not complete.
    Part,
    /// The message is complete, and so is the receive that it consumed, if any.
    Whole,
}

impl Assembly {
    /// Returns the kind of message that the next packet must continue.
    pub(crate) fn assembling(&self) -> Assembling {
        match self.message {
            Message::None => Assembling::Nothing,
            Message::Send { .. } => Assembling::Send,
            Message::Write { .. } => Assembling::Write,
        }
    }

    /// Returns whether a message has begun and is not complete.
    pub(crate) fn is_arriving(&self) -> bool {
        !matches!(self.message, Message::None)
    }

    /// Receives a packet, or a coalesced segment, of a SEND. Its order and length have been
    /// checked. If a coalesced segment is refused, the receive that it took is reused by its first
    /// packet.
    pub(crate) fn send(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<Delivered, ResponderError> {
        debug_assert_ne!(packet.info().starts, self.is_arriving(), "the order was checked");
        if packet.info().starts {
            let receive = self.take_receive(view, ctx).ok_or(ResponderError::ReceiverNotReady)?;
            let target = view.target.cloned();
            self.message = Message::Send { receive, received: 0, target };
        }
        self.fill(view, ctx, packet).inspect_err(|_| {
            if packet.count() > 1 && packet.info().starts {
                self.requeue_receive();
            }
        })
    }

    /// Takes the next receive, first the one in `carried_over_receive`.
    fn take_receive(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) -> Option<RecvRequest> {
        let number = |target: Option<&Arc<SharedReceiveQueue>>| target.map(|srq| srq.number());
        match self.carried_over_receive.as_ref().map(|carried| number(carried.target.as_ref())) {
            None => view.take_receive(ctx),
            Some(named) if named == number(view.target) => {
                self.carried_over_receive.take().map(|carried| carried.receive)
            }
            Some(_) => {
                // The message of the carried-over receive did not come again, but one for another
                // queue. No other message will use that receive.
                self.flush_carried_over(view, ctx);
                view.take_receive(ctx)
            }
        }
    }

    fn flush_carried_over(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        if let Some(CarriedOver { receive, target }) =
            self.carried_over_receive.take().map(|carried| *carried)
        {
            let view = QpView { target: target.as_ref(), ..*view };
            complete_receive_failed(&view, ctx, &receive, Status::WorkRequestFlushed);
        }
    }

    fn fill(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<Delivered, ResponderError> {
        let info = packet.info();
        let Message::Send { receive, received, target } = &mut self.message else {
            return Err(ResponderError::OpcodeOutOfSequence);
        };
        // All packets of an XRC message must name one queue: the receive was taken from that queue.
        if target.as_ref().map(|srq| srq.number()) != view.target.map(|srq| srq.number()) {
            return Err(ResponderError::OpcodeOutOfSequence);
        }
        let bytes = packet.source();
        let total = *received + bytes.len() as u64;
        debug_assert!(*received <= receive.capacity(), "{received} received");
        if total > receive.capacity() {
            return Err(ResponderError::MessageTooLong);
        }
        let pd = view.receive_pd();
        let spans = ctx
            .mem
            .scatter(pd, &receive.sges, *received, bytes.len())
            .map_err(ResponderError::BadReceiveBuffer)?;
        if let Some(key) = packet.ieth() {
            let invalidated = ctx.mem.invalidate(view.qpn(), Key::new(key));
            invalidated.map_err(|_| ResponderError::InvalidateRefused)?;
        }
        bytes.write_to(&spans).map_err(ResponderError::BadReceiveBuffer)?;
        *received = total;
        if !info.ends {
            return Ok(Delivered::Part);
        }
        if let Message::Send { receive, .. } = std::mem::take(&mut self.message) {
            complete_receive(view, ctx, &receive, CompletionOp::Recv, total, packet, false);
        }
        Ok(Delivered::Whole)
    }

    /// Receives a packet, or a coalesced segment, of a WRITE. Its order and length have been
    /// checked.
    pub(crate) fn write(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<Delivered, ResponderError> {
        let info = packet.info();
        let bytes = packet.source();
        let size = u32::try_from(bytes.len()).map_err(|_| ResponderError::BadLength)?;
        let (va, rkey, len, received) = match (&self.message, packet.reth()) {
            (_, Some(reth)) => (reth.va, reth.rkey, reth.dma_len, 0),
            (&Message::Write { va, rkey, len, received }, None) => (va, rkey, len, received),
            _ => return Err(ResponderError::OpcodeOutOfSequence),
        };
        // The order of checks is resources, then length, then rkey. A receive found here may be
        // taken by another QP a moment later, so only the choice of the error depends on this
        // check.
        if info.completes_recv && self.carried_over_receive.is_none() && view.has_no_receive() {
            return Err(ResponderError::ReceiverNotReady);
        }
        debug_assert!(received <= len && packet.info().starts != self.is_arriving());
        let total = received.checked_add(size).ok_or(ResponderError::BadLength)?;
        let fits = if info.ends { total == len } else { total < len };
        if !fits || u64::from(len) > view.identity.max_message {
            return Err(ResponderError::BadLength);
        }
        let mut place = None;
        if len > 0 {
            // The whole range is checked at every packet, because the region may be deregistered
            // meanwhile.
            let need = check::right(OpKind::Write);
            let whole = ctx.remote_writable(view, rkey, va, u64::from(len), need);
            let whole = whole.map_err(ResponderError::RemoteAccess)?;
            place = Some(whole.part(received, size).ok_or(ResponderError::BadLength)?);
        }
        // The receive is taken before memory changes: a WRITE that was executed is acknowledged, so
        // it must also complete. From here on, only unmapped memory can make the WRITE fail.
        let mut receive = None;
        if info.completes_recv {
            // A coalesced segment writes first: if it is refused, its packets are received one by
            // one, and one before the last may be the one that fails.
            if packet.count() > 1
                && let Some(place) = place.take()
            {
                bytes.write_to(&[place]).map_err(ResponderError::RemoteAccess)?;
            }
            receive = Some(self.take_receive(view, ctx).ok_or(ResponderError::ReceiverNotReady)?);
        }
        if let Some(Err(why)) = place.map(|place| bytes.write_to(&[place])) {
            if let Some(receive) = receive {
                debug_assert!(self.carried_over_receive.is_none(), "it would have been taken");
                self.carried_over_receive =
                    Some(Box::new(CarriedOver { receive, target: view.target.cloned() }));
            }
            return Err(ResponderError::RemoteAccess(why));
        }
        debug_assert!(receive.is_some() == info.completes_recv, "a receive for an immediate");
        self.message = Message::Write { va, rkey, len, received: total };
        if !info.ends {
            return Ok(Delivered::Part);
        }
        self.message = Message::None;
        if let Some(receive) = receive {
            let op = CompletionOp::RecvRdmaWithImm;
            complete_receive(view, ctx, &receive, op, u64::from(len), packet, false);
        }
        Ok(Delivered::Whole)
    }

    /// Abandons the message. A receive that it had taken completes with `status`.
    pub(crate) fn fail(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>, status: Status) {
        if let Message::Send { receive, target, .. } = std::mem::take(&mut self.message) {
            let view = QpView { target: target.as_ref(), ..*view };
            complete_receive_failed(&view, ctx, &receive, status);
        }
    }

    /// Abandons the message. The next message reuses the receive that it had taken.
    pub(crate) fn requeue_receive(&mut self) {
        // This never overwrites a carried-over receive: the message would have taken that one.
        if let Message::Send { receive, target, .. } = std::mem::take(&mut self.message) {
            debug_assert!(self.carried_over_receive.is_none());
            self.carried_over_receive = Some(Box::new(CarriedOver { receive, target }));
        }
        debug_assert!(!self.is_arriving());
    }

    /// Completes the receive in use and the receives of the QP's own queue as flushed.
    pub(crate) fn flush(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        self.fail(view, ctx, Status::WorkRequestFlushed);
        self.flush_carried_over(view, ctx);
        debug_assert!(!self.is_arriving() && self.carried_over_receive.is_none());
        while let Some(receive) = view.handle.rq.take_own() {
            complete_receive_failed(view, ctx, &receive, Status::WorkRequestFlushed);
        }
    }

    /// Drops the message and all posted receives without completions, for RESET.
    pub(crate) fn forget(&mut self, handle: &QpHandle) {
        self.requeue_receive();
        if self.carried_over_receive.take().is_some() {
            handle.rq.release();
        }
        while handle.rq.take_own().is_some() {
            handle.rq.release();
        }
    }
}

/// Completes a receive with success. `ipv4`: the datagram came over IPv4.
pub(crate) fn complete_receive(
    view: &QpView<'_>,
    ctx: &mut Ctx<'_>,
    receive: &RecvRequest,
    op: CompletionOp,
    len: u64,
    packet: &Packet<'_>,
    ipv4: bool,
) {
    debug_assert!(packet.info().ends, "a message is complete with its last packet");
    debug_assert!(op != CompletionOp::RecvRdmaWithImm || packet.imm().is_some());
    view.handle.rq.release();
    ctx.events.counters.rdma_recvs += 1;
    let invalidated = packet.ieth().map(|key| Immediate::Invalidated(Key::new(key)));
    let completion = Completion {
        op,
        byte_len: u32::try_from(len).unwrap_or(u32::MAX),
        imm: packet.imm().map(Immediate::Data).or(invalidated),
        src_qp: packet.deth().map_or(view.attr.dest_qp_num, |deth| deth.src_qp),
        grh: packet.deth().is_some(),
        ipv4,
        solicited: packet.solicited(),
        ..Completion::new(receive.id, Status::Success, view.qpn(), ctx.now)
    };
    ctx.complete(view.recv_cq(), completion);
}

/// Completes a receive with an error.
pub(crate) fn complete_receive_failed(
    view: &QpView<'_>,
    ctx: &mut Ctx<'_>,
    receive: &RecvRequest,
    status: Status,
) {
    debug_assert_ne!(status, Status::Success);
    view.handle.rq.release();
    let completion = Completion {
        op: CompletionOp::Recv,
        src_qp: view.attr.dest_qp_num,
        ..Completion::new(receive.id, status, view.qpn(), ctx.now)
    };
    ctx.complete(view.recv_cq(), completion);
}
