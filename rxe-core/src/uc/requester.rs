//! The UC requester. A request completes when its last packet has been sent. IBTA 9.8.2.1.

use crate::message::{Outgoing, Segment, packets};
use crate::queue::{SendRequest, Status};
use crate::service::{
    Ctx, Drain, QpHandle, QpView, SendError, check_memory, complete_send, do_local,
};
use crate::types::Psn;
use crate::wire::{Service, TxBatch};

/// The send side of a UC queue pair.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    next: Psn,
    /// The message being sent, and the number of its packets already sent.
    sending: Option<(Message, u32)>,
    drain: Drain,
}

#[derive(Debug)]
struct Message {
    request: SendRequest,
    len: u32,
    first: Psn,
    packets: u32,
}

impl Requester {
    /// Creates the requester of a QP in RTS.
    pub(crate) fn new(sq_psn: Psn) -> Self {
        Self { next: sq_psn, ..Self::default() }
    }

    /// Returns the PSN of the next message.
    pub(crate) fn psn(&self) -> Psn {
        self.next
    }

    /// Sends up to `budget` packets. Returns whether more may be sent.
    pub(crate) fn transmit(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> Result<bool, SendError> {
        let mut left = u32::try_from(budget).unwrap_or(u32::MAX);
        while left > 0 {
            if batch.is_full() {
                return Ok(true);
            }
            if self.sending.is_none() && !self.begin(view, ctx)? {
                return Ok(false);
            }
            let Some((message, sent)) = &mut self.sending else { return Ok(false) };
            let outgoing = Outgoing {
                service: Service::Uc,
                request: &message.request,
                len: message.len,
                first: message.first,
                packets: message.packets,
                mtu: view.attr.path_mtu.bytes(),
                dest_qp: view.attr.dest_qp_num,
            };
            let memory = (ctx.mem, view.identity.pd);
            let mut send = |ctx: &mut Ctx<'_>, count: u16| {
                let segment = Segment::new(outgoing, *sent, count.into());
                segment.emit(memory, batch, ctx.direct(), view.net, false, count)
            };
            let rest = (message.packets - *sent).min(left);
            let at_once = if rest > 1 { rest.min(ctx.max_coalesced(view).into()) } else { 1 };
            let at_once = u16::try_from(at_once).expect("a segment at most");
            let (count, emitted) = if at_once > 1 && send(ctx, at_once) == Ok(true) {
                (u32::from(at_once), Ok(true))
            } else {
                (1, send(ctx, 1))
            };
            debug_assert!(count > 0 && count <= left, "{count} of at most {left}");
            *sent += count;
            left -= count;
            debug_assert!(
                *sent <= message.packets && message.first.add(message.packets) == self.next
            );
            if emitted.is_err() || *sent == message.packets {
                let done = self.sending.take();
                let Some((message, _)) = done else { return Ok(false) };
                if let Err(why) = emitted {
                    // The region was deregistered, or its memory unmapped, during the request.
                    ctx.report_memory_fault(view, why);
                    complete_send(view, ctx, &message.request, Status::LocalProtection);
                    return Err(SendError);
                }
                complete_send(view, ctx, &message.request, Status::Success);
            }
        }
        Ok(true)
    }

    /// Starts the next request. Returns whether there is one.
    fn begin(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) -> Result<bool, SendError> {
        if self.drain != Drain::No {
            return Ok(false);
        }
        let request = loop {
            let Some(request) = view.handle.sq.take() else { return Ok(false) };
            if !request.op.is_local() {
                break request;
            }
            let result = do_local(&request, view, ctx);
            complete_send(view, ctx, &request, result.err().unwrap_or(Status::Success));
            result.map_err(|_| SendError)?;
        };
        if let Err(status) = check_memory(&request, view, ctx) {
            complete_send(view, ctx, &request, status);
            return Err(SendError);
        }
        let len = u32::try_from(request.payload.len()).unwrap_or(u32::MAX);
        let packets = packets(len, view.attr.path_mtu.bytes());
        debug_assert!(packets > 0 && self.sending.is_none(), "one message at a time");
        self.sending = Some((Message { request, len, first: self.next, packets }, 0));
        self.next = self.next.add(packets);
        Ok(true)
    }

    /// Returns whether [`Requester::transmit`] may have something to send.
    pub(crate) fn has_work(&self, view: &QpView<'_>) -> bool {
        self.sending.is_some() || (self.drain == Drain::No && !view.handle.sq.is_empty())
    }

    /// Completes all requests, started or not, as flushed.
    pub(crate) fn flush(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        debug_assert!(self.sending.as_ref().is_none_or(|(message, sent)| *sent < message.packets));
        let begun = self.sending.take().map(|(message, _)| message.request);
        let rest = std::iter::from_fn(|| view.handle.sq.take());
        for request in begun.into_iter().chain(rest) {
            complete_send(view, ctx, &request, Status::WorkRequestFlushed);
        }
    }

    /// Drops all requests without completions, for RESET.
    pub(crate) fn forget(&mut self, handle: &QpHandle) {
        if self.sending.take().is_some() {
            handle.sq.release();
        }
        handle.sq.forget();
    }

    pub(crate) fn drain(&mut self) {
        self.drain.begin();
    }

    pub(crate) fn resume(&mut self) {
        self.drain = Drain::No;
    }

    pub(crate) fn take_drained(&mut self) -> bool {
        self.drain.take_drained(self.sending.is_some())
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain == Drain::Draining
    }
}
