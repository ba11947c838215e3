//! Completion queues. IBTA 11.2.6, 11.4.2.

use std::ffi::{c_int, c_void};

use rxe_verbs::Status;

use super::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, Unused, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_wc,
};
use super::completion::work_completion;
use super::cq_ex;
use super::objects::{Channel, Context, Cq, Handle};
use super::owner::Owned;
use crate::explain;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, check_bits, errno_of, minus_one_of, pointer_of, set_errno};

/// Creates a completion queue.
///
/// # Safety
/// `context` is open; `channel` is null or a channel of it.
unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
) -> Outcome<*mut Cq> {
    if context.is_null() {
        return Err(Failure::null("the context (ibv_open_device)"));
    }
    may_fail("ibv_create_cq")?;
    // SAFETY: an open context.
    let (owner, vectors) = unsafe { (Context::of(context), (*context).num_comp_vectors) };
    if comp_vector >= vectors.cast_unsigned() {
        let why = format!("comp_vector {comp_vector}: there are {vectors} (num_comp_vectors)");
        return Err(Failure::new(libc::EINVAL, why));
    }
    let device = owner.device()?;
    let queue = if channel.is_null() {
        device.create_cq(cqe)?
    } else {
        // SAFETY: a channel.
        unsafe { channel.check_own("the completion channel")? };
        // SAFETY: a channel of ours.
        device.create_cq_on(cqe, &unsafe { Channel::of(channel) }.channel)?
    };
    queue.set_comp_vector(comp_vector);
    let made = Handle::new(context);
    let base = ibv_cq {
        context,
        channel,
        cq_context,
        handle: made.number(),
        cqe: c_int::try_from(queue.depth()).unwrap_or(c_int::MAX),
        unused: Unused::NEW,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let id = queue.id();
    let this = Cq::into_ptr(cq_ex::readers(base), made, queue);
    let cq = this.cast();
    owner.cqs.lock().insert(id, cq);
    if !channel.is_null() {
        // SAFETY: a channel.
        unsafe { Channel::of(channel) }.queues.lock().insert(id, cq);
    }
    Ok(this)
}

pub(super) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let cqe = u32::try_from(cqe).unwrap_or(0);
    let vector = u32::try_from(comp_vector).unwrap_or(u32::MAX);
    // SAFETY: the caller's promise.
    let made = unsafe { create(context, cqe, cq_context, channel, vector) };
    pointer_of("ibv_create_cq", made.map(|cq| cq.cast()))
}

/// The flags of `ibv_create_cq_wc_flags` whose fields completions have.
/// Among them is the time by both clocks. The VLAN and the flow tag are 0, as on any device for
/// messages without them. Only `IBV_WC_EX_WITH_TM_INFO` is missing: tag matching is not supported,
/// and a program that wants it learns so here, before it has set up the rest.
const KNOWN_FIELDS: u64 = 0xbff;

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's structure.
    let attr = unsafe { &*attr };
    let make = || -> Outcome<*mut ibv_cq_ex> {
        let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
        check_bits("comp_mask", attr.comp_mask, known, libc::EOPNOTSUPP)?;
        if attr.wc_flags & !KNOWN_FIELDS != 0 {
            let why = format!("wc_flags {:#x}: tag matching is not supported", attr.wc_flags);
            return Err(Failure::new(libc::EOPNOTSUPP, why));
        }
        let given = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        let flags = if given { attr.flags } else { 0 };
        // SINGLE_THREADED is a promise of the program, from which nothing here gains speed.
        let known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        check_bits("flags", flags, known, libc::EOPNOTSUPP)?;
        // SAFETY: the caller's promise.
        let made =
            unsafe { create(context, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector) }?;
        if flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0 {
            // SAFETY: just created.
            unsafe { &(*made).queue }.ignore_overrun();
        }
        Ok(made.cast())
    };
    pointer_of("ibv_create_cq_ex", make())
}

pub(super) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a queue, whose context is open.
    let this = match may_fail("ibv_destroy_cq").and_then(|()| unsafe { Cq::known(cq) }) {
        Ok(this) => this,
        Err(failure) => return errno_of("ibv_destroy_cq", Err(failure)),
    };
    // SAFETY: as above.
    let (context, channel) = unsafe { ((*cq).context, (*cq).channel) };
    // SAFETY: as above.
    let owner = unsafe { Context::of(context) };
    if !owner.is_own() {
        return 0;
    }
    if this.queue.users() > 0 {
        let busy = Failure::in_use(this.queue.used_by(), "the completion queue");
        return errno_of("ibv_destroy_cq", Err(busy));
    }
    owner.cqs.lock().remove(&this.queue.id());
    if !channel.is_null() {
        // SAFETY: a channel outlives its queues.
        unsafe { Channel::of(channel) }.queues.lock().remove(&this.queue.id());
    }
    this.completions.wait("ibv_destroy_cq");
    this.asyncs.wait("ibv_destroy_cq");
    // SAFETY: from `create`; the program gives it up.
    unsafe { owner.alive.free(cq.cast::<Cq>()) };
    0
}

pub(super) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a queue.
    let resized = unsafe { Cq::known(cq) }.and_then(|this| {
        this.owner().check()?;
        Ok(this.queue.resize(u32::try_from(cqe).unwrap_or(0))?)
    });
    if resized.is_ok() {
        // SAFETY: the header's own field; no reference to it exists.
        unsafe { (*cq).cqe = cqe };
    }
    errno_of("ibv_resize_cq", resized)
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a queue.
    let this = unsafe { Cq::of(cq) };
    if !this.owner().is_own() {
        set_errno(libc::EIO);
        return -1;
    }
    if let Err(failure) = may_fail("ibv_poll_cq") {
        return minus_one_of("ibv_poll_cq", Err(failure));
    }
    let max = usize::try_from(count).unwrap_or(0);
    let mut at = 0;
    let result = this.queue.poll(max, |completion| {
        // SAFETY: the caller has room for `count` completions, and no more than that are reported.
        unsafe { wc.add(at).write(work_completion(&completion)) };
        if completion.status != Status::Success {
            this.owner().failed(&completion);
        }
        at += 1;
    });
    match result {
        Ok(0) => {
            this.pause();
            0
        }
        Ok(taken) => {
            this.unpause();
            c_int::try_from(taken).unwrap_or(c_int::MAX)
        }
        Err(e) => {
            explain::once("ibv_poll_cq", &e.to_string());
            set_errno(e.errno());
            -1
        }
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a queue.
    let armed = unsafe { Cq::known(cq) }.and_then(|this| {
        this.owner().check()?;
        may_fail("ibv_req_notify_cq")?;
        // Arming fails only if the device has failed, which is reported when the program waits or
        // polls. Other devices arm in any case, and programs for which this call fails forget the
        // event that they have taken.
        let _ = this.queue.arm(solicited_only != 0);
        Ok(())
    });
    errno_of("ibv_req_notify_cq", armed)
}
