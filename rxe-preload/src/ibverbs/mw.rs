//! Memory windows. IBTA 10.6.7, 11.2.8.11.

use std::ffi::{c_int, c_uint};

use rxe_core::mem::{Binding, WindowType};
use rxe_verbs::{Access, Key, Payload, SendFlags, SendOp, SendRequest, SgeList};

use super::abi::{ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use super::objects::{Context, Mw, Pd, Qp};
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, pointer_of};

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: a protection domain, whose context is open.
    let (context, owner) = unsafe { ((*pd).context, Pd::known(pd)) };
    let make = || -> Outcome<*mut ibv_mw> {
        may_fail("ibv_alloc_mw")?;
        let owner = owner?;
        // SAFETY: as above.
        unsafe { Context::of(context) }.check()?;
        let window_type = match kind {
            1 => WindowType::Type1,
            2 => WindowType::Type2,
            _ => return Err(Failure::new(libc::EINVAL, format!("type {kind}: 1 or 2"))),
        };
        let window = owner.domain.create_window(window_type)?;
        Ok(Mw::into_ptr(context, pd, kind, window))
    };
    pointer_of("ibv_alloc_mw", make())
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: a window.
    let this = match may_fail("ibv_dealloc_mw").and_then(|()| unsafe { Mw::known(mw) }) {
        Ok(this) => this,
        Err(failure) => return errno_of("ibv_dealloc_mw", Err(failure)),
    };
    // SAFETY: its context is open.
    let owner = unsafe { Context::of(this.verbs.context) };
    if owner.is_own() {
        // SAFETY: from `into_ptr`; the program gives it up.
        unsafe { owner.alive.free(mw.cast::<Mw>()) };
    }
    0
}

/// Binds a window of type 1 and advances its key.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: a queue pair, a window and the caller's structure.
    let (this, rkey, bind) = unsafe { (Qp::of(qp), (*mw).rkey, &*bind) };
    let new_key = rkey & !0xff | rkey.wrapping_add(1) & 0xff;
    // SAFETY: as above, and the queue pair's context is open.
    let own = unsafe { Context::of((*qp).context) }.check();
    // SAFETY: as above.
    let op = own.and_then(|()| unsafe { operation(mw, new_key, &bind.bind_info) });
    let outcome = op.and_then(|op| {
        let mut request = SendRequest::new(bind.wr_id, op, Payload::Sges(SgeList::new()));
        request.flags = SendFlags::from_bits_truncate(bind.send_flags);
        this.pair.post_send([request]).map_err(|e| e.error)?;
        // SAFETY: the header's own field; the program does not use it meanwhile.
        unsafe { (*mw).rkey = new_key };
        Ok(())
    });
    errno_of("ibv_bind_mw", outcome)
}

/// Returns the operation that binds a window to a range, with a new key.
/// Length 0 unbinds the window.
///
/// # Safety
/// `mw` is a window, and the region that `info` names exists.
pub(super) unsafe fn operation(
    mw: *mut ibv_mw,
    new_key: u32,
    info: &ibv_mw_bind_info,
) -> Outcome<SendOp> {
    let mr: *mut ibv_mr = info.mr;
    let region = if mr.is_null() {
        if info.length > 0 {
            return Err(Failure::new(libc::EINVAL, "bind_info.mr: the region is missing"));
        }
        Key::new(0)
    } else {
        // SAFETY: a region.
        Key::new(unsafe { (*mr).lkey })
    };
    let access = Access::from_bits(info.mw_access_flags).ok_or_else(|| {
        let why = format!("mw_access_flags {:#x}: there are no such flags", info.mw_access_flags);
        Failure::new(libc::EINVAL, why)
    })?;
    // SAFETY: a window.
    let window = Key::new(unsafe { (*mw).rkey });
    let [new_key, ..] = new_key.to_le_bytes();
    let binding = Binding { region, addr: info.addr, length: info.length, access };
    Ok(SendOp::BindWindow { window, new_key, binding })
}
