//! Posting work requests. Inline functions reach these through the table in `open.rs`.
//!
//! [`rxe_verbs::QueuePair`] puts a work request into the queue of the queue pair and, for a send,
//! rings the engine's doorbell. IBTA 11.4.1.

use std::ffi::{c_int, c_void};
use std::{ptr, slice};

use rxe_verbs::{
    Key, Payload, Qkey, QpType, Qpn, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge,
    SgeList,
};
use smallvec::SmallVec;

use super::abi::{
    IBV_SEND_INLINE, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE,
    IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_qp,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
};
use super::mw;
use super::objects::{Ah, Context, Qp, Srq};
use crate::explain;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome};

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a queue pair, whose context is open.
    let (this, own) = unsafe { (Qp::of(qp), Context::of((*qp).context).is_own()) };
    if !own {
        // SAFETY: the caller's variable.
        unsafe { *bad = first };
        return libc::EIO;
    }
    if let Err(failure) = may_fail("ibv_post_send") {
        explain::refused("ibv_post_send", failure.text.as_deref());
        // SAFETY: the caller's variable.
        unsafe { *bad = first };
        return failure.errno;
    }
    let mut at = first;
    let mut wrong: Outcome = Ok(());
    // The request being posted. If it is refused, the program gets it as `bad_wr`.
    let mut given = first;
    let requests = std::iter::from_fn(|| {
        given = at;
        if at.is_null() {
            return None;
        }
        // SAFETY: a request of the caller's list, which ends with null.
        let wr = unsafe { at.read_unaligned() };
        // SAFETY: the memory that the request names exists, as verbs requires.
        match unsafe { send_request(this, &wr) } {
            Ok(request) => {
                at = wr.next;
                Some(request)
            }
            Err(failure) => {
                wrong = Err(failure);
                None
            }
        }
    });
    let failure = match this.pair.post_send(requests) {
        Ok(()) => match wrong {
            Ok(()) => return 0,
            Err(failure) => failure,
        },
        Err(e) => e.error.into(),
    };
    let failure = failure.of_qp(this.pair.qpn());
    explain::refused("ibv_post_send", failure.text.as_deref());
    // SAFETY: the caller's variable.
    unsafe { *bad = given };
    failure.errno
}

/// Converts a work request of a program.
/// # Safety
/// What `wr` points to exists.
unsafe fn send_request(qp: &Qp, wr: &ibv_send_wr) -> Outcome<SendRequest> {
    let service = qp.pair.service();
    let rdma = || {
        // SAFETY: the member that RDMA requests use; any bits are a value.
        let rdma = unsafe { wr.wr.rdma };
        Remote { addr: rdma.remote_addr, rkey: Key(rdma.rkey) }
    };
    let imm = Some(u32::from_be(wr.imm_or_rkey));
    let op = match wr.opcode {
        IBV_WR_SEND => SendOp::Send { imm: None },
        IBV_WR_SEND_WITH_IMM => SendOp::Send { imm },
        IBV_WR_RDMA_WRITE => SendOp::Write { remote: rdma(), imm: None },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::Write { remote: rdma(), imm },
        IBV_WR_RDMA_READ => SendOp::Read { remote: rdma() },
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the member that atomics use; any bits are a value.
            let atomic = unsafe { wr.wr.atomic };
            let remote = Remote { addr: atomic.remote_addr, rkey: Key(atomic.rkey) };
            if wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP {
                SendOp::CompareSwap { remote, compare: atomic.compare_add, swap: atomic.swap }
            } else {
                SendOp::FetchAdd { remote, add: atomic.compare_add }
            }
        }
        IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate { rkey: Key(wr.imm_or_rkey) },
        IBV_WR_BIND_MW => {
            // SAFETY: the window and the region that the request names exist.
            unsafe { mw::operation(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info) }?
        }
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { key: Key(wr.imm_or_rkey) },
        IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { remote: rdma() },
        other => {
            let why = format!("opcode {other} is not supported");
            return Err(Failure::new(libc::EINVAL, why));
        }
    };
    // SAFETY: the request's list.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    let payload = if wr.send_flags & IBV_SEND_INLINE != 0 {
        // SAFETY: inline elements are memory of the program, registered or not.
        unsafe { inline(qp, list.map(|e| (ptr::with_exposed_provenance(addr(&e)), e.length))) }?
    } else {
        Payload::Sges(list.map(|element| sge(&element)).collect())
    };
    let mut request = SendRequest::new(wr.wr_id, op, payload);
    request.flags = SendFlags::from_bits_truncate(wr.send_flags);
    match service {
        QpType::Ud => {
            // SAFETY: the member that datagrams use; any bits are a value.
            let ud = unsafe { wr.wr.ud };
            if ud.ah.is_null() {
                let why = "a datagram needs an address handle (wr.ud.ah)";
                return Err(Failure::new(libc::EINVAL, why));
            }
            // SAFETY: an address handle.
            let ah = unsafe { Ah::of(ud.ah) };
            request.to =
                Some(ah.handle.datagram(Qpn::from_wire(ud.remote_qpn), Qkey::new(ud.remote_qkey)));
        }
        QpType::XrcSend => request.xrc_srq = Some(wr.remote_srqn),
        _ => {}
    }
    Ok(request)
}

fn addr(element: &ibv_sge) -> usize {
    usize::try_from(element.addr).unwrap_or(0)
}

pub(super) fn sge(element: &ibv_sge) -> Sge {
    Sge { addr: element.addr, length: element.length, lkey: Key(element.lkey) }
}

/// Returns the elements of a request.
/// Some programs, such as libiscsi, have them in packed structures, at unaligned addresses.
///
/// # Safety
/// `list` has `count` elements, which do not change until the iterator is dropped.
unsafe fn elements(
    list: *const ibv_sge,
    count: c_int,
) -> Outcome<impl ExactSizeIterator<Item = ibv_sge> + Clone> {
    let negative = || Failure::new(libc::EINVAL, format!("num_sge is {count}"));
    let count = usize::try_from(count).map_err(|_| negative())?;
    if count > 0 && list.is_null() {
        return Err(Failure::new(libc::EINVAL, "sg_list is null"));
    }
    // SAFETY: the caller's promise: each element is there.
    Ok((0..count).map(move |at| unsafe { list.add(at).read_unaligned() }))
}

/// Copies the bytes of an inline request, which need not be registered.
///
/// # Safety
/// The memory is readable.
pub(super) unsafe fn inline(
    qp: &Qp,
    parts: impl Iterator<Item = (*const c_void, u32)> + Clone,
) -> Outcome<Payload> {
    let total: u64 = parts.clone().map(|(_, len)| u64::from(len)).sum();
    let room = qp.pair.cap().max_inline_data;
    if total > room.into() {
        let why = format!(
            "{total} bytes of inline data: the queue pair was made for {room} (max_inline_data)"
        );
        return Err(Failure::new(libc::EINVAL, why));
    }
    let mut bytes: SmallVec<[u8; 32]> = SmallVec::new();
    for (from, len) in parts.filter(|(_, len)| *len > 0) {
        let len = usize::try_from(len).unwrap_or(0);
        // SAFETY: the caller's promise. The program owns this memory and does not change it during
        // this call.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(from.cast::<u8>(), len) });
    }
    Ok(Payload::Inline(bytes))
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a queue pair, whose context is open.
    let (this, own) = unsafe { (Qp::of(qp), Context::of((*qp).context).is_own()) };
    let post = |r| {
        may_fail("ibv_post_recv")?;
        this.pair.post_recv(r).map_err(|e| Failure::from(e).of_qp(this.pair.qpn()))
    };
    // SAFETY: the caller's list.
    unsafe { post_receives("ibv_post_recv", own, first, bad, post) }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a queue, whose context is open.
    let (this, own) = unsafe { (Srq::of(srq), Context::of((*srq).context).is_own()) };
    let post = |r| {
        may_fail("ibv_post_srq_recv")?;
        this.queue.post_recv(r).map_err(Failure::from)
    };
    // SAFETY: the caller's list.
    unsafe { post_receives("ibv_post_srq_recv", own, first, bad, post) }
}

/// Posts the receives of a list, up to the first that fails.
/// # Safety
/// The list consists of work requests, and `bad` is the caller's variable.
unsafe fn post_receives(
    verb: &'static str,
    own: bool,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(RecvRequest) -> Outcome,
) -> c_int {
    let mut at = first;
    while !at.is_null() {
        // SAFETY: a request of the list.
        let wr = unsafe { at.read_unaligned() };
        // SAFETY: the request's list.
        let posted = unsafe { elements(wr.sg_list, wr.num_sge) }.and_then(|list| {
            if !own {
                return Err(Failure::plain(libc::EIO));
            }
            let sges: SgeList = list.map(|element| sge(&element)).collect();
            post(RecvRequest { id: wr.wr_id, sges })
        });
        if let Err(failure) = posted {
            explain::refused(verb, failure.text.as_deref());
            // SAFETY: the caller's variable.
            unsafe { *bad = at };
            return failure.errno;
        }
        at = wr.next;
    }
    0
}
