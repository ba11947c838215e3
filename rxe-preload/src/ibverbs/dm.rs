//! Device memory. The IBTA specification does not define it.

use std::ffi::{c_int, c_uint, c_void};
use std::{ptr, slice};

use super::abi::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use super::mr;
use super::objects::{Context, Dm, Pd};
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, pointer_of};

pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an open context, and the caller's structure.
    let (owner, attr) = unsafe { (Context::of(context), &*attr) };
    let make = || -> Outcome<*mut ibv_dm> {
        may_fail("ibv_alloc_dm")?;
        if attr.comp_mask != 0 {
            let why = format!("comp_mask {:#x}: there are no further fields", attr.comp_mask);
            return Err(Failure::new(libc::EINVAL, why));
        }
        let memory = owner.device()?.alloc_dm(attr.length, attr.log_align_req)?;
        Ok(Dm::into_ptr(context, memory, memcpy_to_dm, memcpy_from_dm))
    };
    pointer_of("ibv_alloc_dm", make())
}

pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    const VERB: &str = "ibv_free_dm";
    // SAFETY: device memory, which the program gives up.
    let this = match unsafe { Dm::known(dm) } {
        Ok(this) => this,
        Err(failure) => return errno_of(VERB, Err(failure)),
    };
    // SAFETY: its context is open.
    let owner = unsafe { Context::of(this.verbs.context) };
    if owner.is_own() {
        let regions = this.memory.users();
        if regions > 0 {
            let why =
                format!("{regions} memory regions made of it still exist: deregister them first");
            return errno_of(VERB, Err(Failure::new(libc::EBUSY, why)));
        }
        if owner.imports.destroyed(this.verbs.handle) {
            // SAFETY: from `into_ptr`, and no other user has it imported.
            unsafe { owner.alive.free(dm.cast::<Dm>()) };
        }
    }
    0
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: device memory of the program.
    let this = unsafe { Dm::of(dm) };
    let copy = || -> Outcome {
        let at = check(this, offset, length)?;
        if length > 0 {
            // SAFETY: the caller's bytes.
            this.memory.write_at(at, unsafe { slice::from_raw_parts(from.cast(), length) })?;
        }
        Ok(())
    };
    errno_of("ibv_memcpy_to_dm", copy())
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: device memory of the program.
    let this = unsafe { Dm::of(dm) };
    let copy = || -> Outcome {
        let at = check(this, offset, length)?;
        if length > 0 {
            // SAFETY: the caller's buffer, which nothing else uses meanwhile. It is written before
            // it is read as a slice.
            let out = unsafe {
                ptr::write_bytes(to.cast::<u8>(), 0, length);
                slice::from_raw_parts_mut(to.cast(), length)
            };
            this.memory.read_at(at, out)?;
        }
        Ok(())
    };
    errno_of("ibv_memcpy_from_dm", copy())
}

/// Returns the offset if the range is inside the memory.
/// Like adapters, refuses to copy parts of words.
fn check(dm: &Dm, offset: u64, length: usize) -> Outcome<usize> {
    // SAFETY: its context is open.
    unsafe { Context::of(dm.verbs.context) }.check()?;
    let len = dm.memory.size();
    let at = usize::try_from(offset).unwrap_or(usize::MAX);
    if at.checked_add(length).is_none_or(|end| end > len) {
        let why = format!("{length} bytes at {offset} of device memory that has {len}");
        return Err(Failure::new(libc::EFAULT, why));
    }
    if !at.is_multiple_of(4) || !length.is_multiple_of(4) {
        let why =
            format!("{length} bytes at {offset} of device memory: both must be multiples of 4");
        return Err(Failure::new(libc::EINVAL, why));
    }
    Ok(at)
}

pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's.
    pointer_of("ibv_reg_dm_mr", unsafe { register(pd, dm, offset, length, access) })
}

unsafe fn register(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> Outcome<*mut ibv_mr> {
    const ZERO_BASED: c_uint = 1 << 5;
    may_fail("ibv_reg_mr")?;
    // SAFETY: a protection domain and device memory; their context is open.
    let (owner, this) = unsafe {
        Context::of((*pd).context).check()?;
        (Pd::known(pd)?, Dm::known(dm)?)
    };
    if flags & ZERO_BASED == 0 {
        let why = "device memory has no addresses: add IBV_ACCESS_ZERO_BASED";
        return Err(Failure::new(libc::EINVAL, why));
    }
    let access = mr::access(flags)?;
    let at = usize::try_from(offset).unwrap_or(usize::MAX);
    let region = owner.domain.register_dm(&this.memory, at, length, access)?;
    Ok(mr::into_ptr(pd, ptr::null_mut(), length, region, None))
}
