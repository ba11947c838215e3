//! The extended interface of send queues (`ibv_wr_*`): calls build requests, which are then posted
//! all together or not at all.
//!
//! From `wr_start` to `wr_complete` or `wr_abort` the thread holds the lock of the batch, as with
//! other providers, so the calls in between need no other lock.

use std::ffi::{c_int, c_uint, c_void};
use std::{ptr, slice};

use parking_lot::lock_api::RawMutex as _;
use rxe_verbs::{
    Key, Payload, Qkey, QpType, Qpn, Remote, SendFlags, SendOp, SendRequest, Sge, SgeList,
};

use super::abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge};
use super::mw;
use super::objects::{Ah, Building, Context, Qp};
use super::post;
use crate::ffi::{Failure, Outcome, errno_of};

/// All flags of `ibv_qp_create_send_ops_flags`, except for segmentation offload.
const OPERATIONS: u64 = 0x3ff | 1 << 11 | 1 << 12;
/// The operations of datagrams: SEND, with and without immediate data.
const DATAGRAM_OPERATIONS: u64 = 1 << 2 | 1 << 3;
/// The operations of unreliable connections: SEND and WRITE, with and without immediate data, and
/// the operations on local keys (LOCAL_INV, BIND_MW).
const UNRELIABLE_OPERATIONS: u64 = 0x0f | 1 << 7 | 1 << 8;

/// Checks that queue pairs of this type support all these operations.
pub(super) fn check_operations(qp_type: c_uint, flags: u64) -> Outcome {
    let can = match qp_type {
        t if t == QpType::Ud as c_uint => DATAGRAM_OPERATIONS,
        t if t == QpType::Uc as c_uint => UNRELIABLE_OPERATIONS,
        _ => OPERATIONS,
    };
    if flags & !can == 0 {
        return Ok(());
    }
    let why = format!("send_ops_flags {flags:#x}: {:#x} are not supported", flags & !can);
    Err(Failure::new(libc::EOPNOTSUPP, why))
}

/// Returns the functions that the header's inline functions call.
pub(super) fn functions(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: None,
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(wr_atomic_write),
        wr_flush: Some(wr_flush),
    }
}

/// Returns the requests that the thread is building.
/// # Safety
/// `qp` exists, and the thread is between `wr_start` and `wr_complete`.
unsafe fn building<'b>(qp: *mut ibv_qp_ex) -> &'b mut Building {
    // SAFETY: the thread holds the batch's lock, and no other such reference lives in this call.
    unsafe { &mut *Qp::of(qp.cast()).batch.building.get() }
}

/// Adds a request to the batch, with the ID and the flags that the program has set.
/// # Safety
/// As [`building`].
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the header's own fields, which the program sets before each request.
    let (id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let mut request = SendRequest::new(id, op, Payload::Sges(SgeList::new()));
    request.flags = SendFlags::from_bits_truncate(flags);
    // SAFETY: the caller's promise.
    unsafe { building(qp) }.requests.push(request);
}

/// Changes the last request of the batch.
///
/// # Safety
/// As [`building`].
unsafe fn refine(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut SendRequest) -> Outcome) {
    // SAFETY: the caller's promise.
    let building = unsafe { building(qp) };
    let outcome = match building.requests.last_mut() {
        Some(request) => change(request),
        None => Err(Failure::new(libc::EINVAL, "a setter was called before any operation")),
    };
    if let Err(failure) = outcome {
        building.wrong.get_or_insert(failure);
    }
}

fn remote(rkey: u32, addr: u64) -> Remote {
    Remote { addr, rkey: Key(rkey) }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: a queue pair, whose context is open.
    let (this, own) = unsafe { (Qp::of(qp.cast()), Context::of((*qp).qp_base.context).is_own()) };
    if own {
        return this.batch.lock.lock();
    }
    // In a forked child, the lock may have been copied while the parent was building. `wr_complete`
    // refuses whatever the child builds.
    let _ = this.batch.lock.try_lock();
    // SAFETY: no other thread of the child is in this call; the old value, which may be half changed,
    // is not dropped.
    unsafe { this.batch.building.get().write(Building::default()) };
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the thread holds the lock since `wr_start`.
    unsafe {
        *building(qp) = Building::default();
        Qp::of(qp.cast()).batch.lock.unlock();
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a queue pair, whose context is open.
    let (this, own) = unsafe { (Qp::of(qp.cast()), Context::of((*qp).qp_base.context).check()) };
    // SAFETY: the thread holds the lock since `wr_start`.
    let built = unsafe { building(qp) };
    let outcome = own.and_then(|()| match built.wrong.take() {
        Some(failure) => Err(failure),
        None => {
            let all = this.pair.check_post_send(&built.requests);
            let posted = all.and_then(|()| Ok(this.pair.post_send(built.requests.drain(..))?));
            posted.map_err(Failure::from)
        }
    });
    built.requests.clear();
    // SAFETY: as above.
    unsafe { this.batch.lock.unlock() };
    errno_of("ibv_wr_complete", outcome.map_err(|failure| failure.of_qp(this.number)))
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: between `wr_start` and `wr_complete`, as in all calls below.
    unsafe { begin(qp, SendOp::Send { imm: None }) }
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, SendOp::Send { imm: Some(u32::from_be(imm)) }) }
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, SendOp::SendInvalidate { rkey: Key(rkey) }) }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, SendOp::LocalInvalidate { key: Key(rkey) }) }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    window: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: see wr_send; the window, and the region named by the structure, exist.
    unsafe {
        match mw::operation(window, rkey, &*info) {
            Ok(op) => begin(qp, op),
            Err(failure) => drop(building(qp).wrong.get_or_insert(failure)),
        }
    }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, SendOp::Read { remote: remote(rkey, addr) }) }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, SendOp::Write { remote: remote(rkey, addr), imm: None }) }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    let imm = Some(u32::from_be(imm));
    // SAFETY: see wr_send.
    unsafe { begin(qp, SendOp::Write { remote: remote(rkey, addr), imm }) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, SendOp::CompareSwap { remote: remote(rkey, addr), compare, swap }) }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, SendOp::FetchAdd { remote: remote(rkey, addr), add }) }
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    value: *const c_void,
) {
    // SAFETY: see wr_send; the 8 bytes are the program's.
    unsafe {
        begin(qp, SendOp::AtomicWrite { remote: remote(rkey, addr) });
        let value: [u8; 8] = ptr::read_unaligned(value.cast());
        refine(qp, |request| {
            request.payload = Payload::Inline(value.as_slice().into());
            Ok(())
        });
    }
}

/// Adds a FLUSH. `level` 0 flushes a range of the region, 1 the whole region.
unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    kind: u8,
    level: u8,
) {
    let op = SendOp::Flush {
        remote: remote(rkey, addr),
        length: u32::try_from(len).unwrap_or(u32::MAX),
        placement: rxe_core::queue::Placement::from_bits_truncate(kind),
        whole_region: level == 1,
    };
    // SAFETY: see wr_send.
    unsafe { begin(qp, op) }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: see wr_send; an address handle.
    unsafe {
        refine(qp, |request| {
            let qpn = Qpn::from_wire(qpn);
            request.to = Some(Ah::of(ah).handle.datagram(qpn, Qkey::new(qkey)));
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
    // SAFETY: see wr_send.
    unsafe {
        refine(qp, |request| {
            request.xrc_srq = Some(number);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let parts = std::iter::once((addr.cast_const(), length));
    // SAFETY: see wr_send; the bytes are the program's.
    unsafe {
        refine(qp, |request| {
            Context::of((*qp).qp_base.context).check()?;
            request.payload = post::inline(Qp::of(qp.cast()), parts)?;
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: see wr_send; the list and its bytes are the program's.
    unsafe {
        let list = if count == 0 { &[] } else { slice::from_raw_parts(list, count) };
        let parts = list
            .iter()
            .map(|part| (part.addr.cast_const(), u32::try_from(part.length).unwrap_or(u32::MAX)));
        refine(qp, |request| {
            Context::of((*qp).qp_base.context).check()?;
            request.payload = post::inline(Qp::of(qp.cast()), parts)?;
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, length, lkey: Key(lkey) };
    // SAFETY: see wr_send.
    unsafe {
        refine(qp, |request| {
            request.payload = Payload::Sges([sge].as_slice().into());
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: see wr_send; the list is the program's.
    unsafe {
        let list = if count == 0 { &[] } else { slice::from_raw_parts(list, count) };
        refine(qp, |request| {
            request.payload = Payload::Sges(list.iter().map(post::sge).collect());
            Ok(())
        });
    }
}
