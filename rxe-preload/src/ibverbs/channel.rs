//! Completion channels: descriptors that programs sleep on. IBTA 11.2.6.

use std::ffi::{c_int, c_void};

use rxe_sys::EventFd;

use super::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use super::objects::{Channel, Context, Cq};
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, minus_one_of, pointer_of};
use crate::liveness::wait_in;

pub(super) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    if context.is_null() {
        let failure = Failure::null("the context (ibv_open_device)");
        return pointer_of("ibv_create_comp_channel", Err(failure));
    }
    // SAFETY: an open context.
    let owner = unsafe { Context::of(context) };
    let make = || -> Outcome<*mut ibv_comp_channel> {
        may_fail("ibv_create_comp_channel")?;
        let channel = owner.device()?.create_channel_with(EventFd::for_program()?);
        Ok(Channel::into_ptr(context, channel))
    };
    pointer_of("ibv_create_comp_channel", make())
}

pub(super) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    if let Err(failure) = may_fail("ibv_destroy_comp_channel") {
        return errno_of("ibv_destroy_comp_channel", Err(failure));
    }
    // SAFETY: a channel, whose context is open.
    let this = unsafe { Channel::of(channel) };
    // SAFETY: as above.
    let owner = unsafe { Context::of(this.verbs.context) };
    if let Err(failure) = owner.check_open() {
        return errno_of("ibv_destroy_comp_channel", Err(failure));
    }
    if !owner.is_own() {
        return 0;
    }
    if !this.queues.lock().is_empty() {
        let busy = Failure::in_use(this.channel.used_by(), "the completion channel");
        return errno_of("ibv_destroy_comp_channel", Err(busy));
    }
    // SAFETY: from `into_ptr`; the program gives it up.
    unsafe { owner.alive.free(channel.cast::<Channel>()) };
    0
}

pub(super) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    if let Err(failure) = may_fail("ibv_get_cq_event") {
        return minus_one_of("ibv_get_cq_event", Err(failure));
    }
    // SAFETY: a channel.
    let this = unsafe { Channel::of(channel) };
    // SAFETY: its context, whose structure stays.
    if let Err(failure) = unsafe { Context::of(this.verbs.context) }.check_open() {
        return minus_one_of("ibv_get_cq_event", Err(failure));
    }
    let (id, fd) = (this.liveness.id(), this.verbs.fd);
    wait_in("ibv_get_cq_event", id, fd, || {
        // SAFETY: a channel, which exists until `wait_in` refuses the ID.
        let this = unsafe { Channel::of(channel) };
        // SAFETY: its context, which is open.
        let own = unsafe { Context::of(this.verbs.context) }.check();
        let outcome = own.and_then(|()| this.next_event()).transpose()?;
        Some(outcome.map(|found| {
            // SAFETY: the caller's variables, and a queue that exists until its event is acknowledged.
            unsafe {
                *cq = found;
                *cq_context = (*found).cq_context;
            }
        }))
    })
}

pub(super) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    // SAFETY: a queue whose events the program has received, and whose context is open.
    unsafe {
        // In a forked child there is nothing to do: the parent acknowledges its own events.
        if Context::of((*cq).context).is_own() {
            Cq::of(cq).completions.acknowledged(count);
        }
    }
}
