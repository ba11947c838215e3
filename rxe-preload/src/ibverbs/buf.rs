//! Buffers that the library allocates, and registration with an attribute structure.
//! Both are of rdma-core 61 and later.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::abi::{ibv_mr, ibv_pd};
use super::dmabuf;
use super::mr::register;
use super::objects::Context;
use super::owner::Owned;
use crate::ffi::{Failure, Outcome, pointer_of, set_errno};

/// The structure `ibv_mr_init_attr`.
/// Only fields that `comp_mask` names may be read, because others may be missing.
#[repr(C)]
pub(super) struct ibv_mr_init_attr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    buf: *mut Buf,
}

const IOVA: u64 = 1;
const ADDR: u64 = 1 << 1;
const FD: u64 = 1 << 2;
const FD_OFFSET: u64 = 1 << 3;
const DMAH: u64 = 1 << 4;
const BUF: u64 = 1 << 5;

/// A buffer. It is opaque to programs.
#[repr(C)]
pub(super) struct Buf {
    pd: *mut ibv_pd,
    addr: *mut c_void,
    size: usize,
}

impl Owned for *mut Buf {
    unsafe fn of_host(self) -> bool {
        // SAFETY: the caller's promise. The system library's buffers also begin with the protection
        // domain, which exists as long as the buffer.
        !self.is_null() && unsafe { (*self).pd.of_host() }
    }
}

/// # Safety
/// `attr` has the fields that its `comp_mask` names.
unsafe fn register_ex(pd: *mut ibv_pd, attr: *const ibv_mr_init_attr) -> Outcome<*mut ibv_mr> {
    let wrong = |why: &str| Err(Failure::new(libc::EINVAL, why));
    // SAFETY: these fields are always present.
    let (length, access, mask) = unsafe { ((*attr).length, (*attr).access, (*attr).comp_mask) };
    if mask & DMAH != 0 || mask & !(IOVA | ADDR | FD | FD_OFFSET | BUF) != 0 {
        let why =
            format!("comp_mask {mask:#x}: DMA handles (IBV_REG_MR_MASK_DMAH) are not supported");
        return Err(Failure::new(libc::EOPNOTSUPP, why));
    }
    if mask & (FD | FD_OFFSET) != 0 {
        if mask != FD | FD_OFFSET | IOVA {
            return wrong(
                "a DMA buffer needs IBV_REG_MR_MASK_FD, _FD_OFFSET and _IOVA, and no other bit of comp_mask",
            );
        }
        // SAFETY: named by the mask; and the caller's promise.
        return unsafe {
            let (offset, iova, fd) = ((*attr).fd_offset, (*attr).iova, (*attr).fd);
            dmabuf::register(pd, offset, length, iova, fd, access.cast_unsigned())
        };
    }
    if mask & ADDR == 0 {
        return wrong("comp_mask lacks IBV_REG_MR_MASK_ADDR: memory is registered by its address");
    }
    // SAFETY: named by the mask.
    let addr = unsafe { (*attr).addr };
    if mask & BUF != 0 {
        // SAFETY: named by the mask, and from `ibv_alloc_buf`.
        let buf = unsafe { &*(*attr).buf };
        if buf.pd != pd {
            return wrong("the buffer was allocated in another protection domain");
        }
        let offset = addr.addr().checked_sub(buf.addr.addr());
        let fits = |offset: &usize| *offset <= buf.size && length <= buf.size - offset;
        if !offset.as_ref().is_some_and(fits) {
            return wrong("the range reaches outside the buffer");
        }
    }
    let iova = if mask & IOVA == 0 {
        addr.addr() as u64
    } else {
        // SAFETY: named by the mask.
        unsafe { (*attr).iova }
    };
    // SAFETY: the caller's promise.
    unsafe { register(pd, addr, length, iova, access.cast_unsigned()) }
}

pub(super) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    pointer_of("ibv_reg_mr_ex", unsafe { register_ex(pd, attr) })
}

pub(super) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask: ADDR | BUF,
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: ptr::null_mut(),
        buf,
    };
    // SAFETY: the caller's promise, and our own structure.
    pointer_of("ibv_reg_buf_mr", unsafe { register_ex(pd, &raw const attr) })
}

/// Allocates a page-aligned buffer and returns its memory. `buf` receives the handle to free it.
pub(super) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut Buf,
) -> *mut c_void {
    let alloc = || -> Outcome<*mut c_void> {
        // SAFETY: a protection domain, whose context is open.
        unsafe { Context::of((*pd).context) }.check()?;
        let mut addr = ptr::null_mut();
        // SAFETY: our own variable.
        let errno =
            unsafe { libc::posix_memalign(&raw mut addr, rustix::param::page_size(), size) };
        if errno != 0 {
            return Err(Failure::plain(errno));
        }
        // SAFETY: the caller's variable.
        unsafe { *buf = Box::into_raw(Box::new(Buf { pd, addr, size })) };
        Ok(addr)
    };
    pointer_of("ibv_alloc_buf", alloc())
}

pub(super) unsafe extern "C" fn ibv_free_buf(buf: *mut Buf) {
    // SAFETY: from `ibv_alloc_buf`; the program gives it up.
    let buf = unsafe { Box::from_raw(buf) };
    // SAFETY: from posix_memalign.
    unsafe { libc::free(buf.addr) };
}

/// Fails with ENODATA, because buffers are ordinary memory and have no descriptor.
pub(super) extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut Buf) -> c_int {
    set_errno(libc::ENODATA);
    -1
}

const _: () = assert!(size_of::<ibv_mr_init_attr>() == 72);
