//! Functions of libibverbs without an object argument, for the host's devices next to ours: device
//! lists, importing, and the preparation for fork().

use std::ffi::{c_int, c_uint, c_void};

use parking_lot::Mutex;
use rxe_sys::PerProcess;

use super::abi::{ibv_context, ibv_device};
use crate::host;

/// Defines functions that call the system library's. They return `None` if it lacks the function.
macro_rules! of_host {
    ($(fn $own:ident = $name:literal ($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
    $(
        pub(super) unsafe fn $own($($arg: $type),*) -> Option<$result> {
            static FUNCTION: host::Function = host::Function::new($name);
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            let function = FUNCTION.get()?;
            // SAFETY: the system's function of this name, which has this type.
            let function: Function = unsafe { std::mem::transmute(function) };
            // SAFETY: the caller's promise, which is that of the function.
            Some(unsafe { function($($arg),*) })
        }
    )*
    };
}

of_host! {
    fn get_device_list = c"ibv_get_device_list" (number: *mut c_int) -> *mut *mut ibv_device;
    fn free_device_list = c"ibv_free_device_list" (list: *mut *mut ibv_device) -> ();
    fn import = c"ibv_import_device" (fd: c_int) -> *mut ibv_context;
    fn init_fork = c"ibv_fork_init" () -> c_int;
    fn fork_initialized = c"ibv_is_fork_initialized" () -> c_uint;
    fn dontfork = c"ibv_dontfork_range" (base: *mut c_void, size: usize) -> c_int;
    fn dofork = c"ibv_dofork_range" (base: *mut c_void, size: usize) -> c_int;
}

/// The host's lists whose devices are in lists of ours, by our lists' addresses.
static LISTS: PerProcess<Mutex<Vec<(usize, List)>>> = PerProcess::new();

/// A list of the host's devices, which exist until the list is freed.
pub(super) struct List(*mut *mut ibv_device);

// SAFETY: a list is not changed after its creation, and any thread may free it.
unsafe impl Send for List {}

impl List {
    /// Returns a list of the host's devices, if they are wanted.
    pub(super) fn get() -> Option<Self> {
        if !host::load() {
            return None;
        }
        let mut number = 0;
        // SAFETY: our own variable.
        let list = host::looking(|| unsafe { get_device_list(&raw mut number) })?;
        (!list.is_null()).then(|| Self(list))
    }

    /// Returns the devices of the list.
    pub(super) fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: the list ends with a null pointer.
        (0..).map(|at| unsafe { *self.0.add(at) }).take_while(|device| !device.is_null())
    }

    /// Keeps the list until the program frees `own`, the list that it was given.
    pub(super) fn keep_for(self, own: *mut *mut ibv_device) {
        LISTS.get().lock().push((own.addr(), self));
    }

    /// Frees the host's list that was kept for the program's list `own`.
    pub(super) fn free_with(own: *mut *mut ibv_device) {
        if !host::is_used() {
            return;
        }
        let mut lists = LISTS.get().lock();
        let found = lists.iter().position(|(of, _)| *of == own.addr());
        let list = found.map(|at| lists.swap_remove(at).1);
        drop(lists);
        drop(list);
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from `get`.
        let _ = unsafe { free_device_list(self.0) };
    }
}

/// Imports a host's device with this descriptor.
/// Returns null with errno set on failure, and `None` if the host's devices are not wanted.
pub(super) fn import_device(fd: c_int) -> Option<*mut ibv_context> {
    if !host::load() {
        return None;
    }
    // SAFETY: any number may be given.
    host::looking(|| unsafe { import(fd) })
}

/// Calls the system library's function. `None` if the host's devices are not wanted.
pub(super) fn fork_init() -> Option<c_int> {
    if !host::load() {
        return None;
    }
    // SAFETY: the function has no safety condition.
    unsafe { init_fork() }
}

/// Calls the system library's function. `None` if it is not loaded.
pub(super) fn is_fork_initialized() -> Option<c_uint> {
    // SAFETY: as above.
    host::is_used().then(|| unsafe { fork_initialized() })?
}

/// Calls the system library's function. `None` if it is not loaded.
pub(super) fn dontfork_range(base: *mut c_void, size: usize) -> Option<c_int> {
    // SAFETY: the range is only passed to the system's library.
    host::is_used().then(|| unsafe { dontfork(base, size) })?
}

/// Calls the system library's function. `None` if it is not loaded.
pub(super) fn dofork_range(base: *mut c_void, size: usize) -> Option<c_int> {
    // SAFETY: as above.
    host::is_used().then(|| unsafe { dofork(base, size) })?
}
