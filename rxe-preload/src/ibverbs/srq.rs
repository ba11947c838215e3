//! Shared receive queues. IBTA 10.2.9, 11.2.3.

use std::ffi::{c_int, c_void};

use rxe_verbs::SharedReceiveQueue;

use super::abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TM, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC, IBV_SRQT_XRC,
    ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use super::objects::{Context, Cq, Pd, Srq, Xrcd};
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, check_bits, errno_of, pointer_of};

/// Creates the C object, and writes the queue's actual sizes into `attr`.
/// Every provider does so. `srq_limit` has no meaning at creation, and programs leave it
/// uninitialised.
///
/// # Safety
/// `pd` is a protection domain of the open `context`.
unsafe fn wrap(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    queue: SharedReceiveQueue,
) -> Outcome<*mut ibv_srq> {
    may_fail("ibv_create_srq")?;
    (attr.max_wr, attr.max_sge) = (queue.depth(), queue.max_sge());
    let number = queue.number();
    let srq = Srq::into_ptr(context, pd, srq_context, queue);
    // SAFETY: an open context.
    unsafe { Context::of(context) }.srqs.lock().insert(number, srq);
    Ok(srq)
}

pub(super) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: a protection domain and the caller's structure.
    let (context, owner, wanted) = unsafe { ((*pd).context, Pd::known(pd), &mut *attr) };
    let make = || -> Outcome<*mut ibv_srq> {
        let owner = owner?;
        // SAFETY: the domain's context is open.
        unsafe { Context::of(context) }.check()?;
        let queue = owner.domain.create_srq(wanted.attr.max_wr, wanted.attr.max_sge)?;
        // SAFETY: as above.
        unsafe { wrap(context, pd, wanted.srq_context, &mut wanted.attr, queue) }
    };
    pointer_of("ibv_create_srq", make())
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's promise.
    pointer_of("ibv_create_srq_ex", unsafe { create_ex(context, &mut *attr) })
}

unsafe fn create_ex(
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Outcome<*mut ibv_srq> {
    const KNOWN: u32 = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ
        | IBV_SRQ_INIT_ATTR_TM;
    let has = |bit| attr.comp_mask & bit != 0;
    check_bits("comp_mask", attr.comp_mask, KNOWN, libc::EOPNOTSUPP)?;
    let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { attr.srq_type } else { IBV_SRQT_BASIC };
    if !has(IBV_SRQ_INIT_ATTR_PD) || attr.pd.is_null() {
        return Err(Failure::new(libc::EINVAL, "the protection domain (pd) is missing"));
    }
    // SAFETY: an open context, and a protection domain of it.
    let domain = unsafe {
        Context::of(context).check()?;
        &Pd::known(attr.pd)?.domain
    };
    let queue = match kind {
        IBV_SRQT_BASIC => domain.create_srq(attr.attr.max_wr, attr.attr.max_sge)?,
        IBV_SRQT_XRC => {
            if !has(IBV_SRQ_INIT_ATTR_XRCD) || !has(IBV_SRQ_INIT_ATTR_CQ) {
                let why = "an XRC queue needs its XRC domain and its completion queue";
                return Err(Failure::new(libc::EINVAL, why));
            }
            // SAFETY: both exist.
            let (xrcd, cq) = unsafe { (Xrcd::of(attr.xrcd), Cq::known(attr.cq)?) };
            let (max_wr, max_sge) = (attr.attr.max_wr, attr.attr.max_sge);
            domain.create_xrc_srq(&xrcd.domain, &cq.queue, max_wr, max_sge)?
        }
        other => {
            let why = format!("shared receive queues of type {other} (tag matching)");
            return Err(Failure::new(libc::EOPNOTSUPP, why));
        }
    };
    // SAFETY: as above.
    unsafe { wrap(context, attr.pd, attr.srq_context, &mut attr.attr, queue) }
}

pub(super) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: a queue, whose context is open.
    let this = match may_fail("ibv_destroy_srq").and_then(|()| unsafe { Srq::known(srq) }) {
        Ok(this) => this,
        Err(failure) => return errno_of("ibv_destroy_srq", Err(failure)),
    };
    // SAFETY: as above.
    let owner = unsafe { Context::of(this.verbs.context) };
    if !owner.is_own() {
        return 0;
    }
    if this.queue.users() > 0 {
        let busy = Failure::in_use(this.queue.used_by(), "the shared receive queue");
        return errno_of("ibv_destroy_srq", Err(busy));
    }
    owner.srqs.lock().remove(&this.queue.number());
    this.asyncs.wait("ibv_destroy_srq");
    // SAFETY: from `into_ptr`; the program gives it up.
    unsafe { owner.alive.free(srq.cast::<Srq>()) };
    0
}

pub(super) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a queue and the caller's structure.
    let (this, attr) = unsafe { (Srq::known(srq), &*attr) };
    let has = |bit| mask & bit != 0;
    let modify = || {
        let this = this?;
        // SAFETY: the queue's context is open.
        unsafe { Context::of(this.verbs.context) }.check()?;
        may_fail("ibv_modify_srq")?;
        if has(IBV_SRQ_MAX_WR) {
            if has(IBV_SRQ_LIMIT) && attr.srq_limit > attr.max_wr {
                let why = "srq_limit is more than max_wr: an event would be due immediately";
                return Err(Failure::new(libc::EINVAL, why));
            }
            this.queue.resize(attr.max_wr)?;
        }
        if has(IBV_SRQ_LIMIT) {
            this.queue.set_limit(attr.srq_limit)?;
        }
        Ok(())
    };
    errno_of("ibv_modify_srq", modify())
}

pub(super) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a queue, whose context is open.
    let outcome = unsafe { Srq::own(srq) }.and_then(|this| {
        may_fail("ibv_query_srq")?;
        let queue = &this.queue;
        let (max_wr, max_sge, srq_limit) = (queue.depth(), queue.max_sge(), queue.limit());
        // SAFETY: room for the answer.
        unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
        Ok(())
    });
    errno_of("ibv_query_srq", outcome)
}

pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: a queue, whose context is open.
    let outcome = unsafe { Srq::own(srq) }.map(|this| {
        // SAFETY: room for the answer.
        unsafe { number.write(this.queue.number()) };
    });
    errno_of("ibv_get_srq_num", outcome)
}
