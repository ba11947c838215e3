//! The extended interface of completion queues: one completion at a time, read field by field.
//!
//! Between `start_poll` and `end_poll` the queue belongs to one thread, as verbs requires.

use std::ffi::{c_int, c_uint, c_void};

use rxe_verbs::{Completion, Status};

use super::abi::{ibv_cq, ibv_cq_ex};
use super::completion;
use super::objects::Cq;
use super::wall_clock::WallClock;
use crate::explain;
use crate::faults::may_fail;
use crate::ffi::errno_of;

/// Returns the functions that the header's inline functions call.
pub(super) fn readers(base: ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_zero),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_zero),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_zero_byte),
        read_completion_ts: Some(read_completion_ts),
        // The kernel strips VLAN tags, and there are no rules that set flow tags.
        read_cvlan: Some(read_zero_short),
        read_flow_tag: Some(read_zero),
        read_tm_info: None,
        read_completion_wallclock_ns: Some(read_wallclock),
    }
}

unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a queue.
    let this = unsafe { Cq::of(cq.cast()) };
    if !this.owner().is_own() {
        return libc::EIO;
    }
    match this.queue.poll_one() {
        Ok(None) => {
            this.pause();
            libc::ENOENT
        }
        Ok(Some(completion)) => {
            if completion.status != Status::Success {
                this.owner().failed(&completion);
            }
            // SAFETY: the header's own fields, which only the polling thread uses; no reference to
            // them exists.
            unsafe {
                (*cq).status = completion.status.code().into();
                (*cq).wr_id = completion.id;
            }
            *this.current.lock() = Some(completion);
            0
        }
        Err(e) => {
            explain::once("ibv_start_poll", &e.to_string());
            e.errno()
        }
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut c_void) -> c_int {
    // SAFETY: null, or a structure that begins with its comp_mask.
    if !attr.is_null() && unsafe { *attr.cast::<u32>() } != 0 {
        return libc::EINVAL;
    }
    if let Err(failure) = may_fail("ibv_poll_cq") {
        return errno_of("ibv_start_poll", Err(failure));
    }
    // SAFETY: a queue.
    unsafe { advance(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a queue.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: a queue.
    *unsafe { Cq::of(cq.cast()) }.current.lock() = None;
}

unsafe fn current<T: Default>(cq: *mut ibv_cq_ex, read: impl FnOnce(&Completion) -> T) -> T {
    // SAFETY: a queue.
    unsafe { Cq::of(cq.cast()) }.current.lock().as_ref().map(read).unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: a queue.
    unsafe { current(cq, |c| c.op as c_uint) }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: a queue.
    unsafe { current(cq, |c| c.byte_len) }
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: a queue.
    unsafe { current(cq, completion::immediate) }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: a queue.
    unsafe { current(cq, |c| c.qpn.value()) }
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: a queue.
    unsafe { current(cq, |c| c.src_qp.value()) }
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: a queue.
    unsafe { current(cq, completion::flags) }
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: a queue.
    unsafe { current(cq, completion::network) }
}

unsafe extern "C" fn read_zero(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_zero_short(_cq: *mut ibv_cq_ex) -> u16 {
    0
}

unsafe extern "C" fn read_zero_byte(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

/// Returns the time of the completion by CLOCK_MONOTONIC, in nanoseconds.
/// The unit is that of `hca_core_clock`.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: a queue.
    unsafe { current(cq, |c| c.timestamp.as_nanos()) }
}

/// Returns the wall-clock time of the completion in nanoseconds since 1970.
unsafe extern "C" fn read_wallclock(cq: *mut ibv_cq_ex) -> u64 {
    /// The clock, shared by all queues because programs compare times of several queues.
    static CLOCK: WallClock = WallClock::new();
    // SAFETY: a queue.
    unsafe { current(cq, |c| CLOCK.time_of(c.timestamp.as_nanos())) }
}
