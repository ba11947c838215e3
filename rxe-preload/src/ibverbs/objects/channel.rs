//! The object behind a program's `struct ibv_comp_channel`.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl};
use rxe_verbs::CompletionChannel;

use super::{Context, Cq, Ends};
use crate::explain::{self, Later};
use crate::ffi::{Failure, Outcome};
use crate::ibverbs::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::liveness::{LivenessGuard, enter};

/// A completion channel as programs hold it.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) verbs: ibv_comp_channel,
    /// The guard for threads that sleep in `ibv_get_cq_event`.
    pub(crate) liveness: LivenessGuard,
    /// The channel.
    /// Its descriptor is the program's `fd`. If the program has set O_NONBLOCK on the descriptor,
    /// `ibv_get_cq_event` must not block.
    pub(crate) channel: ManuallyDrop<CompletionChannel>,
    /// The completion queues of the channel, by their IDs.
    pub(crate) queues: Mutex<HashMap<u64, *mut ibv_cq>>,
}

found_by_pointer!(Channel, ibv_comp_channel);

impl Channel {
    /// Explains that a thread sleeps although no queue is armed, if that persists: the program
    /// would wait forever.
    fn look_for_armed(&self) {
        /// The delay before the explanation, because another thread may be about to arm a queue.
        const PATIENCE: Duration = Duration::from_secs(2);
        static LATER: Later = Later::new();
        if self.unarmed().is_none() {
            return;
        }
        let (id, this) = (self.liveness.id(), ptr::from_ref(self).expose_provenance());
        LATER.run(PATIENCE, move || {
            // SAFETY: `enter` only calls this while the channel exists.
            let unarmed =
                enter(id, || unsafe { &*ptr::with_exposed_provenance::<Self>(this) }.unarmed());
            if let Some(why) = unarmed.flatten() {
                explain::once("ibv_get_cq_event", &why);
            }
            false
        });
    }

    /// Returns why no event arrives, if the channel has queues and none is armed.
    fn unarmed(&self) -> Option<String> {
        let queues = self.queues.lock();
        // SAFETY: the queues in the map exist.
        let armed = queues.values().any(|&cq| unsafe { Cq::of(cq) }.queue.is_armed());
        if armed || queues.is_empty() {
            return None;
        }
        // SAFETY: as above.
        let full = queues.values().any(|&cq| !unsafe { Cq::of(cq) }.queue.is_empty());
        let so_far = if full { "completions are there, but " } else { "" };
        Some(format!(
            "waits for an event that nobody has asked for: {so_far}no completion queue of the channel is \
             armed. Call ibv_req_notify_cq before waiting, anew after each event, and poll once more after it"
        ))
    }

    /// Returns the next event, or `None` if the thread is to sleep in a read of the descriptor.
    pub(crate) fn next_event(&self) -> Outcome<Option<*mut ibv_cq>> {
        while let Some(queue) = self.channel.get_event(Some(Duration::ZERO))? {
            let queues = self.queues.lock();
            if let Some(&cq) = queues.get(&queue.id()) {
                // SAFETY: queues in the map exist. A thread that destroys one first removes it, and
                // then waits for the event that is counted here.
                unsafe { Cq::of(cq) }.completions.delivered();
                return Ok(Some(cq));
            }
        }
        let flags = fcntl_getfl(&*self.channel).map_err(|e| Failure::plain(e.raw_os_error()))?;
        if flags.contains(OFlags::NONBLOCK) {
            return Err(Failure::plain(libc::EAGAIN));
        }
        self.channel.before_sleep()?;
        self.look_for_armed();
        Ok(None)
    }

    /// Creates a channel for the program, which destroys it with `ibv_destroy_comp_channel`.
    pub(crate) fn into_ptr(
        context: *mut ibv_context,
        channel: CompletionChannel,
    ) -> *mut ibv_comp_channel {
        let verbs = ibv_comp_channel { context, fd: channel.as_fd().as_raw_fd(), refcnt: 0 };
        let liveness = LivenessGuard::new();
        let (channel, queues) = (ManuallyDrop::new(channel), Mutex::default());
        // SAFETY: an open context.
        unsafe { Context::of(context) }.alive.make(Self { verbs, liveness, channel, queues }).cast()
    }
}

impl Ends for Channel {
    unsafe fn end(&mut self) {
        self.liveness.end();
        // SAFETY: the caller's promise.
        unsafe { ManuallyDrop::drop(&mut self.channel) };
    }
}
