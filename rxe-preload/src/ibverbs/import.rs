//! Importing a device and its objects: `ibv_import_device` and the calls that belong to it.
//! The IBTA specification does not define them.
//!
//! With a kernel driver the objects are in the kernel, so another process that has received the
//! descriptor can use them too. Here a device is in the memory of its process. So only the process
//! that has opened a device can import it; the imported context is the original one, with one more
//! user.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use parking_lot::Mutex;
use rxe_sys::{PerProcess, TokenFd};

use super::abi::{ibv_context, ibv_dm, ibv_mr, ibv_pd};
use super::objects::{Context, Dm, Importable, Mr, Pd};
use super::of_host;
use crate::ffi::{Failure, Outcome, pointer_of};

/// The contexts that are open in this process.
static OPEN: PerProcess<Mutex<Vec<Opened>>> = PerProcess::new();

struct Opened {
    context: *mut ibv_context,
    /// The descriptor that was passed to each import.
    imports: Vec<RawFd>,
}

// SAFETY: the pointer is only compared, or followed while the context is in the list and so open.
unsafe impl Send for Opened {}

/// Records that a context was opened.
pub(super) fn opened(context: *mut ibv_context) {
    OPEN.get().lock().push(Opened { context, imports: Vec::new() });
}

/// Records that a user closes a context. Returns whether it was the last user.
pub(super) fn closed(context: *mut ibv_context) -> bool {
    let mut open = OPEN.get().lock();
    let Some(at) = open.iter().position(|opened| opened.context == context) else { return true };
    let Some(fd) = open[at].imports.pop() else {
        open.swap_remove(at);
        return true;
    };
    // SAFETY: the contexts in the list are open.
    let own = unsafe { Context::of(context) }.cmd_fd();
    if fd != own.as_raw_fd() && is(own, fd) {
        // SAFETY: the program gave the descriptor to `ibv_import_device`, and it still is the same
        // file.
        unsafe { libc::close(fd) };
    }
    false
}

fn is(own: &TokenFd, fd: RawFd) -> bool {
    // SAFETY: used for this call only. If the number is closed, or another thread closes it, the
    // kernel reports that.
    fd >= 0 && own.is(unsafe { BorrowedFd::borrow_raw(fd) })
}

pub(super) extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    if let Some(context) = import_own(cmd_fd) {
        return context;
    }
    if let Some(context) = of_host::import_device(cmd_fd) {
        return context;
    }
    let why = format!(
        "descriptor {cmd_fd} is not the cmd_fd of a device that this process has opened. A device of rxe \
         is in the memory of its process and cannot be shared with another: open it (ibv_open_device) in \
         each process"
    );
    pointer_of("ibv_import_device", Err(Failure::new(libc::EOPNOTSUPP, why)))
}

/// Returns the context with this descriptor, if it is ours.
fn import_own(cmd_fd: c_int) -> Option<*mut ibv_context> {
    let mut open = OPEN.get().lock();
    let opened = open.iter_mut().find(|opened| {
        // SAFETY: the contexts in the list are open.
        is(unsafe { Context::of(opened.context) }.cmd_fd(), cmd_fd)
    })?;
    opened.imports.push(cmd_fd);
    Some(opened.context)
}

/// Adds a user to an object of a context and returns the object.
/// # Safety
/// `context` is null or open.
unsafe fn import(
    context: *mut ibv_context,
    handle: u32,
    kind: Importable,
    what: &str,
) -> Outcome<*mut c_void> {
    if context.is_null() {
        return Err(Failure::null("the context"));
    }
    // SAFETY: the caller's promise.
    let context = unsafe { Context::of(context) };
    context.check()?;
    context.imports.import(handle, kind).ok_or_else(|| {
        Failure::new(libc::ENOENT, format!("no {what} of this context has the handle {handle}"))
    })
}

pub(super) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_pd {
    // SAFETY: an open context.
    let found = unsafe { import(context, handle, Importable::Pd, "protection domain") };
    pointer_of("ibv_import_pd", found.map(|object| object.cast()))
}

pub(super) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    let import = || {
        if pd.is_null() {
            return Err(Failure::null("the protection domain"));
        }
        // SAFETY: a protection domain, whose context is open.
        unsafe { import((*pd).context, handle, Importable::Mr, "memory region") }
    };
    pointer_of("ibv_import_mr", import().map(|object| object.cast()))
}

pub(super) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_dm {
    // SAFETY: an open context.
    let found = unsafe { import(context, handle, Importable::Dm, "device memory") };
    pointer_of("ibv_import_dm", found.map(|object| object.cast()))
}

pub(super) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: a protection domain, whose context is open.
    unsafe {
        if left((*pd).context, (*pd).handle) {
            Context::of((*pd).context).alive.free(pd.cast::<Pd>());
        }
    }
}

pub(super) unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: a memory region, whose context is open.
    unsafe {
        if left((*mr).context, (*mr).handle) {
            Context::of((*mr).context).alive.free(mr.cast::<Mr>());
        }
    }
}

pub(super) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: device memory, whose context is open.
    unsafe {
        if left((*dm).context, (*dm).handle) {
            Context::of((*dm).context).alive.free(dm.cast::<Dm>());
        }
    }
}

/// Records that a user has unimported an object. Returns whether the object must be freed.
///
/// # Safety
/// `context` is open.
unsafe fn left(context: *mut ibv_context, handle: u32) -> bool {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::of(context) };
    context.is_own() && context.imports.unimported(handle)
}
