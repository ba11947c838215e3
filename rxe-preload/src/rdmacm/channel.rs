//! Event channels, on which programs wait for events.

use std::os::fd::{AsFd, AsRawFd};

use rxe_verbs::cm::EventChannel;

use super::abi::rdma_event_channel;
use super::devices;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, pointer_of};
use crate::liveness::LivenessGuard;
use rxe_sys::{EventFd, fork_generation};

/// An event channel as programs hold it.
#[repr(C)]
pub(super) struct Channel {
    pub(super) verbs: rdma_event_channel,
    generation: u64,
    /// The engine's channel.
    /// Its descriptor is the program's `fd`. If the program has set O_NONBLOCK on the descriptor,
    /// `rdma_get_cm_event` must not block.
    pub(super) channel: EventChannel,
    /// The guard for threads that sleep in `rdma_get_cm_event`.
    pub(super) liveness: LivenessGuard,
}

impl Channel {
    /// Returns the channel behind a program's pointer.
    /// # Safety
    /// `channel` exists.
    pub(super) unsafe fn of<'c>(channel: *mut rdma_event_channel) -> &'c Self {
        // SAFETY: programs only have the address of the first field of a `Channel`.
        unsafe { &*channel.cast() }
    }

    /// Returns the engine's channel. Fails if the channel belongs to a parent of this process.
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
        self.generation == fork_generation()
    }

    /// Fails if the channel belongs to a parent of this process.
    pub(super) fn check(&self) -> Outcome {
        if self.is_own() { Ok(()) } else { Err(Failure::of_parent("the event channel")) }
    }

    /// Creates an event channel for the program.
    pub(super) fn create() -> Outcome<*mut rdma_event_channel> {
        let channel = EventChannel::with_source(devices::source(), EventFd::for_program()?);
        let verbs = rdma_event_channel { fd: channel.as_fd().as_raw_fd() };
        let (generation, liveness) = (fork_generation(), LivenessGuard::new());
        Ok(Box::into_raw(Box::new(Self { verbs, generation, channel, liveness })).cast())
    }

    /// Destroys a channel, unless it belongs to a parent of this process.
    /// # Safety
    /// `channel` exists, and is not used afterwards.
    pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) {
        // SAFETY: the caller's promise.
        let this = unsafe { Self::of(channel) };
        if this.is_own() {
            this.liveness.end();
            // SAFETY: from `create`, and no thread is in it any more.
            drop(unsafe { Box::from_raw(channel.cast::<Self>()) });
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let made = may_fail("rdma_create_event_channel").and_then(|()| Channel::create());
    pointer_of("rdma_create_event_channel", made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: a channel, which the program gives up.
    unsafe { Channel::destroy(channel) }
}
