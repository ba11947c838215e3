//! What all requesters share: checking a request's memory, completing it, draining the queue.

use super::{Ctx, QpView};
use crate::mem::{Access, AccessError};
use crate::queue::{
    Completion, CompletionOp, Payload, SendFlags, SendOp, SendRequest, Sge, Status,
};

/// Checks that the request may use its local memory as it says.
pub(crate) fn check_memory(
    request: &SendRequest,
    view: &QpView<'_>,
    ctx: &Ctx<'_>,
) -> Result<(), Status> {
    bad_memory(request, view, ctx).map_or(Ok(()), |_| Err(Status::LocalProtection))
}

/// The first element of the request's list that it may not use, and why.
pub(crate) fn bad_memory(
    request: &SendRequest,
    view: &QpView<'_>,
    ctx: &Ctx<'_>,
) -> Option<(Sge, AccessError)> {
    let Payload::Sges(list) = &request.payload else { return None };
    let need = if request.op.fetches() { Access::LOCAL_WRITE } else { Access::empty() };
    ctx.mem.find_bad(view.identity.pd, list, need)
}

/// Executes a request that sends nothing.
pub(crate) fn do_local(
    request: &SendRequest,
    view: &QpView<'_>,
    ctx: &Ctx<'_>,
) -> Result<(), Status> {
    let (pd, qpn) = (view.identity.pd, view.qpn());
    match request.op {
        SendOp::BindWindow { window, new_key, binding } => {
            let bound = ctx.mem.bind(pd, qpn, window, new_key, binding);
            bound.map_err(|_| Status::MemoryWindowBind)
        }
        SendOp::LocalInvalidate { key } => {
            ctx.mem.invalidate(qpn, key).map_err(|_| Status::LocalQpOperation)
        }
        SendOp::Fail { status } if status != Status::Success => Err(status),
        _ => Ok(()),
    }
}

/// Frees the request's slot, and makes a completion if the program wants one.
pub(crate) fn complete_send(
    view: &QpView<'_>,
    ctx: &mut Ctx<'_>,
    request: &SendRequest,
    status: Status,
) {
    view.handle.sq.release();
    if status == Status::Success && completion_op(&request.op) == CompletionOp::Send {
        ctx.events.counters.rdma_sends += 1;
    }
    let init = &view.handle.init;
    let wanted = init.sq_sig_all || request.flags.contains(SendFlags::SIGNALED);
    if status == Status::Success && !wanted {
        return;
    }
    let completion = Completion {
        op: completion_op(&request.op),
        byte_len: request.message_len(),
        src_qp: view.attr.dest_qp_num,
        ..Completion::new(request.id, status, view.qpn(), ctx.now)
    };
    ctx.complete(&init.send_cq, completion);
}

/// The kind of completion of a request.
pub(crate) const fn completion_op(op: &SendOp) -> CompletionOp {
    match op {
        SendOp::Send { .. } | SendOp::SendInvalidate { .. } | SendOp::Fail { .. } => {
            CompletionOp::Send
        }
        SendOp::AtomicWrite { .. } => CompletionOp::AtomicWrite,
        SendOp::Flush { .. } => CompletionOp::Flush,
        SendOp::BindWindow { .. } => CompletionOp::BindWindow,
        SendOp::LocalInvalidate { .. } => CompletionOp::LocalInvalidate,
        SendOp::Write { .. } => CompletionOp::RdmaWrite,
        SendOp::Read { .. } => CompletionOp::RdmaRead,
        SendOp::CompareSwap { .. } => CompletionOp::CompareSwap,
        SendOp::FetchAdd { .. } => CompletionOp::FetchAdd,
    }
}

/// How far the transition to SQD has come. IBTA 10.3.1.5.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drain {
    #[default]
    No,
    /// No request is started; those that are started continue.
    Draining,
    /// Drained, and the event is emitted.
    Drained,
}

impl Drain {
    pub(crate) fn begin(&mut self) {
        debug_assert_eq!(*self, Self::No, "only a QP in RTS begins to drain");
        *self = Self::Draining;
    }

    /// Whether the queue has just drained. Returns `true` only once.
    pub(crate) fn take_drained(&mut self, busy: bool) -> bool {
        let drained = *self == Self::Draining && !busy;
        if drained {
            *self = Self::Drained;
        }
        drained
    }
}
