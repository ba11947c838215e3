//! Opens and closes devices.
//! Defines the tables of functions that the header's inline functions call.

use std::ffi::c_int;
use std::ptr;

use super::abi::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use super::device::{self, DeviceEntry};
use super::objects::{Channel, Context};
use super::{cq, dm, import, mr, mw, pd, post, qp, query, srq, xrcd};
use crate::faults::may_fail;
use crate::ffi::{Failure, errno_of, pointer_of};

fn ops() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_to_dereg: [ptr::null(); 7],
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        _compat_create_cq: ptr::null(),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        _compat_cq_event_to_destroy_srq: [ptr::null(); 7],
        post_srq_recv: Some(post::post_srq_recv),
        _compat_create_to_destroy_qp: [ptr::null(); 4],
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        _compat_create_ah_to_async_event: [ptr::null(); 5],
    }
}

/// Returns the table of functions.
/// A null entry means that the provider lacks the feature: the header's inline functions then fail
/// with EOPNOTSUPP.
fn table(context: ibv_context) -> verbs_context {
    verbs_context {
        query_port: Some(query::query_port),
        advise_mr: Some(mr::advise_mr),
        alloc_null_mr: ptr::null(),
        read_counters: ptr::null(),
        attach_counters_point_flow: ptr::null(),
        create_counters: ptr::null(),
        destroy_counters: ptr::null(),
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        modify_flow_action_esp: ptr::null(),
        destroy_flow_action: ptr::null(),
        create_flow_action_esp: ptr::null(),
        modify_qp_rate_limit: ptr::null(),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: ptr::null(),
        post_srq_ops: ptr::null(),
        destroy_rwq_ind_table: ptr::null(),
        create_rwq_ind_table: ptr::null(),
        destroy_wq: ptr::null(),
        modify_wq: ptr::null(),
        create_wq: ptr::null(),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq::create_cq_ex),
        r#priv: ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        ibv_destroy_flow: ptr::null(),
        abi_placeholder2: ptr::null(),
        ibv_create_flow: ptr::null(),
        abi_placeholder1: ptr::null(),
        open_qp: None,
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrcd::open_xrcd),
        close_xrcd: Some(xrcd::close_xrcd),
        _abi_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context,
    }
}

pub(super) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let opened = if device.is_null() {
        let names = device::names().join(", ");
        let why = format!(
            "device is NULL: no name in the list is the one looked for, or the index is behind its end. \
             The devices here are: {names}"
        );
        Err(Failure::new(libc::ENODEV, why))
    } else {
        // SAFETY: a device from the list.
        let device = unsafe { DeviceEntry::of(device) };
        may_fail("ibv_open_device")
            .and_then(|()| Context::open(device, ops(), table))
            .inspect(|&context| import::opened(context))
    };
    pointer_of("ibv_open_device", opened)
}

pub(super) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: an open context, which the program gives up.
    let this = unsafe { Context::of(context) };
    if !this.is_own() {
        return 0;
    }
    if let Err(failure) = may_fail("ibv_close_device") {
        return errno_of("ibv_close_device", Err(failure));
    }
    if !import::closed(context) {
        return 0;
    }
    // Channels search their queues for events, so the queues are removed from them first.
    for (id, &cq) in &*this.cqs.lock() {
        // SAFETY: the queues in the map exist, and a channel outlives its queues.
        unsafe {
            if !(*cq).channel.is_null() {
                Channel::of((*cq).channel).queues.lock().remove(id);
            }
        }
    }
    // SAFETY: as above; the context is this process's.
    unsafe { Context::close(context) };
    errno_of("ibv_close_device", Ok(()))
}
