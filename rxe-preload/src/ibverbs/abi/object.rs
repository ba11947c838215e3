//! The objects that programs hold: the parts that the header declares.

use std::ffi::{c_int, c_uint, c_void};

use super::{
    ibv_context, ibv_data_buf, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

/// `pthread_mutex_t` and `pthread_cond_t` fields, which only the original libibverbs uses.
#[repr(C)]
pub(crate) struct Unused {
    mutex: libc::pthread_mutex_t,
    cond: libc::pthread_cond_t,
}

impl Unused {
    pub(crate) const NEW: Self =
        Self { mutex: libc::PTHREAD_MUTEX_INITIALIZER, cond: libc::PTHREAD_COND_INITIALIZER };
}

#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_td {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_xrcd {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// The type of `ibv_dm::memcpy_to_dm`.
pub(crate) type MemcpyToDm = unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int;
/// The type of `ibv_dm::memcpy_from_dm`.
pub(crate) type MemcpyFromDm = unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int;

#[repr(C)]
pub(crate) struct ibv_dm {
    pub(crate) context: *mut ibv_context,
    pub(crate) memcpy_to_dm: MemcpyToDm,
    pub(crate) memcpy_from_dm: MemcpyFromDm,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_alloc_dm_attr {
    pub(crate) length: usize,
    pub(crate) log_align_req: u32,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) r#type: c_uint,
}

#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    pub(crate) unused: Unused,
    pub(crate) events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_uint,
    pub(crate) qp_type: c_uint,
    pub(crate) unused: Unused,
    pub(crate) events_completed: u32,
}

type Builder = *mut ibv_qp_ex;

#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) qp_base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(Builder, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<unsafe extern "C" fn(Builder, u32, u64, u64)>,
    pub(crate) wr_bind_mw:
        Option<unsafe extern "C" fn(Builder, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub(crate) wr_local_inv: Option<unsafe extern "C" fn(Builder, u32)>,
    pub(crate) wr_rdma_read: Option<unsafe extern "C" fn(Builder, u32, u64)>,
    pub(crate) wr_rdma_write: Option<unsafe extern "C" fn(Builder, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(Builder, u32, u64, u32)>,
    pub(crate) wr_send: Option<unsafe extern "C" fn(Builder)>,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(Builder, u32)>,
    pub(crate) wr_send_inv: Option<unsafe extern "C" fn(Builder, u32)>,
    pub(crate) wr_send_tso: Option<unsafe extern "C" fn(Builder, *mut c_void, u16, u16)>,
    pub(crate) wr_set_ud_addr: Option<unsafe extern "C" fn(Builder, *mut ibv_ah, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Option<unsafe extern "C" fn(Builder, u32)>,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(Builder, *mut c_void, usize)>,
    pub(crate) wr_set_inline_data_list:
        Option<unsafe extern "C" fn(Builder, usize, *const ibv_data_buf)>,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(Builder, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(Builder, usize, *const ibv_sge)>,
    pub(crate) wr_start: Option<unsafe extern "C" fn(Builder)>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(Builder) -> c_int>,
    pub(crate) wr_abort: Option<unsafe extern "C" fn(Builder)>,
    pub(crate) wr_atomic_write: Option<unsafe extern "C" fn(Builder, u32, u64, *const c_void)>,
    /// This field exists in rdma-core 49 and later.
    pub(crate) wr_flush: Option<unsafe extern "C" fn(Builder, u32, u64, usize, u8, u8)>,
}

/// A completion queue. `ibv_cq_ex` begins with the same fields.
#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) unused: Unused,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

type Reader<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) base: ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: c_uint,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void) -> c_int>,
    pub(crate) next_poll: Reader<c_int>,
    pub(crate) end_poll: Reader<()>,
    pub(crate) read_opcode: Reader<c_uint>,
    pub(crate) read_vendor_err: Reader<u32>,
    pub(crate) read_byte_len: Reader<u32>,
    pub(crate) read_imm_data: Reader<u32>,
    pub(crate) read_qp_num: Reader<u32>,
    pub(crate) read_src_qp: Reader<u32>,
    pub(crate) read_wc_flags: Reader<c_uint>,
    pub(crate) read_slid: Reader<u32>,
    pub(crate) read_sl: Reader<u8>,
    pub(crate) read_dlid_path_bits: Reader<u8>,
    pub(crate) read_completion_ts: Reader<u64>,
    pub(crate) read_cvlan: Reader<u16>,
    pub(crate) read_flow_tag: Reader<u32>,
    pub(crate) read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void)>,
    pub(crate) read_completion_wallclock_ns: Reader<u64>,
}

/// The type of `ibv_context_ops::poll_cq`. These types are used by several files.
pub(crate) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(crate) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub(crate) type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub(crate) type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
