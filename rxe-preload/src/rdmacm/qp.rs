//! The queue pairs of identifiers.
//! If the program provides no completion queues and channels, this library creates them.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use rxe_verbs::{QpState, QpType};

use super::abi::rdma_cm_id;
use super::devices::{default_pd, default_xrcd};
use super::id::Id;
use super::verbs::{
    ibv_create_comp_channel, ibv_create_cq, ibv_create_qp, ibv_create_srq,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq, ibv_modify_qp,
};
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, minus_one_of};
use crate::ibverbs::abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD,
    IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::ibverbs::qp::{create_qp_ex, detach_from_groups};
use crate::ibverbs::qp_attr::from_attributes;
use crate::ibverbs::srq::create_srq_ex;

impl Id {
    pub(super) fn has_qp(&self) -> bool {
        // SAFETY: the program's own field.
        unsafe { !(*self.verbs()).qp.is_null() }
    }

    /// Moves the identifier's queue pair to state `to`, with the attributes of the connection.
    pub(super) fn modify_qp(&self, to: QpState) -> Outcome {
        let (attr, mask) = self.cm.init_qp_attr(to)?;
        let mut attr = from_attributes(&attr);
        let mask = mask.bits().cast_signed();
        // SAFETY: the identifier has a queue pair, see `has_qp`.
        check(unsafe { ibv_modify_qp((*self.verbs()).qp, &raw mut attr, mask) })
    }

    /// Moves the queue pair to the error state after its connection has failed.
    /// A datagram queue pair is left alone.
    pub(super) fn connection_failed(&self) {
        // SAFETY: the program's own field and queue pair.
        let qp = unsafe { (*self.verbs()).qp.as_ref() };
        if qp.is_some_and(|qp| qp.qp_type != QpType::Ud as c_uint) {
            self.qp_to_error();
        }
    }

    /// Moves the queue pair, if there is one, to the error state.
    pub(super) fn qp_to_error(&self) {
        // SAFETY: the program's own field and queue pair.
        let Some(qp) = (unsafe { (*self.verbs()).qp.as_mut() }) else { return };
        let mut attr = from_attributes(&rxe_verbs::QpAttr {
            qp_state: QpState::Err,
            ..rxe_verbs::QpAttr::default()
        });
        let mask = rxe_verbs::AttrMask::STATE.bits().cast_signed();
        // SAFETY: as above. A queue pair in RESET stays there, which does no harm.
        unsafe { ibv_modify_qp(qp, &raw mut attr, mask) };
    }

    /// Sets the queues that the program has not provided: the identifier's shared receive queue, if
    /// it has one, and its completion queues, which are created if it has none.
    fn fill_queues(
        &self,
        srq: &mut *mut ibv_srq,
        send_cq: &mut *mut ibv_cq,
        recv_cq: &mut *mut ibv_cq,
        cap: &ibv_qp_cap,
    ) -> Outcome {
        if srq.is_null() {
            // SAFETY: the program's own field.
            *srq = unsafe { (*self.verbs()).srq };
        }
        let needs = (send_cq.is_null(), recv_cq.is_null());
        self.make_cqs(cap.max_send_wr, cap.max_recv_wr, needs)?;
        // SAFETY: the program's own fields.
        unsafe {
            if needs.0 {
                *send_cq = (*self.verbs()).send_cq;
            }
            if needs.1 {
                *recv_cq = (*self.verbs()).recv_cq;
            }
        }
        Ok(())
    }

    /// Creates the completion queues that the program has not provided.
    fn make_cqs(&self, send: u32, recv: u32, needs: (bool, bool)) -> Outcome {
        let verbs = self.verbs();
        // SAFETY: the program's own fields, on an open context.
        unsafe {
            if needs.0 && (*verbs).send_cq.is_null() {
                let (channel, cq) = make_cq(verbs, send)?;
                ((*verbs).send_cq_channel, (*verbs).send_cq) = (channel, cq);
            }
            if needs.1 && (*verbs).recv_cq.is_null() {
                let (channel, cq) = make_cq(verbs, recv)?;
                ((*verbs).recv_cq_channel, (*verbs).recv_cq) = (channel, cq);
            }
        }
        Ok(())
    }

    /// Destroys the completion queues that this library created.
    /// The completion queue of an XRC SRQ is destroyed with that SRQ.
    fn destroy_cqs(&self) {
        // SAFETY: the library's own fields.
        if unsafe { !(*self.verbs()).srq.is_null() && (*self.verbs()).qp_type == TARGET } {
            return;
        }
        // SAFETY: the library's own fields, null if there is no object.
        let verbs = unsafe { &mut *self.verbs() };
        let null = ptr::null_mut;
        let (mut cqs, mut channels) = (
            [
                std::mem::replace(&mut verbs.send_cq, null()),
                std::mem::replace(&mut verbs.recv_cq, null()),
            ],
            [
                std::mem::replace(&mut verbs.send_cq_channel, ptr::null_mut()),
                std::mem::replace(&mut verbs.recv_cq_channel, ptr::null_mut()),
            ],
        );
        // A program may use the same queue for both.
        if cqs[0] == cqs[1] {
            cqs[0] = ptr::null_mut();
        }
        if channels[0] == channels[1] {
            channels[0] = ptr::null_mut();
        }
        // SAFETY: created by `make_cqs`, or by the program for this identifier.
        unsafe {
            for cq in cqs.into_iter().filter(|cq| !cq.is_null()) {
                ibv_destroy_cq(cq);
            }
            for channel in channels.into_iter().filter(|channel| !channel.is_null()) {
                ibv_destroy_comp_channel(channel);
            }
        }
    }

    fn create_qp(&self, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Outcome {
        self.check_free()?;
        if attr.qp_type == QpType::XrcRecv as c_uint {
            return self.create_target(attr);
        }
        let pd = self.domain(pd)?;
        self.fill_queues(&mut attr.srq, &mut attr.send_cq, &mut attr.recv_cq, &attr.cap)?;
        // SAFETY: a domain of an open context, and what the program asks for.
        let qp = unsafe { ibv_create_qp(pd, attr) };
        self.take_qp(qp, pd)
    }

    fn check_free(&self) -> Outcome {
        if self.has_qp() {
            return Err(Failure::new(libc::EINVAL, "the identifier has a queue pair already"));
        }
        Ok(())
    }

    /// Creates an XRC target queue pair, which belongs to an XRC domain and has no queues.
    fn create_target(&self, attr: &ibv_qp_init_attr) -> Outcome {
        let pd = self.domain(ptr::null_mut())?;
        // SAFETY: all zeros requests nothing.
        let mut wanted: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        wanted.qp_context = attr.qp_context;
        wanted.cap = attr.cap;
        wanted.qp_type = attr.qp_type;
        wanted.sq_sig_all = attr.sq_sig_all;
        wanted.comp_mask = IBV_QP_INIT_ATTR_XRCD;
        // SAFETY: the identifier has a device, see `domain`; and our own structure.
        let qp = unsafe {
            wanted.xrcd = default_xrcd((*self.verbs()).verbs);
            create_qp_ex((*self.verbs()).verbs, &raw mut wanted)
        };
        self.take_qp(qp, pd)
    }

    fn create_qp_ex(&self, attr: &mut ibv_qp_init_attr_ex) -> Outcome {
        self.check_free()?;
        // Fields that the mask does not name may be uninitialised.
        let mask = attr.comp_mask;
        if attr.qp_type == QpType::XrcRecv as c_uint
            && named(mask, IBV_QP_INIT_ATTR_XRCD, attr.xrcd).is_null()
        {
            // SAFETY: the program's own field.
            attr.xrcd = default_xrcd(unsafe { (*self.verbs()).verbs });
            attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
        let pd = self.domain(named(mask, IBV_QP_INIT_ATTR_PD, attr.pd))?;
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = pd;
        self.fill_queues(&mut attr.srq, &mut attr.send_cq, &mut attr.recv_cq, &attr.cap)?;
        // SAFETY: the identifier has a device, see `domain`; and what the program asks for.
        let qp = unsafe { create_qp_ex((*self.verbs()).verbs, attr) };
        self.take_qp(qp, pd)
    }

    /// Stores a new queue pair in the identifier and moves it to INIT.
    /// A datagram queue pair is moved on to RTS.
    fn take_qp(&self, qp: *mut crate::ibverbs::abi::ibv_qp, pd: *mut ibv_pd) -> Outcome {
        if qp.is_null() {
            let errno = std::io::Error::last_os_error().raw_os_error();
            self.destroy_cqs();
            return Err(Failure::plain(errno.unwrap_or(libc::EINVAL)));
        }
        // SAFETY: the library's own fields; the queue pair was just created.
        let datagram = unsafe {
            let verbs = &mut *self.verbs();
            (verbs.qp, verbs.pd) = (qp, pd);
            (*qp).qp_type == QpType::Ud as c_uint
        };
        let states: &[QpState] =
            if datagram { &[QpState::Init, QpState::Rtr, QpState::Rts] } else { &[QpState::Init] };
        states.iter().try_for_each(|&state| self.modify_qp(state)).inspect_err(|_| {
            self.destroy_qp();
        })
    }

    pub(super) fn destroy_qp(&self) {
        // SAFETY: the library's own field; the queue pair is the identifier's.
        unsafe {
            let qp = std::mem::replace(&mut (*self.verbs()).qp, ptr::null_mut());
            if !qp.is_null() {
                // As in librdmacm, the identifier stays a member of the groups that it has joined.
                detach_from_groups(qp);
                ibv_destroy_qp(qp);
            }
        }
        self.destroy_cqs();
    }

    /// Returns the protection domain that a program names.
    /// Without one, returns the identifier's, or else the default domain.
    fn domain(&self, pd: *mut ibv_pd) -> Outcome<*mut ibv_pd> {
        // SAFETY: the program's own fields.
        let (context, own) = unsafe { ((*self.verbs()).verbs, (*self.verbs()).pd) };
        if context.is_null() {
            return Err(Failure::new(libc::EINVAL, "the identifier has no device yet"));
        }
        let pd = match (pd.is_null(), own.is_null()) {
            (false, _) => pd,
            (true, false) => own,
            (true, true) => default_pd(context),
        };
        // SAFETY: a domain.
        if pd.is_null() || unsafe { (*pd).context } != context {
            let why = "the protection domain is of another device than the address leads to: make \
                       it on id->verbs";
            return Err(Failure::new(libc::EINVAL, why));
        }
        Ok(pd)
    }
}

/// Creates a completion channel and a completion queue on it.
/// # Safety
/// The identifier has an open context.
unsafe fn make_cq(
    id: *mut rdma_cm_id,
    depth: u32,
) -> Outcome<(*mut ibv_comp_channel, *mut ibv_cq)> {
    let failed = || {
        let errno = std::io::Error::last_os_error().raw_os_error();
        Failure::plain(errno.unwrap_or(libc::ENOMEM))
    };
    // SAFETY: the caller's promise.
    unsafe {
        let context = (*id).verbs;
        let channel = ibv_create_comp_channel(context);
        if channel.is_null() {
            return Err(failed());
        }
        let depth = c_int::try_from(depth.max(1)).unwrap_or(c_int::MAX);
        let cq = ibv_create_cq(context, depth, id.cast::<c_void>(), channel, 0);
        if cq.is_null() {
            let failure = failed();
            ibv_destroy_comp_channel(channel);
            return Err(failure);
        }
        Ok((channel, cq))
    }
}

/// Returns the object in a field, or null if `comp_mask` lacks the field's bit.
fn named<T>(comp_mask: u32, bit: u32, object: *mut T) -> *mut T {
    if comp_mask & bit != 0 { object } else { ptr::null_mut() }
}

fn check(errno: c_int) -> Outcome {
    if errno == 0 { Ok(()) } else { Err(Failure::plain(errno)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier and the caller's structure.
    let (this, attr) = unsafe { (Id::known(id), &mut *attr) };
    let made = this.and_then(|this| {
        may_fail("rdma_create_qp")?;
        this.create_qp(pd, attr)
    });
    minus_one_of("rdma_create_qp", made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier and the caller's structure.
    let (this, attr) = unsafe { (Id::known(id), &mut *attr) };
    let made = this.and_then(|this| {
        may_fail("rdma_create_qp")?;
        this.create_qp_ex(attr)
    });
    minus_one_of("rdma_create_qp_ex", made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier.
    if let Ok(this) = unsafe { Id::known(id) } {
        this.destroy_qp();
    }
}

/// Creates a shared receive queue: an XRC SRQ if the identifier is for an XRC target.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let create = || -> Outcome {
        // SAFETY: an identifier and the caller's structure.
        let (this, attr) = unsafe { (Id::known(id)?, &mut *attr) };
        // SAFETY: the program's own field.
        if unsafe { (*id).qp_type } != QpType::XrcRecv as c_uint {
            let pd = this.domain(pd)?;
            // SAFETY: a domain and the caller's structure.
            return take_srq(this, unsafe { ibv_create_srq(pd, attr) }, pd);
        }
        // SAFETY: all zeros requests nothing.
        let mut wanted: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
        wanted.srq_context = attr.srq_context;
        wanted.attr = attr.attr;
        wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        wanted.srq_type = XRC;
        wanted.pd = pd;
        this.create_srq(&mut wanted)
    };
    minus_one_of("rdma_create_srq", create())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier and the caller's structure.
    let (this, attr) = unsafe { (Id::known(id), &mut *attr) };
    minus_one_of("rdma_create_srq_ex", this.and_then(|this| this.create_srq(attr)))
}

const XRC: c_uint = 1;
const TARGET: c_uint = QpType::XrcRecv as c_uint;

impl Id {
    /// Creates a shared receive queue.
    /// If the program names no domains or completion queue, default ones are used.
    fn create_srq(&self, attr: &mut ibv_srq_init_attr_ex) -> Outcome {
        // Fields that the mask does not name may be uninitialised.
        let mask = attr.comp_mask;
        if mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
            let why =
                "the type (srq_type) is missing: name it in comp_mask (IBV_SRQ_INIT_ATTR_TYPE)";
            return Err(Failure::new(libc::EINVAL, why));
        }
        let pd = self.domain(named(mask, IBV_SRQ_INIT_ATTR_PD, attr.pd))?;
        attr.pd = pd;
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        if attr.srq_type == XRC && named(mask, IBV_SRQ_INIT_ATTR_CQ, attr.cq).is_null() {
            self.make_cqs(1, attr.attr.max_wr, (false, true))?;
            // SAFETY: the library's own field.
            attr.cq = unsafe { (*self.verbs()).recv_cq };
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
        }
        if attr.srq_type == XRC && named(mask, IBV_SRQ_INIT_ATTR_XRCD, attr.xrcd).is_null() {
            // SAFETY: the library's own field.
            attr.xrcd = default_xrcd(unsafe { (*self.verbs()).verbs });
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
        }
        // SAFETY: an open context and the caller's structure.
        let srq = unsafe { create_srq_ex((*self.verbs()).verbs, attr) };
        take_srq(self, srq, pd)
    }
}

fn take_srq(id: &Id, srq: *mut ibv_srq, pd: *mut ibv_pd) -> Outcome {
    if srq.is_null() {
        let errno = std::io::Error::last_os_error().raw_os_error();
        return Err(Failure::plain(errno.unwrap_or(libc::EINVAL)));
    }
    // SAFETY: the library's own fields.
    let verbs = unsafe { &mut *id.verbs() };
    verbs.srq = srq;
    if verbs.pd.is_null() {
        verbs.pd = pd;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier, whose shared receive queue nothing uses any more.
    unsafe {
        if Id::known(id).is_err() {
            return;
        }
        let srq = std::mem::replace(&mut (*id).srq, ptr::null_mut());
        if !srq.is_null() {
            ibv_destroy_srq(srq);
            if (*id).qp_type == TARGET {
                Id::of(id).destroy_cqs();
            }
        }
    }
}
