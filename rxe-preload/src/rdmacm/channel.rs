//! Channels and events: `rdma_get_cm_event` and what comes with it.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rxe_verbs::cm::{CmEvent, CmEventKind, CmParam, ConnParam, EventChannel, UdParam};

use super::abi::{
    event_param, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use super::devices;
use super::id::{Id, find, look_for_answers, of_parent};
use crate::explain;
use crate::ffi::{
    self, CANCEL_TICK, Failure, Outcome, errno_of, minus_one_of, pointer_of, signals_interrupt,
};
use crate::fork;
use crate::ibverbs::qp_attr::to_ah_attr;
use crate::liveness::{LivenessGuard, wait_in};

/// A channel as programs hold it.
#[repr(C)]
pub(super) struct Channel {
    verbs: rdma_event_channel,
    generation: u64,
    channel: EventChannel,
    /// What programs see as `fd`: an epoll instance around the channel's own descriptor, since they
    /// may set O_NONBLOCK on theirs, and [`rdma_get_cm_event`] must then not wait.
    fd: OwnedFd,
    /// Threads sleep in [`rdma_get_cm_event`].
    liveness: LivenessGuard,
}

impl Channel {
    /// # Safety
    /// `channel` exists.
    pub(super) unsafe fn of<'c>(channel: *mut rdma_event_channel) -> &'c Self {
        // SAFETY: programs only have the address of the first field of a `Channel`.
        unsafe { &*channel.cast() }
    }

    /// Ours of it, unless it belongs to the parent of this process.
    ///
    /// # Safety
    /// `channel` exists.
    pub(super) unsafe fn own<'c>(channel: *mut rdma_event_channel) -> Outcome<&'c EventChannel> {
        // SAFETY: the caller's promise.
        let this = unsafe { Self::of(channel) };
        this.check()?;
        Ok(&this.channel)
    }

    fn is_own(&self) -> bool {
        self.generation == fork::generation()
    }

    fn check(&self) -> Outcome {
        if self.is_own() { Ok(()) } else { Err(of_parent("the event channel")) }
    }

    pub(super) fn create() -> Outcome<*mut rdma_event_channel> {
        let errno = |e: rustix::io::Errno| Failure::plain(e.raw_os_error());
        let channel = EventChannel::with_source(devices::source())?;
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno)?;
        epoll::add(&fd, &channel, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(errno)?;
        let verbs = rdma_event_channel { fd: fd.as_raw_fd() };
        let (generation, liveness) = (fork::generation(), LivenessGuard::new());
        Ok(Box::into_raw(Box::new(Self { verbs, generation, channel, fd, liveness })).cast())
    }

    /// # Safety
    /// `channel` exists, and is given up.
    pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) {
        // SAFETY: the caller's promise.
        let this = unsafe { Self::of(channel) };
        if this.is_own() {
            this.liveness.end();
            // SAFETY: from `create`, and no thread is in it any more.
            drop(unsafe { Box::from_raw(channel.cast::<Self>()) });
        }
    }

    /// The next event. Waits, unless the program has set O_NONBLOCK on the descriptor.
    pub(super) fn next(&self) -> Outcome<*mut rdma_cm_event> {
        loop {
            if let Some(event) = self.wait_a_while()? {
                return Ok(event);
            }
        }
    }

    /// As [`Channel::next`]; `None` if nothing came for a while.
    fn wait_a_while(&self) -> Outcome<Option<*mut rdma_cm_event>> {
        self.check()?;
        let os = |e: rustix::io::Errno| Failure::plain(e.raw_os_error());
        while let Some(event) = self.channel.get_event(Some(Duration::ZERO))? {
            if let Some(event) = deliver(event) {
                return Ok(Some(event));
            }
        }
        if fcntl_getfl(&self.fd).map_err(os)?.contains(OFlags::NONBLOCK) {
            return Err(Failure::plain(libc::EAGAIN));
        }
        let tick = Timespec::try_from(CANCEL_TICK).ok();
        match poll(&mut [PollFd::new(&self.channel, PollFlags::IN)], tick.as_ref()) {
            Err(rustix::io::Errno::INTR) if !signals_interrupt() => Ok(None),
            Ok(0) => {
                look_for_answers(ptr::from_ref(self).cast());
                Ok(None)
            }
            slept => slept.map(|_| None).map_err(os),
        }
    }
}

/// An event as programs hold it, with the data that it points to.
#[repr(C)]
struct Event {
    verbs: rdma_cm_event,
    private_data: Vec<u8>,
}

/// Makes a program's event of ours. `None` if the identifier is no more, or the event only meant
/// something to this library.
///
/// A request counts at its listener and any other event at its identifier, as in librdmacm: programs
/// destroy what they refuse before they acknowledge the request. What counts is there to stay.
fn deliver(event: CmEvent) -> Option<*mut rdma_cm_event> {
    let CmEvent { id: cm, listener, kind, status, param } = event;
    let Some(listener) = listener else {
        let id = find(&cm)?;
        return Some(tell(id, ptr::null_mut(), kind, status, &param));
    };
    let listen_id = find(&listener)?;
    // SAFETY: it was found, and stays until the event is acknowledged.
    let listener = unsafe { Id::of(listen_id) };
    let Some(id) = Id::of_request(cm, listener) else {
        listener.events.acknowledged(1);
        return None;
    };
    let event = tell(id, listen_id, kind, status, &param);
    // SAFETY: it was made so that it stays until here.
    unsafe { Id::of(id) }.events.acknowledged(1);
    Some(event)
}

/// What an event means to `id`, which stays meanwhile, and the event as programs hold it.
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
                this.qp_to_error();
            }
        }
        CmEventKind::Rejected | CmEventKind::Unreachable => this.qp_to_error(),
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
    let data: *const c_void =
        if private_data.is_empty() { ptr::null() } else { private_data.as_ptr().cast() };
    let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    let param = match param {
        CmParam::Conn(param) => event_param { conn: conn_param(param, data, len) },
        CmParam::Ud(param) => event_param { ud: ud_param(param, data, len, this, kind) },
        CmParam::User(arg) => {
            // SAFETY: all zeros is a parameter that says nothing.
            let mut param: event_param = unsafe { std::mem::zeroed() };
            param.arg = *arg;
            param
        }
        // SAFETY: all zeros is a parameter that says nothing.
        CmParam::None => unsafe { std::mem::zeroed() },
    };
    let verbs = rdma_cm_event { id, listen_id, event: kind as u32, status, param };
    Box::into_raw(Box::new(Event { verbs, private_data })).cast()
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
    let of_group = kind == CmEventKind::MulticastJoin;
    rdma_ud_param {
        // Of a group, what the program gave when it joined.
        private_data: if of_group { id.group_context(param.ah.dgid) } else { data },
        private_data_len: if of_group { 0 } else { len },
        ah_attr: to_ah_attr(&param.ah),
        qp_num: param.qpn.value(),
        qkey: param.qkey.value(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer_of("rdma_create_event_channel", Channel::create())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: a channel, which the program gives up.
    unsafe { Channel::destroy(channel) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return minus_one_of("rdma_get_cm_event", Err(Failure::plain(libc::EINVAL)));
    }
    // SAFETY: a channel.
    let id = unsafe { Channel::of(channel) }.liveness.id();
    wait_in("rdma_get_cm_event", id, || {
        // SAFETY: a channel, which is there until `wait_in` refuses the ID.
        let outcome = unsafe { Channel::of(channel) }.wait_a_while().transpose()?;
        Some(outcome.map(|got| {
            // SAFETY: the caller's variable.
            unsafe { *event = got };
        }))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return minus_one_of("rdma_ack_cm_event", Err(Failure::plain(libc::EINVAL)));
    }
    // SAFETY: from `deliver`. The identifier where it counts waits for that.
    let counted = unsafe {
        let rdma_cm_event { id, listen_id, .. } = *event;
        Id::of(if listen_id.is_null() { id } else { listen_id })
    };
    // A child's parent acknowledges its own.
    if counted.is_own() {
        // SAFETY: the program gives it up.
        drop(unsafe { Box::from_raw(event.cast::<Event>()) });
        counted.events.acknowledged(1);
    }
    errno_of("rdma_ack_cm_event", Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: u32) -> *const c_char {
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
