//! Calls of newer versions of rdma-core for features that our devices lack: DMA handles, device
//! memory as a DMA buffer, completion counters. They fail with EOPNOTSUPP, as with any provider
//! that lacks these features.

use std::ffi::{c_int, c_void};

use super::abi::{ibv_context, ibv_qp};
use crate::ffi::{Failure, Outcome, errno_of, minus_one_of, pointer_of};

fn unsupported<T>() -> Outcome<T> {
    Err(Failure::plain(libc::EOPNOTSUPP))
}

pub(super) extern "C" fn ibv_alloc_dmah(
    _context: *mut ibv_context,
    _attr: *mut c_void,
) -> *mut c_void {
    pointer_of("ibv_alloc_dmah", unsupported())
}

pub(super) extern "C" fn ibv_dealloc_dmah(_dmah: *mut c_void) -> c_int {
    errno_of("ibv_dealloc_dmah", unsupported())
}

pub(super) extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut c_void) -> c_int {
    minus_one_of("ibv_dm_export_dmabuf_fd", unsupported())
}

pub(super) extern "C" fn _ibv_query_comp_cntr_caps(
    _context: *mut ibv_context,
    _caps: *mut c_void,
    _size: usize,
) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) extern "C" fn ibv_create_comp_cntr(
    _context: *mut ibv_context,
    _attr: *mut c_void,
) -> *mut c_void {
    pointer_of("ibv_create_comp_cntr", unsupported())
}

pub(super) extern "C" fn ibv_destroy_comp_cntr(_counter: *mut c_void) -> c_int {
    errno_of("ibv_destroy_comp_cntr", unsupported())
}

pub(super) extern "C" fn ibv_set_comp_cntr(_counter: *mut c_void, _value: u64) -> c_int {
    errno_of("ibv_set_comp_cntr", unsupported())
}

pub(super) extern "C" fn ibv_set_err_comp_cntr(_counter: *mut c_void, _value: u64) -> c_int {
    errno_of("ibv_set_err_comp_cntr", unsupported())
}

pub(super) extern "C" fn ibv_inc_comp_cntr(_counter: *mut c_void, _amount: u64) -> c_int {
    errno_of("ibv_inc_comp_cntr", unsupported())
}

pub(super) extern "C" fn ibv_inc_err_comp_cntr(_counter: *mut c_void, _amount: u64) -> c_int {
    errno_of("ibv_inc_err_comp_cntr", unsupported())
}

pub(super) extern "C" fn ibv_read_comp_cntr(_counter: *mut c_void, _value: *mut u64) -> c_int {
    errno_of("ibv_read_comp_cntr", unsupported())
}

pub(super) extern "C" fn ibv_read_err_comp_cntr(_counter: *mut c_void, _value: *mut u64) -> c_int {
    errno_of("ibv_read_err_comp_cntr", unsupported())
}

pub(super) extern "C" fn ibv_qp_attach_comp_cntr(
    _qp: *mut ibv_qp,
    _counter: *mut c_void,
    _attr: *mut c_void,
) -> c_int {
    errno_of("ibv_qp_attach_comp_cntr", unsupported())
}
