//! Code that all requesters share: memory checks, completions and draining of the send queue.

use super::{Ctx, QpView};
use crate::mem::{Access, AccessError};
use crate::queue::{
    Completion, CompletionOp, Payload, SendFlags, SendOp, SendRequest, Sge, Status,
};

/// Checks that the request may access its local memory.
pub(crate) fn check_memory(
    request: &SendRequest,
    view: &QpView<'_>,
    ctx: &Ctx<'_>,
) -> Result<(), Status> {
    bad_memory(request, view, ctx).map_or(Ok(()), |_| Err(Status::LocalProtection))
}

/// Returns the first element of the request's list that it may not access, and the reason.
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

/// Frees the slot of the request, and generates a completion if the program requested one.
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

/// Returns the completion opcode of a request.
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

/// The progress of the transition to SQD. IBTA 10.3.1.5.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drain {
    #[default]
    No,
    /// No further request is started; those in progress continue.
    Draining,
    /// The queue is drained, and the event is emitted.
    Drained,
}

impl Drain {
    pub(crate) fn begin(&mut self) {
        debug_assert_eq!(*self, Self::No, "only a QP in RTS begins to drain");
        *self = Self::Draining;
    }

    /// Returns whether the queue has just drained. Returns `true` only once.
    pub(crate) fn take_drained(&mut self, busy: bool) -> bool {
        let drained = *self == Self::Draining && !busy;
        if drained {
            *self = Self::Drained;
        }
        drained
    }
}
