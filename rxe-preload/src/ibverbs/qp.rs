//! Creates and destroys queue pairs, and joins multicast groups. IBTA 10.2.4, 11.2.5, 11.3.

use std::ffi::{c_int, c_uint};
use std::ptr;

use rxe_verbs::{Error, Gid, QpCap, QpType, VerbsError};

use super::abi::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD, Unused, ibv_context, ibv_ece, ibv_gid, ibv_pd, ibv_qp, ibv_qp_cap,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_xrcd,
};
use super::builder;
use super::objects::{Context, Cq, Handle, Pd, Qp, Srq, Xrcd, from_cap};
use crate::explain::{self, NewQp};
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, pointer_of};

/// The parameters of a new queue pair, from either function that creates one.
struct Wanted {
    /// Whether the QP does not receive its own datagrams to multicast groups.
    block_own_multicast: bool,
    /// Whether the program named operations of the send queue. It then gets the extended interface.
    extended: bool,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    attr: ibv_qp_init_attr,
}

/// Creates a queue pair.
/// # Safety
/// The objects that `wanted` names exist.
unsafe fn create(wanted: &Wanted) -> Outcome<*mut ibv_qp> {
    let attr = &wanted.attr;
    // SAFETY: an open context.
    let owner = unsafe { Context::of(wanted.context) };
    owner.check()?;
    may_fail("ibv_create_qp")?;
    let service = service(attr.qp_type)?;
    let missing = |what: &str| Failure::new(libc::EINVAL, format!("{what} is missing"));
    let mut builder = if service == QpType::XrcRecv {
        if wanted.xrcd.is_null() {
            return Err(missing("the XRC domain (xrcd)"));
        }
        // SAFETY: a domain.
        unsafe { Xrcd::of(wanted.xrcd) }.domain.qp()
    } else {
        if wanted.pd.is_null() {
            return Err(missing("the protection domain (pd)"));
        }
        if attr.send_cq.is_null() {
            return Err(missing("send_cq"));
        }
        // An XRC sender receives nothing.
        let recv_cq = match (service, attr.recv_cq.is_null()) {
            (QpType::XrcSend, _) => attr.send_cq,
            (_, false) => attr.recv_cq,
            (_, true) => return Err(missing("recv_cq")),
        };
        // SAFETY: a protection domain and completion queues.
        unsafe {
            let (send, recv) = (Cq::known(attr.send_cq)?, Cq::known(recv_cq)?);
            Pd::known(wanted.pd)?.domain.qp_with(&send.queue, &recv.queue).service(service)
        }
    };
    builder = builder.cap(to_cap(&attr.cap)).sq_sig_all(attr.sq_sig_all != 0);
    builder = builder.block_own_multicast(wanted.block_own_multicast);
    if !attr.srq.is_null() && !matches!(service, QpType::XrcSend | QpType::XrcRecv) {
        // SAFETY: a shared receive queue.
        builder = builder.srq(&unsafe { Srq::known(attr.srq) }?.queue);
    }
    let pair = builder.build().map_err(|e| match e {
        Error::Verbs(VerbsError::LimitExceeded { .. }) => {
            explain::limits::exceeded("ibv_create_qp", &e.to_string());
            Failure::plain(e.errno())
        }
        e => e.into(),
    })?;
    explain::limits::met();
    let (number, made) = (pair.qpn().value(), Handle::new(wanted.context));
    let base = ibv_qp {
        context: wanted.context,
        qp_context: attr.qp_context,
        pd: wanted.pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: made.number(),
        qp_num: number,
        state: 0,
        qp_type: attr.qp_type,
        unused: Unused::NEW,
        events_completed: 0,
    };
    let verbs = builder::functions(base);
    let qp = Qp::into_ptr(verbs, made, pair, attr.sq_sig_all != 0, wanted.extended);
    owner.qps.lock().insert(number, qp);
    // SAFETY: just created.
    let pair = unsafe { &Qp::of(qp).pair };
    let cqs = [pair.send_cq().id(), pair.recv_cq().id()];
    owner.watch.created(number, NewQp { service, cqs });
    Ok(qp)
}

fn service(qp_type: c_uint) -> Outcome<QpType> {
    const ALL: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];
    ALL.into_iter().find(|&service| service as c_uint == qp_type).ok_or_else(|| {
        let why = format!("queue pairs of type {qp_type}: there are RC, UC, UD and XRC");
        Failure::new(libc::EOPNOTSUPP, why)
    })
}

fn to_cap(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        // Kernel `rdma_rxe` stores inline data in place of the list, and programs rely on that
        // room.
        max_inline_data: cap.max_inline_data.max(16 * cap.max_send_sge.min(32)),
    }
}

pub(super) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    if pd.is_null() {
        return pointer_of("ibv_create_qp", Err(Failure::null("the protection domain")));
    }
    // SAFETY: a protection domain and the caller's structure.
    let (context, wanted) = unsafe { ((*pd).context, *attr) };
    let wanted = Wanted {
        block_own_multicast: false,
        extended: false,
        context,
        pd,
        xrcd: ptr::null_mut(),
        attr: wanted,
    };
    // SAFETY: the caller's promise.
    let made = unsafe { create(&wanted) };
    if let Ok(qp) = made {
        // SAFETY: the caller's structure, and the queue pair just created.
        unsafe { (*attr).cap = from_cap(Qp::of(qp).pair.cap()) };
    }
    pointer_of("ibv_create_qp", made)
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's structure.
    let made = unsafe { create_ex(context, &*attr) };
    if let Ok(qp) = made {
        // SAFETY: the caller's structure, and the queue pair just created.
        unsafe { (*attr).cap = from_cap(Qp::of(qp).pair.cap()) };
    }
    pointer_of("ibv_create_qp_ex", made)
}

unsafe fn create_ex(context: *mut ibv_context, attr: &ibv_qp_init_attr_ex) -> Outcome<*mut ibv_qp> {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const BLOCK_SELF_MCAST_LB: u32 = 1 << 1;
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !KNOWN != 0 {
        let why = format!("comp_mask {:#x} asks for what there is not", attr.comp_mask);
        return Err(Failure::new(libc::EOPNOTSUPP, why));
    }
    let flags = if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 };
    if flags & !BLOCK_SELF_MCAST_LB != 0 {
        let why = format!("create_flags {:#x} are not supported", attr.create_flags);
        return Err(Failure::new(libc::EOPNOTSUPP, why));
    }
    if has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
        builder::check_operations(attr.qp_type, attr.send_ops_flags)?;
    }
    let wanted = Wanted {
        block_own_multicast: flags & BLOCK_SELF_MCAST_LB != 0,
        extended: has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS),
        context,
        pd: if has(IBV_QP_INIT_ATTR_PD) { attr.pd } else { ptr::null_mut() },
        xrcd: if has(IBV_QP_INIT_ATTR_XRCD) { attr.xrcd } else { ptr::null_mut() },
        attr: ibv_qp_init_attr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        },
    };
    // SAFETY: the caller's promise.
    unsafe { create(&wanted) }
}

pub(super) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a queue pair, whose context is open.
    let (this, owner) = match may_fail("ibv_destroy_qp").and_then(|()| unsafe { Qp::known(qp) }) {
        // SAFETY: its context is the one on which it was created.
        Ok(this) => (this, unsafe { Context::of((*qp).context) }),
        Err(failure) => return errno_of("ibv_destroy_qp", Err(failure)),
    };
    if !owner.is_own() {
        return 0;
    }
    let groups = this.pair.multicast_groups().len();
    if groups > 0 {
        let why =
            format!("it is attached to multicast groups ({groups}): ibv_detach_mcast takes it out");
        let busy = Failure::new(libc::EBUSY, why).of_qp(this.pair.qpn());
        return errno_of("ibv_destroy_qp", Err(busy));
    }
    owner.qps.lock().remove(&this.pair.qpn().value());
    owner.watch.destroyed(this.pair.qpn().value());
    this.asyncs.wait("ibv_destroy_qp");
    // SAFETY: from `into_ptr`; the program gives it up.
    unsafe { owner.alive.free(qp.cast::<Qp>()) };
    0
}

/// Detaches a queue pair from its multicast groups before it is destroyed.
///
/// # Safety
/// `qp` exists.
pub(crate) unsafe fn detach_from_groups(qp: *mut ibv_qp) {
    // SAFETY: the caller's promise.
    let Ok(this) = (unsafe { Qp::own(qp) }) else { return };
    for group in this.pair.multicast_groups() {
        // If the device has failed, nothing is received any more.
        let _ = this.pair.detach_multicast(group);
    }
}

/// Returns the extended interface of a queue pair. Null if the program has not asked for it.
pub(super) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: a queue pair.
    if unsafe { Qp::of(qp) }.extended { qp.cast() } else { ptr::null_mut() }
}

pub(super) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: a queue pair and a GID of the caller.
    let (this, gid) = unsafe { (Qp::own(qp), Gid::from_bytes((*gid).raw)) };
    let attached = this.and_then(|this| {
        may_fail("ibv_attach_mcast")?;
        Ok(this.pair.attach_multicast(gid)?)
    });
    errno_of("ibv_attach_mcast", attached)
}

pub(super) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: a queue pair and a GID of the caller.
    let (this, gid) = unsafe { (Qp::own(qp), Gid::from_bytes((*gid).raw)) };
    errno_of("ibv_detach_mcast", this.and_then(|this| Ok(this.pair.detach_multicast(gid)?)))
}

/// Reports that there are no options for enhanced connection establishment.
/// With such options, two devices of one vendor agree on extensions.
pub(super) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's structure.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}

pub(super) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's structure.
    let ece = unsafe { &*ece };
    if ece.comp_mask != 0 {
        return libc::EINVAL;
    }
    if ece.vendor_id == 0 { 0 } else { libc::EOPNOTSUPP }
}

/// Promises nothing: the bytes of a message may become visible in any order.
pub(super) extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_uint,
    _flags: u32,
) -> c_int {
    0
}
