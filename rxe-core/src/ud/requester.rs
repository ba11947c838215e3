//! The UD requester: each request is one packet, and completes when it has been sent. IBTA 9.8.3.1.

use crate::mem::{Source, Spans};
use crate::queue::{Payload, SendFlags, SendOp, SendRequest, Status};
use crate::service::{
    Ctx, Drain, QpHandle, QpView, SendError, check_memory, complete_send, do_local,
};
use crate::types::{Psn, Qkey};
use crate::wire::{Bth, Deth, Ext, NetHeader, Opcode, TxBatch};

/// The send side of a UD queue pair.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    next: Psn,
    drain: Drain,
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

    /// Sends up to `budget` datagrams. Returns whether more may be sent.
    pub(crate) fn transmit(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> Result<bool, SendError> {
        for _ in 0..budget {
            if batch.is_full() {
                return Ok(true);
            }
            if self.drain != Drain::No {
                return Ok(false);
            }
            let Some(request) = view.handle.sq.take() else { return Ok(false) };
            let result = self.send(view, ctx, batch, &request);
            let status = result.err().unwrap_or(Status::Success);
            complete_send(view, ctx, &request, status);
            result.map_err(|_| SendError)?;
        }
        Ok(true)
    }

    fn send(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        request: &SendRequest,
    ) -> Result<(), Status> {
        let imm = match request.op {
            SendOp::Send { imm } => imm,
            SendOp::Fail { .. } => return do_local(request, view, ctx),
            _ => return Err(Status::LocalQpOperation),
        };
        let pd = view.identity.pd;
        let to = request.to.as_ref().filter(|to| to.ah.pd == pd);
        let to = to.ok_or(Status::LocalQpOperation)?;
        let len = usize::try_from(request.payload.len()).map_err(|_| Status::LocalLength)?;
        if len > view.max_mtu().bytes() {
            return Err(Status::LocalLength);
        }
        check_memory(request, view, ctx)?;
        let spans = match &request.payload {
            Payload::Sges(list) => {
                let spans = ctx.mem.gather(pd, list, 0, len);
                spans.map_err(|_| Status::LocalProtection)?
            }
            Payload::Inline(_) => Spans::new(),
        };
        let opcode = match imm {
            Some(_) => Opcode::UD_SEND_ONLY_WITH_IMMEDIATE,
            None => Opcode::UD_SEND_ONLY,
        };
        let mut bth = Bth::new(opcode, to.qpn, self.next);
        bth.solicited = request.flags.contains(SendFlags::SOLICITED);
        let deth = Deth::new(qkey_sent(to.qkey, view.attr.qkey), view.qpn());
        let ext = Ext { deth: Some(deth), imm, ..Ext::default() };
        let net = NetHeader { src_port: view.net.src_port, ..to.ah.net };
        debug_assert!(!deth.qkey.is_controlled() || deth.qkey == view.attr.qkey, "C10-15");
        let payload = match &request.payload {
            Payload::Inline(bytes) => Source::Bytes(bytes),
            Payload::Sges(_) => Source::Spans(&spans),
        };
        let sent = batch.packet(None, &net, &bth, &ext, payload);
        sent.map_err(|why| {
            ctx.report_memory_fault(view, why);
            Status::LocalProtection
        })?;
        debug_assert!(len <= view.max_mtu().bytes() && to.ah.pd == pd, "checked before");
        self.next = self.next.next();
        Ok(())
    }

    /// Returns whether [`Requester::transmit`] may have something to send.
    pub(crate) fn has_work(&self, view: &QpView<'_>) -> bool {
        self.drain == Drain::No && !view.handle.sq.is_empty()
    }

    /// Completes all requests as flushed.
    pub(crate) fn flush(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        while let Some(request) = view.handle.sq.take() {
            complete_send(view, ctx, &request, Status::WorkRequestFlushed);
        }
    }

    /// Drops all requests without completions, for RESET.
    pub(crate) fn forget(&mut self, handle: &QpHandle) {
        handle.sq.forget();
    }

    pub(crate) fn drain(&mut self) {
        self.drain.begin();
    }

    pub(crate) fn resume(&mut self) {
        self.drain = Drain::No;
    }

    pub(crate) fn take_drained(&mut self) -> bool {
        self.drain.take_drained(false)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain == Drain::Draining
    }
}

/// Returns the Q_Key of a datagram. If the request's Q_Key has the high bit set, the queue pair's
/// own is sent: only privileged programs may choose such a Q_Key. C10-15.
fn qkey_sent(request: Qkey, own: Qkey) -> Qkey {
    if request.is_controlled() { own } else { request }
}
