//! Completion channels: a descriptor that programs sleep on. IBTA 11.2.6.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::fs::{OFlags, fcntl_getfl};
use rxe_verbs::CompletionChannel;

use super::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use super::context::Context;
use super::cq::Cq;
use crate::explain;
use crate::ffi::{CANCEL_TICK, Failure, Outcome, errno_of, pointer_of, signals_interrupt};
use crate::liveness::{LivenessGuard, wait_in};

/// After so many waits of [`CANCEL_TICK`] (2 s) without an event, a reason is looked for.
const LOOKS_IN_VAIN: u32 = 10;

/// A completion channel as programs hold it.
#[repr(C)]
pub(super) struct Channel {
    verbs: ibv_comp_channel,
    /// Threads sleep in [`ibv_get_cq_event`].
    liveness: LivenessGuard,
    pub(super) channel: CompletionChannel,
    /// What programs see as `fd`: an epoll instance around the channel's own descriptor, since they
    /// may set O_NONBLOCK on theirs, and [`ibv_get_cq_event`] must then not wait.
    fd: OwnedFd,
    /// Its completion queues, by their identity.
    pub(super) queues: Mutex<HashMap<u64, *mut ibv_cq>>,
}

impl Channel {
    /// # Safety
    /// `channel` exists.
    pub(super) unsafe fn of<'c>(channel: *mut ibv_comp_channel) -> &'c Self {
        // SAFETY: programs only have the address of the first field of a `Channel`.
        unsafe { &*channel.cast() }
    }

    /// Nothing has come for a while: a program that has armed no queue may wait for ever.
    fn look_for_armed(&self) {
        let queues = self.queues.lock();
        // SAFETY: what is in the map exists.
        let armed = queues.values().any(|&cq| unsafe { Cq::of(cq) }.queue.is_armed());
        // SAFETY: as above.
        let full = queues.values().any(|&cq| !unsafe { Cq::of(cq) }.queue.is_empty());
        let any = !queues.is_empty();
        drop(queues);
        if !armed && any {
            let so_far = if full { "completions are there, but " } else { "" };
            let why = format!(
                "waits for an event that nobody has asked for: {so_far}no completion queue of the \
                 channel is armed. Call ibv_req_notify_cq before waiting, anew after each event, and \
                 poll once more after it"
            );
            explain::once("ibv_get_cq_event", &why);
        }
    }

    /// The next event; `None` if there was none for a while.
    fn next_event(&self) -> Outcome<Option<*mut ibv_cq>> {
        let flags = fcntl_getfl(&self.fd).map_err(|e| Failure::plain(e.raw_os_error()))?;
        let blocking = !flags.contains(OFlags::NONBLOCK);
        let timeout = if blocking { CANCEL_TICK } else { Duration::ZERO };
        loop {
            let got = match self.channel.get_event_or_signal(timeout) {
                Err(e) if e.errno() == libc::EINTR => {
                    let ends = signals_interrupt().then(|| Failure::plain(libc::EINTR));
                    return ends.map_or(Ok(None), Err);
                }
                got => got?,
            };
            let Some(queue) = got else {
                return if blocking { Ok(None) } else { Err(Failure::plain(libc::EAGAIN)) };
            };
            let queues = self.queues.lock();
            if let Some(&cq) = queues.get(&queue.id()) {
                // SAFETY: what is in the map exists; whoever destroys it takes it out first, and
                // then waits for the event that is counted here.
                unsafe { Cq::of(cq) }.completions.delivered();
                return Ok(Some(cq));
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    if context.is_null() {
        let failure = Failure::null("the context (ibv_open_device)");
        return pointer_of("ibv_create_comp_channel", Err(failure));
    }
    // SAFETY: an open context.
    let owner = unsafe { Context::of(context) };
    let make = || -> Outcome<*mut ibv_comp_channel> {
        let channel = owner.device()?.create_channel()?;
        let os = |e: rustix::io::Errno| Failure::plain(e.raw_os_error());
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os)?;
        epoll::add(&fd, &channel, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(os)?;
        let verbs = ibv_comp_channel { context, fd: fd.as_raw_fd(), refcnt: 0 };
        let liveness = LivenessGuard::new();
        let this = Channel { verbs, liveness, channel, fd, queues: Mutex::default() };
        Ok(Box::into_raw(Box::new(this)).cast())
    };
    pointer_of("ibv_create_comp_channel", make())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a channel, whose context is open.
    let this = unsafe { Channel::of(channel) };
    // SAFETY: as above.
    if !unsafe { Context::of(this.verbs.context) }.is_own() {
        return 0;
    }
    if !this.queues.lock().is_empty() {
        let why = "completion queues still use the channel: destroy them first";
        return errno_of("ibv_destroy_comp_channel", Err(Failure::new(libc::EBUSY, why)));
    }
    this.liveness.end();
    // SAFETY: from ibv_create_comp_channel; the program gives it up.
    drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel.
    let id = unsafe { Channel::of(channel) }.liveness.id();
    let looks = &Cell::new(0u32);
    wait_in("ibv_get_cq_event", id, || {
        // SAFETY: a channel, which is there until `wait_in` refuses the ID.
        let this = unsafe { Channel::of(channel) };
        // SAFETY: its context, which is open.
        let own = unsafe { Context::of(this.verbs.context) }.check();
        let Some(outcome) = own.and_then(|()| this.next_event()).transpose() else {
            looks.set(looks.get() + 1);
            if looks.get() == LOOKS_IN_VAIN {
                this.look_for_armed();
            }
            return None;
        };
        Some(outcome.map(|found| {
            // SAFETY: the caller's variables, and a queue that exists until its event is acknowledged.
            unsafe {
                *cq = found;
                *cq_context = (*found).cq_context;
            }
        }))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    // SAFETY: a queue of which events were got, whose context is open.
    unsafe {
        // A child's parent acknowledges its own.
        if Context::of((*cq).context).is_own() {
            Cq::of(cq).completions.acknowledged(count);
        }
    }
}
