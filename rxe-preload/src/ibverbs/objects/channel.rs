//! The object behind a program's `struct ibv_comp_channel`.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl};
use rxe_net::ProgramEpoll;
use rxe_verbs::CompletionChannel;

use super::Cq;
use crate::explain;
use crate::ffi::{CANCEL_TICK, Failure, Outcome, signals_interrupt};
use crate::ibverbs::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::liveness::LivenessGuard;

/// A completion channel as programs hold it.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) verbs: ibv_comp_channel,
    /// For threads that sleep in `ibv_get_cq_event`.
    pub(crate) liveness: LivenessGuard,
    pub(crate) channel: CompletionChannel,
    /// The program's `fd`: an epoll instance around the channel's descriptor. Programs may set
    /// O_NONBLOCK on it; then `ibv_get_cq_event` must not wait.
    fd: ProgramEpoll,
    /// Its completion queues, by their IDs.
    pub(crate) queues: Mutex<HashMap<u64, *mut ibv_cq>>,
}

found_by_pointer!(Channel, ibv_comp_channel);

impl Channel {
    /// Called when nothing has come for a while: explains if no queue is armed, because the program
    /// then waits for ever.
    pub(crate) fn look_for_armed(&self) {
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

    /// The next event; `None` if none came for a while.
    pub(crate) fn next_event(&self) -> Outcome<Option<*mut ibv_cq>> {
        self.fd.ensure()?;
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
                // SAFETY: queues in the map exist. A thread that destroys one first removes it, and
                // then waits for the event that is counted here.
                unsafe { Cq::of(cq) }.completions.delivered();
                return Ok(Some(cq));
            }
        }
    }

    /// Makes a channel for the program, which destroys it with `ibv_destroy_comp_channel`.
    pub(crate) fn into_ptr(
        context: *mut ibv_context,
        channel: CompletionChannel,
    ) -> Outcome<*mut ibv_comp_channel> {
        let fd = ProgramEpoll::new()?;
        fd.watch(&channel)?;
        let verbs = ibv_comp_channel { context, fd: fd.as_raw_fd(), refcnt: 0 };
        let liveness = LivenessGuard::new();
        let this = Self { verbs, liveness, channel, fd, queues: Mutex::default() };
        Ok(Box::into_raw(Box::new(this)).cast())
    }
}
