//! Memory regions of DMA buffers. The IBTA specification does not define them.

use std::ffi::{c_int, c_uint};
use std::ptr::{NonNull, without_provenance_mut};

use rxe_verbs::Access;

use super::abi::{ibv_mr, ibv_pd};
use super::mapping::Mapping;
use super::mr;
use super::objects::{Context, Pd};
use crate::fault_guard;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, pointer_of};

/// The access flags that rdma-core documents for these regions: LOCAL_WRITE, the rights of peers,
/// RELAXED_ORDERING.
const FLAGS: c_uint = 0xf | 1 << 20;

pub(super) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's.
    let made = unsafe { register(pd, offset, length, iova, fd, access.cast_unsigned()) };
    pointer_of("ibv_reg_dmabuf_mr", made)
}

/// Registers a DMA buffer as a memory region.
/// # Safety
/// `pd` is null or a protection domain.
pub(super) unsafe fn register(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    flags: c_uint,
) -> Outcome<*mut ibv_mr> {
    if pd.is_null() {
        return Err(Failure::null("the protection domain"));
    }
    may_fail("ibv_reg_mr")?;
    // SAFETY: a protection domain, and its context is open.
    let owner = unsafe {
        Context::of((*pd).context).check()?;
        Pd::known(pd)?
    };
    if flags & !FLAGS != 0 {
        let why = format!(
            "access flags {flags:#x}: DMA buffers can have IBV_ACCESS_LOCAL_WRITE, REMOTE_WRITE, \
             REMOTE_READ, REMOTE_ATOMIC and RELAXED_ORDERING"
        );
        return Err(Failure::new(libc::EINVAL, why));
    }
    let access = mr::access(flags)?;
    let page = rustix::param::page_size() as u64;
    if iova % page != offset % page {
        let why = format!(
            "iova {iova:#x} and offset {offset:#x}: both must be at the same place of a page"
        );
        return Err(Failure::new(libc::EINVAL, why));
    }
    let write =
        access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let mapping = Mapping::of_dma_buf(fd, offset, length, write)?;
    // The program may have installed a signal handler since the device was opened.
    fault_guard::install();
    let first = NonNull::new(mapping.addr().cast()).ok_or_else(|| Failure::plain(libc::ENOMEM))?;
    // SAFETY: the mapping stays until the region is deregistered, and no Rust reference to its
    // bytes exists. The faults with which a driver may report that the memory has moved away are
    // handled.
    let region = unsafe { owner.domain.register_raw(first, length, iova, access) }?;
    // As in rdma-core, the region's address is the offset.
    let addr = without_provenance_mut(usize::try_from(offset).unwrap_or(usize::MAX));
    Ok(mr::into_ptr(pd, addr, length, region, Some(mapping)))
}
