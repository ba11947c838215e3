//! Protection, thread and parent domains. IBTA 11.2.1.5.

use std::ffi::c_int;

use rxe_verbs::ProtectionDomain;

use super::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use super::objects::{Context, Parent, Pd, Td};
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, check_bits, errno_of, pointer_of};

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
    let owner = unsafe { Context::of(this.verbs.context) };
    if !owner.is_own() {
        return 0;
    }
    if this.parent.is_some() && is_used(owner, pd) {
        let why = "queue pairs or shared receive queues made with the parent domain still exist: \
                   destroy these first";
        return errno_of("ibv_dealloc_pd", Err(Failure::new(libc::EBUSY, why)));
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
    if owner.imports.destroyed(this.verbs.handle) {
        // SAFETY: from `into_ptr`, and no other user has it imported.
        unsafe { owner.alive.free(pd.cast::<Pd>()) };
    }
    0
}

/// Returns whether a queue pair or an SRQ was created with this very handle.
/// Another handle to the same domain does not count.
fn is_used(owner: &Context, pd: *mut ibv_pd) -> bool {
    // SAFETY: the objects in the maps exist.
    owner.qps.lock().values().any(|&qp| unsafe { (*qp).pd } == pd)
        // SAFETY: as above.
        || owner.srqs.lock().values().any(|&srq| unsafe { (*srq).pd } == pd)
}

/// Creates a thread domain.
/// The program promises that only one thread uses its objects; this library gains nothing from that
/// promise.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's structure.
    let known = check_bits("comp_mask", unsafe { (*attr).comp_mask }, 0, libc::EINVAL);
    pointer_of("ibv_alloc_td", known.map(|()| Td::into_ptr(context)))
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: a domain, which the program gives up.
    let users = unsafe { Td::of(td) }.users();
    if users > 0 {
        let why =
            format!("parent domains ({users}) made with it still exist: deallocate these first");
        return errno_of("ibv_dealloc_td", Err(Failure::new(libc::EBUSY, why)));
    }
    // SAFETY: from `alloc_td`.
    drop(unsafe { Box::from_raw(td.cast::<Td>()) });
    0
}

/// Creates a parent domain.
/// Its custom allocators (`comp_mask`) are for memory that hardware shares, so they are never
/// called here.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let _uncancelled = crate::ffi::Uncancelled::new();
    /// The bits for allocators, their context, and unprotected memory in a confidential guest.
    const KNOWN: u32 = 0b111;
    // SAFETY: the caller's structure.
    let attr = unsafe { &*attr };
    let make = || -> Outcome<*mut ibv_pd> {
        if attr.pd.is_null() {
            return Err(Failure::null("the protection domain"));
        }
        check_bits("comp_mask", attr.comp_mask, KNOWN, libc::EINVAL)?;
        // SAFETY: an open context.
        unsafe { Context::of(context) }.check()?;
        // SAFETY: a thread domain, or null.
        let td = (!attr.td.is_null()).then(|| unsafe { Td::of(attr.td) }.used());
        // SAFETY: a protection domain.
        let domain = ProtectionDomain::clone(&unsafe { Pd::known(attr.pd) }?.domain);
        Ok(Pd::into_ptr(context, domain, Some(Parent { _td: td })))
    };
    pointer_of("ibv_alloc_parent_domain", make())
}
