//! `rdma_getaddrinfo`: resolves names and services to addresses.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use rxe_verbs::QpType;

use super::abi::{RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA, rdma_addrinfo};
use crate::ffi::set_errno;

const PS_TCP: c_int = 0x0106;
const PS_UDP: c_int = 0x0111;

/// The state of a name resolution with an event.
#[derive(Default)]
pub(super) enum Resolving {
    /// No name has been resolved, or the program has fetched the result.
    #[default]
    No,
    /// The result, which the program has not fetched yet.
    Done(*mut rdma_addrinfo),
}

impl Drop for Resolving {
    fn drop(&mut self) {
        if let Self::Done(info) = *self {
            // SAFETY: from rdma_getaddrinfo, and no other code has it.
            unsafe { rdma_freeaddrinfo(info) };
        }
    }
}

/// Copies an address to memory that this library allocates.
///
/// # Safety
/// There are `len` bytes at `address`.
unsafe fn copy(address: *const libc::sockaddr, len: libc::socklen_t) -> *mut libc::sockaddr {
    if address.is_null() || len == 0 {
        return ptr::null_mut();
    }
    let size = usize::try_from(len).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe {
        let to: *mut u8 = libc::malloc(size.max(size_of::<libc::sockaddr_storage>())).cast();
        if !to.is_null() {
            ptr::copy_nonoverlapping(address.cast(), to, size);
        }
        to.cast()
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's structure, or null.
    let hints = unsafe { hints.as_ref() };
    let flags = hints.map_or(0, |h| h.ai_flags);
    if flags & RAI_SA != 0 {
        // The program wants to ask a subnet administrator, which Ethernet does not have.
        set_errno(libc::EOPNOTSUPP);
        return -1;
    }
    if node.is_null() && service.is_null() && hints.is_none() {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: all zeros is an empty hint.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    if flags & RAI_PASSIVE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    wanted.ai_family = hints.map_or(0, |h| h.ai_family);
    wanted.ai_socktype = libc::SOCK_STREAM;
    // SAFETY: all zeros is an empty result.
    let mut info: rdma_addrinfo = unsafe { std::mem::zeroed() };
    info.ai_flags = flags;
    (info.ai_qp_type, info.ai_port_space) = kind(hints);
    if !node.is_null() || !service.is_null() {
        let mut found: *mut libc::addrinfo = ptr::null_mut();
        rxe_sys::may_block("asking for an address");
        // SAFETY: C strings of the caller or null, and our own structures.
        let code = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut found) };
        if code != 0 {
            set_errno(if code == libc::EAI_SYSTEM { libc::EIO } else { libc::ENODEV });
            return code;
        }
        // SAFETY: the C library's answer has at least one entry.
        unsafe {
            let first = &*found;
            info.ai_family = first.ai_family;
            let address = copy(first.ai_addr, first.ai_addrlen);
            if flags & RAI_PASSIVE != 0 {
                (info.ai_src_addr, info.ai_src_len) = (address, first.ai_addrlen);
            } else {
                (info.ai_dst_addr, info.ai_dst_len) = (address, first.ai_addrlen);
            }
            libc::freeaddrinfo(found);
        }
    }
    if let Some(hints) = hints {
        // Without a name, the program asks only for the addresses in its hints.
        if node.is_null() && service.is_null() {
            info.ai_family = hints.ai_family;
            // SAFETY: the caller's address.
            info.ai_dst_addr = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) };
            info.ai_dst_len = hints.ai_dst_len;
        }
        if info.ai_src_len == 0 {
            // SAFETY: the caller's address.
            info.ai_src_addr = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) };
            info.ai_src_len = hints.ai_src_len;
        }
    }
    // SAFETY: memory of its own, freed by rdma_freeaddrinfo, and the caller's variable.
    unsafe {
        let to: *mut rdma_addrinfo = libc::malloc(size_of::<rdma_addrinfo>()).cast();
        if to.is_null() {
            set_errno(libc::ENOMEM);
            return -1;
        }
        to.write(info);
        *result = to;
    }
    0
}

/// Returns the queue pair type and the port space.
/// If the program names only one of them, the other follows from it.
fn kind(hints: Option<&rdma_addrinfo>) -> (c_int, c_int) {
    let (qp_type, space) = hints.map_or((0, 0), |h| (h.ai_qp_type, h.ai_port_space));
    let ud = c_int::try_from(QpType::Ud as c_uint).unwrap_or(0);
    let rc = c_int::try_from(QpType::Rc as c_uint).unwrap_or(0);
    match (qp_type, space) {
        (0, PS_UDP) => (ud, PS_UDP),
        (0, 0) => (rc, PS_TCP),
        (0, space) => (rc, space),
        (qp_type, 0) if qp_type == ud => (ud, PS_UDP),
        (qp_type, 0) => (qp_type, PS_TCP),
        both => both,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let mut info = info;
    while !info.is_null() {
        // SAFETY: from rdma_getaddrinfo, each part by malloc or null.
        unsafe {
            let next = (*info).ai_next;
            for part in [(*info).ai_src_addr.cast(), (*info).ai_dst_addr.cast()] {
                libc::free(part);
            }
            libc::free((*info).ai_route);
            libc::free((*info).ai_connect);
            libc::free((*info).ai_src_canonname.cast());
            libc::free((*info).ai_dst_canonname.cast());
            libc::free(info.cast());
            info = next;
        }
    }
}
