//! `rdma_create_ep`: creates an identifier from the result of `rdma_getaddrinfo` in one call.

use std::ffi::c_int;
use std::ptr;

use super::abi::{RAI_PASSIVE, rdma_addrinfo, rdma_cm_id};
use super::id::{Id, create, destroy};
use super::qp::{rdma_create_qp, rdma_destroy_srq};
use crate::ffi::{Failure, Outcome, minus_one_of};
use crate::ibverbs::abi::{ibv_pd, ibv_qp_init_attr};

unsafe extern "C" {
    fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int;
    fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        source: *mut libc::sockaddr,
        destination: *mut libc::sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
}

/// The timeout of both resolutions, which the resolving calls ignore.
const TIMEOUT_MS: c_int = 2000;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's structure.
    let info = unsafe { &*info };
    let make = || -> Outcome {
        let ps = info.ai_port_space.cast_unsigned();
        let made =
            create(ptr::null_mut(), ptr::null_mut(), ps, Some(info.ai_qp_type.cast_unsigned()))?;
        // SAFETY: just created; the addresses are the caller's.
        if let Err(failure) = unsafe { set_up(made, info, pd, attr) } {
            // SAFETY: no other code has it.
            unsafe { destroy(made) };
            return Err(failure);
        }
        // SAFETY: the caller's variable.
        unsafe { *id = made };
        Ok(())
    };
    minus_one_of("rdma_create_ep", make())
}

/// Binds the identifier, or resolves the address and the route of its peer.
/// # Safety
/// As [`rdma_create_ep`].
unsafe fn set_up(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Outcome {
    let check = |result: c_int| {
        let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if result == 0 { Ok(()) } else { Err(Failure::plain(errno())) }
    };
    // SAFETY: the caller's promise.
    unsafe {
        if info.ai_flags & RAI_PASSIVE != 0 {
            check(rdma_bind_addr(id, info.ai_src_addr))?;
            if !pd.is_null() {
                (*id).pd = pd;
            }
            if let Some(attr) = attr.as_ref() {
                let attr = ibv_qp_init_attr { qp_type: info.ai_qp_type.cast_unsigned(), ..*attr };
                *Id::of(id).template.lock() = Some(attr);
            }
            return Ok(());
        }
        check(rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, TIMEOUT_MS))?;
        check(rdma_resolve_route(id, TIMEOUT_MS))?;
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = info.ai_qp_type.cast_unsigned();
            check(rdma_create_qp(id, pd, attr))?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier, which the program gives up.
    unsafe {
        if let Ok(this) = Id::known(id) {
            this.destroy_qp();
            rdma_destroy_srq(id);
            destroy(id);
        }
    }
}
