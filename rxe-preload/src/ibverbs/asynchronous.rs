//! Asynchronous events. IBTA 11.6.3.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::ptr;

use rustix::fs::{OFlags, fcntl_getfl};
use rxe_verbs::{AsyncEvent, AsyncKind};

use super::abi::{async_element, ibv_async_event, ibv_context, ibv_qp};
use super::objects::{Context, Cq, Qp, Srq};
use crate::ffi::{Failure, Outcome, minus_one_of};
use crate::liveness::wait_in;

pub(super) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: an open context, or one whose structure has stayed.
    let owner = unsafe { Context::of(context) };
    if let Err(failure) = owner.check_open() {
        return minus_one_of("ibv_get_async_event", Err(failure));
    }
    let (id, fd) = (owner.liveness.id(), owner.verbs.context.async_fd);
    wait_in("ibv_get_async_event", id, fd, || {
        // SAFETY: the context is open until `wait_in` refuses the ID.
        let outcome = next(unsafe { Context::of(context) }).transpose()?;
        Some(outcome.map(|found| {
            // SAFETY: room for the event.
            unsafe { event.write(found) };
        }))
    })
}

/// Returns the next event, or `None` if the thread is to sleep in a read of the descriptor.
fn next(context: &Context) -> Outcome<Option<ibv_async_event>> {
    context.check()?;
    loop {
        // While the map is locked, no new queue pair can get the number of one that is destroyed
        // after its event was taken.
        let qps = context.qps.lock();
        let event = context.opened().and_then(|device| device.poll_async_event());
        let Some(event) = event else { break };
        if let Some(known) = translate(context, &qps, &event) {
            return Ok(Some(known));
        }
    }
    context.async_fd().ensure()?;
    let flags = fcntl_getfl(context.async_fd()).map_err(|e| Failure::plain(e.raw_os_error()))?;
    if flags.contains(OFlags::NONBLOCK) {
        return Err(Failure::plain(libc::EAGAIN));
    }
    Ok(None)
}

/// Converts an event for the program.
/// Returns `None` if its object is destroyed. `qps` has been locked since before the event was
/// taken. The event is counted while the map is locked: a thread that destroys the object first
/// removes it from the map, and then checks the count.
fn translate(
    context: &Context,
    qps: &HashMap<u32, *mut ibv_qp>,
    event: &AsyncEvent,
) -> Option<ibv_async_event> {
    let port = async_element { port_num: 1 };
    let element = match event.kind {
        AsyncKind::CqErr => {
            let cqs = context.cqs.lock();
            let cq = *cqs.get(&event.cq?)?;
            // SAFETY: the objects in the map exist.
            unsafe { Cq::of(cq) }.asyncs.delivered();
            async_element { cq }
        }
        AsyncKind::SrqLimitReached => {
            let srqs = context.srqs.lock();
            let srq = *srqs.get(&event.srq?)?;
            // SAFETY: the objects in the map exist.
            unsafe { Srq::of(srq) }.asyncs.delivered();
            async_element { srq }
        }
        AsyncKind::DeviceFatal
        | AsyncKind::PortActive
        | AsyncKind::PortErr
        | AsyncKind::GidChange => port,
        _ => {
            let qp = *qps.get(&event.qpn?.value())?;
            // SAFETY: the objects in the map exist.
            unsafe { Qp::of(qp) }.asyncs.delivered();
            async_element { qp }
        }
    };
    Some(ibv_async_event { element, event_type: event.kind as c_uint })
}

pub(super) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    const CQ_ERR: c_uint = AsyncKind::CqErr as c_uint;
    const SRQ_LIMIT: c_uint = AsyncKind::SrqLimitReached as c_uint;
    const QP_EVENTS: [AsyncKind; 6] = [
        AsyncKind::QpFatal,
        AsyncKind::QpReqErr,
        AsyncKind::QpAccessErr,
        AsyncKind::CommEst,
        AsyncKind::SqDrained,
        AsyncKind::QpLastWqeReached,
    ];
    // SAFETY: an event from ibv_get_async_event, whose object is not destroyed before this call.
    unsafe {
        let event = ptr::read(event);
        let (context, unacknowledged) = match event.event_type {
            CQ_ERR => ((*event.element.cq).context, &Cq::of(event.element.cq).asyncs),
            SRQ_LIMIT => ((*event.element.srq).context, &Srq::of(event.element.srq).asyncs),
            kind if QP_EVENTS.iter().any(|&k| k as c_uint == kind) => {
                ((*event.element.qp).context, &Qp::of(event.element.qp).asyncs)
            }
            _ => return,
        };
        // In a forked child there is nothing to do: the parent acknowledges its own events.
        if Context::of(context).is_own() {
            unacknowledged.acknowledged(1);
        }
    }
}
