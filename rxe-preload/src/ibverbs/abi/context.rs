//! Devices and contexts, with the function tables of the header's inline functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{
    PollCq, PostRecv, PostSend, PostSrqRecv, ibv_alloc_dm_attr, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_dm, ibv_mr, ibv_mw, ibv_mw_bind,
    ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr,
    ibv_values_ex, ibv_xrcd, ibv_xrcd_init_attr,
};

#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) _ops: [*const c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// The entry of a function that no program calls any more, or that this library lacks.
type Empty = *const c_void;

#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) _compat_query_to_dereg: [Empty; 7],
    pub(crate) alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw>,
    pub(crate) bind_mw:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub(crate) _compat_create_cq: Empty,
    pub(crate) poll_cq: Option<PollCq>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub(crate) _compat_cq_event_to_destroy_srq: [Empty; 7],
    pub(crate) post_srq_recv: Option<PostSrqRecv>,
    pub(crate) _compat_create_to_destroy_qp: [Empty; 4],
    pub(crate) post_send: Option<PostSend>,
    pub(crate) post_recv: Option<PostRecv>,
    pub(crate) _compat_create_ah_to_async_event: [Empty; 5],
}

#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

// SAFETY: plain addresses, which are only followed in functions that state their conditions.
unsafe impl Send for ibv_context {}
// SAFETY: as above.
unsafe impl Sync for ibv_context {}

/// The extended context.
/// New versions of the header add fields at its beginning; `sz` is its size in bytes.
#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub(crate) advise_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *const ibv_sge, u32) -> c_int>,
    pub(crate) alloc_null_mr: Empty,
    pub(crate) read_counters: Empty,
    pub(crate) attach_counters_point_flow: Empty,
    pub(crate) create_counters: Empty,
    pub(crate) destroy_counters: Empty,
    pub(crate) reg_dm_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
    pub(crate) alloc_dm:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub(crate) free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub(crate) modify_flow_action_esp: Empty,
    pub(crate) destroy_flow_action: Empty,
    pub(crate) create_flow_action_esp: Empty,
    pub(crate) modify_qp_rate_limit: Empty,
    pub(crate) alloc_parent_domain: Option<
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
    >,
    pub(crate) dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub(crate) alloc_td:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub(crate) modify_cq: Empty,
    pub(crate) post_srq_ops: Empty,
    pub(crate) destroy_rwq_ind_table: Empty,
    pub(crate) create_rwq_ind_table: Empty,
    pub(crate) destroy_wq: Empty,
    pub(crate) modify_wq: Empty,
    pub(crate) create_wq: Empty,
    pub(crate) query_rt_values:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub(crate) create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub(crate) r#priv: *mut c_void,
    pub(crate) query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const c_void,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub(crate) ibv_destroy_flow: Empty,
    pub(crate) abi_placeholder2: Empty,
    pub(crate) ibv_create_flow: Empty,
    pub(crate) abi_placeholder1: Empty,
    pub(crate) open_qp:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub(crate) create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub(crate) get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub(crate) create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub(crate) open_xrcd:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub(crate) close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub(crate) _abi_placeholder3: u64,
    pub(crate) sz: usize,
    pub(crate) context: ibv_context,
}

/// The value of `ibv_context::abi_compat` in a context that is part of a [`verbs_context`].
pub(crate) const ABI_IS_EXTENDED: usize = usize::MAX;
