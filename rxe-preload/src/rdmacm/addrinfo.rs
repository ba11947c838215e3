//! Name resolution with an event, and events that programs write.
//! Both are of rdma-core 61 and later.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use rxe_verbs::cm::CmEventKind;

use super::abi::{RAI_SA, rdma_addrinfo, rdma_cm_id};
use super::getaddrinfo::{Resolving, rdma_getaddrinfo};
use super::id::Id;
use crate::ffi::{Failure, Outcome, minus_one_of};

/// Resolves the name within this call, as librdmacm does. An event then reports the completion.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let resolve = || -> Outcome {
        // SAFETY: an identifier, and the caller's structure or null.
        let (this, hints) = unsafe { (Id::known(id)?, hints.as_ref()) };
        if hints.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
            let why = "RAI_SA asks a subnet administrator: Ethernet has none";
            return Err(Failure::new(libc::EOPNOTSUPP, why));
        }
        let mut resolving = this.resolving.lock();
        if matches!(*resolving, Resolving::Done(_)) {
            return Err(Failure::new(libc::EBUSY, "fetch the last answer (rdma_query_addrinfo)"));
        }
        let hints = hints.map_or(ptr::null(), ptr::from_ref);
        let mut found = ptr::null_mut();
        // SAFETY: C strings of the caller or null, and our own variable.
        if unsafe { rdma_getaddrinfo(node, service, hints, &raw mut found) } != 0 {
            let errno = std::io::Error::last_os_error().raw_os_error();
            return Err(Failure::plain(errno.unwrap_or(libc::ENODEV)));
        }
        *resolving = Resolving::Done(found);
        drop(resolving);
        this.cm.write_event(CmEventKind::AddrinfoResolved, 0, 0)?;
        this.complete()
    };
    minus_one_of("rdma_resolve_addrinfo", resolve())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let query = || -> Outcome {
        if info.is_null() {
            return Err(Failure::plain(libc::EINVAL));
        }
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        let mut resolving = this.resolving.lock();
        let Resolving::Done(found) = *resolving else {
            return Err(Failure::plain(libc::ENOENT));
        };
        // The program frees the result.
        std::mem::forget(std::mem::take(&mut *resolving));
        // SAFETY: the caller's variable.
        unsafe { *info = found };
        Ok(())
    };
    minus_one_of("rdma_query_addrinfo", query())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: c_uint,
    status: c_int,
    arg: u64,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let write = || -> Outcome {
        if event != CmEventKind::User as c_uint {
            let why = format!("event {event}: programs make RDMA_CM_EVENT_USER only");
            return Err(Failure::new(libc::EINVAL, why));
        }
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        Ok(this.cm.write_event(CmEventKind::User, status, arg)?)
    };
    minus_one_of("rdma_write_cm_event", write())
}
