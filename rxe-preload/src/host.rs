//! The system's own libibverbs, for the host's devices beside ours (`rxe run --with-host-devices`).
//!
//! It is loaded by its path, because its name leads to this library's versioned one. Both are in one
//! namespace of the loader, so that errno, cancellation and the program's allocator are the same for both.
//! It and its providers therefore call functions of this library where they mean their own: those of
//! libibverbs come back to it ([`Function`]), and those for files and sockets ask
//! [`is_looking`] whether it is the one that calls.
//!
//! Invariant: without the option nothing is loaded, and [`is_used`] is a look at one variable.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::config::CONFIG;
use crate::explain;

/// Where systems have it.
const DIRECTORIES: [&str; 4] = [
    if cfg!(target_arch = "x86_64") { "/lib/x86_64-linux-gnu" } else { "/lib/aarch64-linux-gnu" },
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
];

/// The handle of the library, from dlopen. It is never closed.
static LIBRARY: OnceLock<Option<usize>> = OnceLock::new();
/// Whether it is loaded: only then an object can be its.
static USED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the program sees the host's devices too.
pub(crate) fn is_wanted() -> bool {
    CONFIG.host_devices
}

/// Whether an object may be the host's.
pub(crate) fn is_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Makes [`is_used`] true, without a library.
#[cfg(test)]
pub(crate) fn pretend_used() {
    USED.store(true, Ordering::Relaxed);
}

/// Loads the library, if the host's devices are wanted. Returns whether it is there.
pub(crate) fn load() -> bool {
    is_wanted() && library().is_some()
}

fn library() -> Option<usize> {
    *LIBRARY.get_or_init(|| {
        let found = DIRECTORIES.into_iter().find_map(|directory| {
            let path = CString::new(format!("{directory}/libibverbs.so.1")).ok()?;
            // SAFETY: a C string. The library's constructors are run, as when a program is linked with it.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            (!handle.is_null()).then(|| handle.expose_provenance())
        });
        USED.store(found.is_some(), Ordering::Relaxed);
        if found.is_none() {
            let why = format!(
                "the host's devices are not shown, because there is no libibverbs.so.1 in {}: install \
                 rdma-core (Debian: libibverbs1 and ibverbs-providers)",
                DIRECTORIES.join(", ")
            );
            explain::once("--with-host-devices", &why);
        }
        found
    })
}

/// Calls `f`, in which the library looks for the host's devices: what it calls here leads to the system.
pub(crate) fn looking<R>(f: impl FnOnce() -> R) -> R {
    let before = LOOKING.replace(true);
    let result = f();
    LOOKING.set(before);
    result
}

/// Whether this call comes from within [`looking`].
pub(crate) fn is_looking() -> bool {
    is_used() && LOOKING.get()
}

/// One function of the library, looked up when it is first called.
pub(crate) struct Function {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// That of this name, which ends with a NUL.
    pub(crate) const fn named(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self::new(name),
            Err(_) => panic!("a name without a NUL"),
        }
    }

    /// Its address. `None` if the library is not loaded, or is too old to have it.
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            let library = ptr::with_exposed_provenance_mut(library()?);
            // SAFETY: a handle from dlopen, and a C string.
            found = unsafe { libc::dlsym(library, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        (!found.is_null()).then_some(found)
    }
}
