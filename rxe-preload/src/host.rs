//! The system's own libibverbs, for the host's devices next to ours.
//! It is used with `rxe run --with-host-devices`.
//!
//! The library is loaded by its path, because its name leads to our versioned library. Both are in
//! one namespace of the loader, so they share errno, cancellation and the program's allocator.
//! Therefore the system's library and its providers call our functions where they mean their own.
//! Our functions of libibverbs forward such calls ([`Function`]). Our functions for files and
//! sockets check [`is_looking`] to find out whether the system's library is the caller.
//!
//! Invariant: without the option nothing is loaded, and [`is_used`] costs one load of a variable.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::config::CONFIG;
use crate::explain;

/// The directories in which distributions install the library.
const DIRECTORIES: [&str; 4] = [
    if cfg!(target_arch = "x86_64") { "/lib/x86_64-linux-gnu" } else { "/lib/aarch64-linux-gnu" },
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
];

/// The handle of the library, from dlopen. The library is never closed.
static LIBRARY: OnceLock<Option<usize>> = OnceLock::new();
/// Whether the library is loaded. Only then can an object belong to it.
static USED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the program is to be shown the host's devices too.
pub(crate) fn is_wanted() -> bool {
    CONFIG.host_devices
}

/// Returns whether an object may belong to the host's library.
pub(crate) fn is_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Makes [`is_used`] return true without loading a library.
#[cfg(test)]
pub(crate) fn pretend_used() {
    USED.store(true, Ordering::Relaxed);
}

/// Loads the library, if the host's devices are wanted. Returns whether it is loaded.
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

/// Calls `f`, which lists the host's devices. Calls of our functions within `f` go to the system.
pub(crate) fn looking<R>(f: impl FnOnce() -> R) -> R {
    let before = LOOKING.replace(true);
    let result = f();
    LOOKING.set(before);
    result
}

/// Returns whether this call comes from within [`looking`].
pub(crate) fn is_looking() -> bool {
    is_used() && LOOKING.get()
}

/// A function of the host's library, looked up at the first call.
pub(crate) struct Function {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Creates a function from its name, which must end with a NUL.
    pub(crate) const fn named(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self::new(name),
            Err(_) => panic!("a name without a NUL"),
        }
    }

    /// Returns the address of the function.
    /// `None` if the library is not loaded, or is too old to have it.
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
