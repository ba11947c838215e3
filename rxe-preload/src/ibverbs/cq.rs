//! Completion queues. IBTA 11.2.6, 11.4.2.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rxe_verbs::{Completion, CompletionQueue, Immediate, Status};

use super::abi::{
    IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, Unused, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_cq_ex, ibv_wc,
};
use super::asynchronous::Unacknowledged;
use super::channel::Channel;
use super::context::Context;
use super::handle::Handle;
use crate::explain;
use crate::ffi::{Failure, Outcome, errno_of, pointer_of, set_errno};

/// A completion queue as programs hold it: always with the extended interface behind it.
#[repr(C)]
pub(super) struct Cq {
    /// Which the program may write to, too.
    verbs: UnsafeCell<ibv_cq_ex>,
    made: Handle,
    pub(super) queue: CompletionQueue,
    pub(super) completions: Unacknowledged,
    pub(super) asyncs: Unacknowledged,
    /// The completion that the extended interface shows.
    pub(super) current: Mutex<Option<Completion>>,
    /// Polls since the last that found something.
    empty: AtomicU32,
}

impl Cq {
    /// # Safety
    /// `cq` exists.
    pub(super) unsafe fn of<'c>(cq: *mut ibv_cq) -> &'c Self {
        // SAFETY: programs only have the address of the first field of a `Cq`.
        unsafe { &*cq.cast() }
    }

    /// The same, if its context and handle are still what it was made with.
    ///
    /// # Safety
    /// As for [`Cq::of`].
    pub(super) unsafe fn known<'c>(cq: *mut ibv_cq) -> Outcome<&'c Self> {
        // SAFETY: the caller's promise.
        let (this, context, handle) = unsafe { (Self::of(cq), (*cq).context, (*cq).handle) };
        this.made.check("the completion queue", context, handle)?;
        Ok(this)
    }

    /// The context that it was made on, which is open as long as the queue exists.
    pub(super) fn owner(&self) -> &Context {
        // SAFETY: the queue's maker set `context`, which nobody changes; `verbs` is only read here,
        // through no reference.
        unsafe { Context::of((*self.verbs.get()).base.context) }
    }

    /// A poll found nothing. Programs that poll in a loop keep the CPU from the peer, which may be on
    /// this very host: after more polls than a message takes there and back, it is offered to others.
    pub(super) fn pause(&self) {
        const ALONE: u32 = 64;
        if self.empty.fetch_add(1, Ordering::Relaxed) > ALONE {
            std::thread::yield_now();
        }
    }
}

/// Makes a queue; `verbs` has the extended interface, or nothing.
///
/// # Safety
/// `context` is open, `channel` null or a channel of it.
pub(super) unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
) -> Outcome<Box<Cq>> {
    if context.is_null() {
        return Err(Failure::null("the context (ibv_open_device)"));
    }
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
        device.create_cq_on(cqe, &unsafe { Channel::of(channel) }.channel)?
    };
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
    let this = Box::new(Cq {
        verbs: UnsafeCell::new(super::cq_ex::readers(base)),
        made,
        queue,
        completions: Unacknowledged::default(),
        asyncs: Unacknowledged::default(),
        current: Mutex::new(None),
        empty: AtomicU32::new(0),
    });
    let cq = ptr::from_ref(&*this).cast_mut().cast();
    owner.cqs.lock().insert(id, cq);
    if !channel.is_null() {
        // SAFETY: a channel.
        unsafe { Channel::of(channel) }.queues.lock().insert(id, cq);
    }
    Ok(this)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
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
    pointer_of("ibv_create_cq", made.map(|cq| Box::into_raw(cq).cast()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a queue, whose context is open.
    let this = match unsafe { Cq::known(cq) } {
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
        let why = "queue pairs still use the completion queue: destroy them first";
        return errno_of("ibv_destroy_cq", Err(Failure::new(libc::EBUSY, why)));
    }
    owner.cqs.lock().remove(&this.queue.id());
    if !channel.is_null() {
        // SAFETY: a channel outlives its queues.
        unsafe { Channel::of(channel) }.queues.lock().remove(&this.queue.id());
    }
    this.completions.wait("ibv_destroy_cq");
    this.asyncs.wait("ibv_destroy_cq");
    // SAFETY: from `create`; the program gives it up.
    drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
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
    let max = usize::try_from(count).unwrap_or(0);
    let mut at = 0;
    let result = this.queue.poll_each(max, |completion| {
        // SAFETY: the caller has room for `count` completions, and no more than that come.
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
            this.empty.store(0, Ordering::Relaxed);
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
        Ok(this.queue.arm(solicited_only != 0)?)
    });
    errno_of("ibv_req_notify_cq", armed)
}

fn work_completion(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.id,
        status: completion.status.code().into(),
        opcode: completion.op as c_uint,
        vendor_err: 0,
        byte_len: completion.byte_len,
        imm_or_rkey: immediate(completion),
        qp_num: completion.qpn.value(),
        src_qp: completion.src_qp.value(),
        wc_flags: flags(completion),
        pkey_index: 0,
        slid: 0,
        sl: network(completion),
        dlid_path_bits: 0,
    }
}

/// As `imm_data` has it, in network order, or a key.
pub(super) fn immediate(completion: &Completion) -> u32 {
    match completion.imm {
        None => 0,
        Some(Immediate::Data(number)) => number.to_be(),
        Some(Immediate::Invalidated(key)) => key.value(),
    }
}

/// Of datagrams, in the place of the service level, which RoCE has not: which header stands in front
/// of them, as ConnectX adapters tell it and programs (UCX) have come to expect. IBTA A17.4.5.1.
pub(super) fn network(completion: &Completion) -> u8 {
    const UDP: u8 = 1 << 3;
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    match (completion.grh, completion.ipv4) {
        (false, _) => 0,
        (true, true) => UDP | IPV4,
        (true, false) => UDP | IPV6,
    }
}

pub(super) fn flags(completion: &Completion) -> c_uint {
    let grh = if completion.grh { IBV_WC_GRH } else { 0 };
    grh | match completion.imm {
        None => 0,
        Some(Immediate::Data(_)) => IBV_WC_WITH_IMM,
        Some(Immediate::Invalidated(_)) => IBV_WC_WITH_INV,
    }
}
