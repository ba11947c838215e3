//! Delivers events: `rdma_get_cm_event`, and the calls of synchronous identifiers, which wait for
//! theirs.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use rustix::fs::{OFlags, fcntl_getfl};
use rxe_verbs::cm::{CmEvent, CmEventKind, CmParam, ConnParam, UdParam};

use super::abi::{
    event_param, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use super::channel::Channel;
use super::event::Event;
use super::id::{Id, acknowledge, find};
use crate::explain;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, minus_one_of};
use crate::ibverbs::qp_attr::to_ah_attr;
use crate::liveness::wait_in;

impl Channel {
    /// Waits for the next event of the synchronous identifier that owns this channel.
    pub(super) fn next(&self) -> Outcome<*mut rdma_cm_event> {
        loop {
            if let Some(event) = self.next_or_sleep()? {
                return Ok(event);
            }
            rustix::io::read(&self.channel, &mut [0; 8])
                .map_err(|e| Failure::plain(e.raw_os_error()))?;
        }
    }

    /// Returns the next event, or `None` if the thread is to sleep in a read of the descriptor.
    /// Fails with EAGAIN if there is no event and the program has set O_NONBLOCK on the descriptor.
    fn next_or_sleep(&self) -> Outcome<Option<*mut rdma_cm_event>> {
        self.check()?;
        if let Some(event) = self.channel.take_event(deliver) {
            return Ok(Some(event));
        }
        self.channel.ensure()?;
        let flags = fcntl_getfl(&self.channel).map_err(|e| Failure::plain(e.raw_os_error()))?;
        if flags.contains(OFlags::NONBLOCK) {
            return Err(Failure::plain(libc::EAGAIN));
        }
        Ok(None)
    }
}

impl Id {
    /// Waits for the operation that a call has started, if the identifier is synchronous.
    pub(super) fn complete(&self) -> Outcome {
        if !self.is_synchronous() {
            return Ok(());
        }
        // SAFETY: a synchronous identifier has a channel of its own.
        let event = unsafe { Channel::of((*self.verbs()).channel) }.next()?;
        self.keep(event);
        // SAFETY: just received.
        let (kind, status) = unsafe { ((*event).event, (*event).status) };
        match (kind, status) {
            (_, 0) => Ok(()),
            (REJECTED, _) => Err(Failure::new(libc::ECONNREFUSED, "the peer refused")),
            (_, status) => Err(Failure::plain(status.abs())),
        }
    }
}

const REJECTED: c_uint = rxe_verbs::cm::CmEventKind::Rejected as c_uint;

/// Converts an event for the program.
/// Returns `None` if the identifier is destroyed, or if no identifier could be created for a
/// request.
///
/// As in librdmacm, a connection request counts as an event of its listener, and any other event as
/// one of its identifier: programs destroy an identifier that they refuse before they acknowledge
/// the request. An identifier exists until its events are acknowledged.
fn deliver(event: CmEvent) -> Option<*mut rdma_cm_event> {
    let CmEvent { id: cm, listener, kind, status, param } = event;
    let Some(listener) = listener else {
        let id = find(&cm)?;
        return Some(tell(id, ptr::null_mut(), kind, status, &param));
    };
    let listen_id = find(&listener)?;
    // SAFETY: the listener was found, and exists until the event is acknowledged.
    let listener = unsafe { Id::of(listen_id) };
    let Some(id) = Id::of_request(cm, listener) else {
        listener.events.acknowledged(1);
        return None;
    };
    let event = tell(id, listen_id, kind, status, &param);
    // SAFETY: `of_request` counted an event for the identifier, so it exists until here.
    unsafe { Id::of(id) }.events.acknowledged(1);
    Some(event)
}

/// Applies an event to `id`, which exists meanwhile, and creates the event for the program.
fn tell(
    id: *mut rdma_cm_id,
    listen_id: *mut rdma_cm_id,
    mut kind: CmEventKind,
    mut status: c_int,
    param: &CmParam,
) -> *mut rdma_cm_event {
    // SAFETY: the caller's promise.
    let this = unsafe { Id::of(id) };
    *this.asked.lock() = None;
    explain::connecting(kind, status, this.cm.peer_addr(), this.cm.port_space());
    match kind {
        CmEventKind::RouteResolved => this.fill_route(),
        CmEventKind::ConnectResponse if this.has_qp() => {
            kind = CmEventKind::Established;
            if let Err(failure) = this.connected() {
                kind = CmEventKind::ConnectError;
                status = -failure.errno;
                let _ = this.cm.reject(&[]);
                this.connection_failed();
            }
        }
        CmEventKind::Rejected | CmEventKind::Unreachable => this.connection_failed(),
        CmEventKind::MulticastJoin => {
            if let Err(failure) = this.joined(param) {
                kind = CmEventKind::MulticastError;
                status = -failure.errno;
            }
        }
        _ => {}
    }
    this.fill_addresses();
    let private_data = param.private_data().to_vec();
    Event::into_ptr([id, listen_id], kind as u32, status, private_data, |data, len| match param {
        CmParam::Conn(param) => event_param { conn: conn_param(param, data, len) },
        CmParam::Ud(param) => event_param { ud: ud_param(param, data, len, this, kind) },
        CmParam::User(arg) => {
            // SAFETY: all zeros is an empty parameter.
            let mut param: event_param = unsafe { std::mem::zeroed() };
            param.arg = *arg;
            param
        }
        // SAFETY: all zeros is an empty parameter.
        CmParam::None => unsafe { std::mem::zeroed() },
    })
}

fn conn_param(param: &ConnParam, private_data: *const c_void, len: u8) -> rdma_conn_param {
    rdma_conn_param {
        private_data,
        private_data_len: len,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq.into(),
        qp_num: param.qp_num.map_or(0, |qpn| qpn.value()),
    }
}

fn ud_param(
    param: &UdParam,
    data: *const c_void,
    len: u8,
    id: &Id,
    kind: CmEventKind,
) -> rdma_ud_param {
    let of_group = matches!(kind, CmEventKind::MulticastJoin | CmEventKind::MulticastError);
    rdma_ud_param {
        // For a group, this field is the context that the program passed when it joined.
        private_data: if of_group { id.tell_context(param.ah.dgid) } else { data },
        private_data_len: if of_group { 0 } else { len },
        ah_attr: to_ah_attr(&param.ah),
        qp_num: param.qpn.value(),
        qkey: param.qkey.value(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return minus_one_of("rdma_get_cm_event", Err(Failure::plain(libc::EINVAL)));
    }
    if let Err(failure) = may_fail("rdma_get_cm_event") {
        return minus_one_of("rdma_get_cm_event", Err(failure));
    }
    // SAFETY: a channel.
    let (id, fd) = unsafe { (Channel::of(channel).liveness.id(), Channel::of(channel).verbs.fd) };
    wait_in("rdma_get_cm_event", id, fd, || {
        // SAFETY: a channel, which exists until `wait_in` refuses the ID.
        let outcome = unsafe { Channel::of(channel) }.next_or_sleep().transpose()?;
        Some(outcome.map(|got| {
            // SAFETY: the caller's variable.
            unsafe { *event = got };
        }))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    if event.is_null() {
        return minus_one_of("rdma_ack_cm_event", Err(Failure::plain(libc::EINVAL)));
    }
    // SAFETY: an event of the program's, which gives it up.
    unsafe { acknowledge(event) };
    errno_of("rdma_ack_cm_event", Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    let _uncancelled = crate::ffi::Uncancelled::new();
    const NAMES: [&std::ffi::CStr; 19] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        c"RDMA_CM_EVENT_USER",
    ];
    let name = usize::try_from(event).ok().and_then(|at| NAMES.get(at));
    name.map_or(c"UNKNOWN EVENT", |name| *name).as_ptr()
}
