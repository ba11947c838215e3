//! The functions of libibverbs that programs link to: all of them, each once.
//!
//! The object that a function is given decides which library handles the call. With `rxe run
//! --with-host-devices` the object may belong to the host: the call then goes to the system's
//! library ([`host`]), otherwise to the function of the same name in the module that is named here.
//! Functions that a program calls through the tables of a context need no such choice.
//!
//! `[pd]` means that the argument `pd` decides. With `[]` the function is always ours; such
//! functions call the system's library themselves if they concern both kinds of devices.
//!
//! Invariant: when the system's function is called, no value that must be dropped is alive here,
//! because a thread may be cancelled in that function (pthread_cancel).

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use super::abi::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_dm, ibv_ece, ibv_gid, ibv_gid_entry, ibv_grh, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_wc,
};
use super::buf::{Buf, ibv_mr_init_attr};
use super::owner::Owned;
use super::{
    absent, ah, asynchronous, buf, channel, cq, device, dmabuf, import, mr, open, pd, qp, qp_attr,
    query, srq, text,
};
use crate::ffi::{Uncancelled, set_errno};
use crate::host;

/// The value to return if the system's library is too old to have a function.
trait Absent {
    fn absent() -> Self;
}

impl Absent for () {
    fn absent() {}
}

/// An errno, which most functions return.
impl Absent for c_int {
    fn absent() -> Self {
        libc::EOPNOTSUPP
    }
}

impl Absent for c_uint {
    fn absent() -> Self {
        0
    }
}

impl Absent for isize {
    fn absent() -> Self {
        -1
    }
}

impl Absent for u64 {
    fn absent() -> Self {
        0
    }
}

impl<T> Absent for *mut T {
    fn absent() -> Self {
        ptr::null_mut()
    }
}

impl<T> Absent for *const T {
    fn absent() -> Self {
        ptr::null()
    }
}

macro_rules! exports {
    ($($module:ident {
        $([$($of:ident)?] fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*
    })*) => {
    $($(
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some of ours are safe")]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $result)? {
            // SAFETY: an object of this type that exists, or null.
            let of_host = false $(|| host::is_used() && unsafe { $of.of_host() })?;
            if of_host {
                static FUNCTION: host::Function = host::Function::named(concat!(stringify!($name), "\0"));
                type Function = unsafe extern "C-unwind" fn($($type),*) $(-> $result)?;
                let Some(function) = FUNCTION.get() else {
                    set_errno(libc::EOPNOTSUPP);
                    return Absent::absent();
                };
                // SAFETY: the system's function of this name, which has this type.
                let function: Function = unsafe { std::mem::transmute(function) };
                // SAFETY: the caller's arguments, of which the object belongs to that library.
                return unsafe { function($($arg),*) };
            }
            const SLEEPS: bool =
                matches!(stringify!($name).as_bytes(), b"ibv_get_cq_event" | b"ibv_get_async_event");
            let _uncancelled = (!SLEEPS).then(Uncancelled::new);
            // SAFETY: the caller's arguments.
            unsafe { $module::$name($($arg),*) }
        }
    )*)*

        /// Each function, with the name of the argument that decides.
        #[cfg(test)]
        const EXPORTS: &[(&str, &[&str])] =
            &[$($((stringify!($name), &[$(stringify!($of))?])),*),*];
    };
}

exports! {
    device {
        [] fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
        [] fn ibv_free_device_list(list: *mut *mut ibv_device);
        [device] fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        [device] fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
        [device] fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
        [] fn ibv_get_sysfs_path() -> *const c_char;
        [] fn ibv_read_sysfs_file(
            dir: *const c_char, file: *const c_char, buf: *mut c_char, size: usize
        ) -> c_int;
    }
    open {
        [device] fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        [context] fn ibv_close_device(context: *mut ibv_context) -> c_int;
    }
    query {
        [context] fn ibv_query_port_speed(
            context: *mut ibv_context, port: u32, speed: *mut u64
        ) -> c_int;
        [context] fn ibv_query_device(
            context: *mut ibv_context, attr: *mut ibv_device_attr
        ) -> c_int;
        [context] fn ibv_query_port(
            context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr
        ) -> c_int;
        [context] fn ibv_query_gid(
            context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid
        ) -> c_int;
        [context] fn ibv_query_gid_type(
            context: *mut ibv_context, port: u8, index: c_uint, kind: *mut c_uint
        ) -> c_int;
        [context] fn _ibv_query_gid_ex(
            context: *mut ibv_context, port: u32, index: u32, to: *mut ibv_gid_entry, flags: u32,
            size: usize
        ) -> c_int;
        [context] fn _ibv_query_gid_table(
            context: *mut ibv_context, to: *mut ibv_gid_entry, max: usize, flags: u32, size: usize
        ) -> isize;
        [context] fn ibv_query_pkey(
            context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16
        ) -> c_int;
        [context] fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int;
    }
    asynchronous {
        [context] fn ibv_get_async_event(
            context: *mut ibv_context, event: *mut ibv_async_event
        ) -> c_int;
        [event] fn ibv_ack_async_event(event: *mut ibv_async_event);
    }
    pd {
        [context] fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        [pd] fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    }
    mr {
        [pd] fn ibv_reg_mr(
            pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int
        ) -> *mut ibv_mr;
        [pd] fn ibv_reg_mr_iova(
            pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int
        ) -> *mut ibv_mr;
        [pd] fn ibv_reg_mr_iova2(
            pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint
        ) -> *mut ibv_mr;
        [mr] fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        [mr] fn ibv_rereg_mr(
            mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize,
            access: c_int
        ) -> c_int;
        [] fn ibv_fork_init() -> c_int;
        [] fn ibv_is_fork_initialized() -> c_uint;
        [] fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int;
        [] fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int;
    }
    dmabuf {
        [pd] fn ibv_reg_dmabuf_mr(
            pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int
        ) -> *mut ibv_mr;
    }
    buf {
        [pd] fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr;
        [pd] fn ibv_reg_buf_mr(
            pd: *mut ibv_pd, buf: *mut Buf, addr: *mut c_void, length: usize, access: c_int
        ) -> *mut ibv_mr;
        [pd] fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut Buf) -> *mut c_void;
        [buf] fn ibv_free_buf(buf: *mut Buf);
        [buf] fn ibv_export_buf_dmabuf_fd(buf: *mut Buf) -> c_int;
    }
    import {
        [] fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context;
        [context] fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd;
        [pd] fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr;
        [context] fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm;
        [pd] fn ibv_unimport_pd(pd: *mut ibv_pd);
        [mr] fn ibv_unimport_mr(mr: *mut ibv_mr);
        [dm] fn ibv_unimport_dm(dm: *mut ibv_dm);
    }
    channel {
        [context] fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        [channel] fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        [channel] fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void
        ) -> c_int;
        [cq] fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32);
    }
    cq {
        [context] fn ibv_create_cq(
            context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void,
            channel: *mut ibv_comp_channel, comp_vector: c_int
        ) -> *mut ibv_cq;
        [cq] fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        [cq] fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    }
    srq {
        [pd] fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        [srq] fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
        [srq] fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
        [srq] fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    }
    qp {
        [pd] fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        [qp] fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        [qp] fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
        [qp] fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        [qp] fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        [qp] fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
        [qp] fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
        [qp] fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: c_uint, flags: u32) -> c_int;
    }
    qp_attr {
        [qp] fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
        [qp] fn ibv_query_qp(
            qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr
        ) -> c_int;
    }
    ah {
        [pd] fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        [ah] fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
        [context] fn ibv_init_ah_from_wc(
            context: *mut ibv_context, port: u8, wc: *mut ibv_wc, grh: *mut ibv_grh,
            attr: *mut ibv_ah_attr
        ) -> c_int;
        [pd] fn ibv_create_ah_from_wc(
            pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port: u8
        ) -> *mut ibv_ah;
        [context] fn ibv_resolve_eth_l2_from_gid(
            context: *mut ibv_context, attr: *mut ibv_ah_attr, mac: *mut u8, vlan: *mut u16
        ) -> c_int;
    }
    absent {
        [context] fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut c_void) -> *mut c_void;
        [dmah] fn ibv_dealloc_dmah(dmah: *mut c_void) -> c_int;
        [dm] fn ibv_dm_export_dmabuf_fd(dm: *mut c_void) -> c_int;
        [context] fn _ibv_query_comp_cntr_caps(
            context: *mut ibv_context, caps: *mut c_void, size: usize
        ) -> c_int;
        [context] fn ibv_create_comp_cntr(
            context: *mut ibv_context, attr: *mut c_void
        ) -> *mut c_void;
        [counter] fn ibv_destroy_comp_cntr(counter: *mut c_void) -> c_int;
        [counter] fn ibv_set_comp_cntr(counter: *mut c_void, value: u64) -> c_int;
        [counter] fn ibv_set_err_comp_cntr(counter: *mut c_void, value: u64) -> c_int;
        [counter] fn ibv_inc_comp_cntr(counter: *mut c_void, amount: u64) -> c_int;
        [counter] fn ibv_inc_err_comp_cntr(counter: *mut c_void, amount: u64) -> c_int;
        [counter] fn ibv_read_comp_cntr(counter: *mut c_void, value: *mut u64) -> c_int;
        [counter] fn ibv_read_err_comp_cntr(counter: *mut c_void, value: *mut u64) -> c_int;
        [qp] fn ibv_qp_attach_comp_cntr(
            qp: *mut ibv_qp, counter: *mut c_void, attr: *mut c_void
        ) -> c_int;
    }
    text {
        [] fn ibv_wc_status_str(status: c_uint) -> *const c_char;
        [] fn ibv_node_type_str(kind: c_int) -> *const c_char;
        [] fn ibv_port_state_str(state: c_uint) -> *const c_char;
        [] fn ibv_event_type_str(event: c_uint) -> *const c_char;
        [] fn ibv_rate_to_mult(rate: c_uint) -> c_int;
        [] fn mult_to_ibv_rate(mult: c_int) -> c_uint;
        [] fn ibv_rate_to_mbps(rate: c_uint) -> c_int;
        [] fn mbps_to_ibv_rate(mbps: c_int) -> c_uint;
    }
}

#[cfg(test)]
#[path = "exports_tests.rs"]
mod tests;
