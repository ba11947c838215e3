//! Protection, thread and parent domains. IBTA 11.2.1.5.

use std::ffi::c_int;

use super::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use super::objects::{Context, Pd};
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, pointer_of};

pub(super) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    if context.is_null() {
        return pointer_of("ibv_alloc_pd", Err(Failure::null("the context (ibv_open_device)")));
    }
    // SAFETY: an open context.
    let owner = unsafe { Context::of(context) };
    let make = || -> Outcome<*mut ibv_pd> {
        may_fail("ibv_alloc_pd")?;
        let domain = owner.device()?.create_pd()?;
        Ok(Pd::into_ptr(context, domain, None))
    };
    pointer_of("ibv_alloc_pd", make())
}

pub(super) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a domain, which the program gives up.
    let this = match may_fail("ibv_dealloc_pd").and_then(|()| unsafe { Pd::known(pd) }) {
        Ok(this) => this,
        Err(failure) => return errno_of("ibv_dealloc_pd", Err(failure)),
    };
    // SAFETY: its context is still open.
    if !unsafe { Context::of(this.verbs.context) }.is_own() {
        return 0;
    }
    if this.parent.is_none() && this.domain.users() > 0 {
        let used_by = this.domain.used_by();
        let why = if used_by.is_empty() {
            "a parent domain made from the protection domain still exists: deallocate it first"
                .into()
        } else {
            format!("{used_by} made in the protection domain still exist: destroy these first")
        };
        return errno_of("ibv_dealloc_pd", Err(Failure::new(libc::EBUSY, why)));
    }
    // SAFETY: its context is open.
    if unsafe { Context::of(this.verbs.context) }.imports.destroyed(this.verbs.handle) {
        // SAFETY: from `into_ptr`, and no other user has it imported.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
    }
    0
}

/// Makes a thread domain. It promises that only one thread uses its objects; this library makes no use
/// of that.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    _attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    Box::into_raw(Box::new(ibv_td { context }))
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: from `alloc_td`.
    drop(unsafe { Box::from_raw(td) });
    0
}

/// Makes a parent domain. Its custom allocators (`comp_mask`) are for memory shared with hardware.
/// There is none here, so they are never called.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the caller's structure.
    let parent = unsafe { (*attr).pd };
    if parent.is_null() {
        return pointer_of("ibv_alloc_parent_domain", Err(Failure::plain(libc::EINVAL)));
    }
    // SAFETY: an open context.
    let own = unsafe { Context::of(context) }.check();
    // SAFETY: a protection domain.
    let made = own.and_then(|()| unsafe { Pd::known(parent) });
    let made = made.map(|of| Pd::into_ptr(context, of.domain.clone(), Some(parent)));
    pointer_of("ibv_alloc_parent_domain", made)
}
