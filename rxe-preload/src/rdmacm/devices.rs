//! The contexts of identifiers: one for each device, opened at its first use and then kept open, as
//! in librdmacm.

use rxe_sys::PerProcess;
use std::ffi::{CStr, c_int};
use std::net::IpAddr;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rxe_verbs::cm::DeviceSource;
use rxe_verbs::device::DeviceInfo;
use rxe_verbs::{Device, Error, Gid, Result};

use super::verbs::{ibv_alloc_pd, ibv_get_device_name, ibv_open_device};
use crate::explain;
use crate::ffi::{self, pointer_of};
use crate::host;
use crate::ibverbs::Context;
use crate::ibverbs::abi::{ibv_context, ibv_device, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr};
use crate::ibverbs::device::{Which, devices};
use crate::ibverbs::xrcd::open_xrcd;

/// A context, with the default domains for identifiers.
#[derive(Clone, Copy)]
struct Opened {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
}

impl Opened {
    /// Returns whether the interface of the context's device was removed.
    fn is_removed(&self) -> bool {
        // SAFETY: the context is never closed.
        unsafe { Context::of(self.context) }.opened().is_some_and(Device::is_removed)
    }
}

// SAFETY: contexts and domains may be used by any thread, and these are never freed.
unsafe impl Send for Opened {}

/// The devices with their names: first the present ones, in the order of [`devices`], then those
/// that are gone. A later device may have the name of one whose interface was removed, and precedes
/// it.
type All = Vec<(String, Opened)>;

/// The devices of this process. Those of a parent process are not used.
static OPENED: PerProcess<Mutex<All>> = PerProcess::new();

/// Calls `f` with all devices, after opening those that are new.
fn with_all<R>(f: impl FnOnce(&mut All) -> R) -> R {
    let mut all = OPENED.get().lock();
    let mut place = 0;
    for device in devices(Which::Addressed) {
        let name = name(device);
        if let Some(found) = all.iter().position(|(known, it)| *known == name && !it.is_removed()) {
            let known = all.remove(found);
            all.insert(place.min(found), known);
        } else {
            // SAFETY: a device, which is never freed.
            let context = unsafe { ibv_open_device(device) };
            if context.is_null() {
                continue;
            }
            let opened = Opened { context, pd: ptr::null_mut(), xrcd: ptr::null_mut() };
            all.insert(place, (name, opened));
        }
        place += 1;
    }
    f(&mut all)
}

fn name(device: *mut ibv_device) -> String {
    // SAFETY: a device, which is never freed, and neither is its name.
    unsafe { CStr::from_ptr(ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}

/// Sends the last messages to the peers of all devices.
/// These include the peers of destroyed identifiers. Called at exit, and waits for each lock at
/// most `timeout`.
pub(super) fn disconnect_devices(timeout: Duration) {
    let Some(all) = OPENED.get().try_lock_for(timeout) else { return };
    for (_, opened) in all.iter() {
        // SAFETY: the context is never closed.
        let device = unsafe { Context::of(opened.context) }.opened();
        if device.is_some_and(|device| !device.disconnect_all(timeout)) {
            return;
        }
    }
}

/// Returns the context of a device, or null if there is none.
pub(super) fn context_of(device: &Device) -> *mut ibv_context {
    with_all(|all| {
        let is_of = |opened: &Opened| {
            // SAFETY: the context is never closed.
            unsafe { Context::of(opened.context) }.opened().is_some_and(|own| own.is(device))
        };
        let found = all.iter().find(|(_, opened)| is_of(opened));
        found.map_or(ptr::null_mut(), |(_, opened)| opened.context)
    })
}

/// Returns the protection domain for identifiers on this context whose program names none.
pub(super) fn default_pd(context: *mut ibv_context) -> *mut ibv_pd {
    with_all(|all| {
        let Some((_, opened)) = all.iter_mut().find(|(_, opened)| opened.context == context) else {
            return ptr::null_mut();
        };
        if opened.pd.is_null() {
            // SAFETY: an open context.
            opened.pd = unsafe { ibv_alloc_pd(context) };
        }
        opened.pd
    })
}

/// Returns the XRC domain for identifiers on this context whose program names none.
pub(super) fn default_xrcd(context: *mut ibv_context) -> *mut ibv_xrcd {
    with_all(|all| {
        let Some((_, opened)) = all.iter_mut().find(|(_, opened)| opened.context == context) else {
            return ptr::null_mut();
        };
        if opened.xrcd.is_null() {
            let mut attr = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: an open context and our own structure.
            opened.xrcd = unsafe { open_xrcd(context, &raw mut attr) };
        }
        opened.xrcd
    })
}

/// Returns the source of devices for channels.
pub(super) fn source() -> Arc<dyn DeviceSource> {
    Arc::new(Contexts)
}

struct Contexts;

impl DeviceSource for Contexts {
    fn with_address(&self, address: IpAddr) -> Result<Device> {
        let gid = Gid::from(address);
        let found = with_all(|all| {
            let has = |opened: &Opened| {
                // SAFETY: the context is never closed.
                let info = unsafe { Context::of(opened.context) }.info();
                !opened.is_removed() && info.gids().usable().contains(&gid)
            };
            all.iter().map(|(_, opened)| *opened).find(has)
        });
        if found.is_none() && host::is_wanted() {
            let why = format!("no device of rxe has the address {address}");
            refused(&why);
        }
        open(found.map_or(ptr::null_mut(), |opened| opened.context))
    }

    fn known(&self) -> Vec<DeviceInfo> {
        // SAFETY: the context is never closed.
        let info = |opened: &Opened| unsafe { Context::of(opened.context) }.info().clone();
        with_all(|all| {
            all.iter().filter(|(_, it)| !it.is_removed()).map(|(_, it)| info(it)).collect()
        })
    }

    fn all(&self) -> Vec<Device> {
        let contexts: Vec<Opened> = with_all(|all| all.iter().map(|(_, opened)| *opened).collect());
        let contexts = contexts.iter().filter(|opened| !opened.is_removed());
        contexts.filter_map(|opened| open(opened.context).ok()).collect()
    }
}

fn open(context: *mut ibv_context) -> Result<Device> {
    if context.is_null() {
        return Err(none());
    }
    // SAFETY: the context is never closed.
    let device = unsafe { Context::of(context) }.device();
    device.cloned().map_err(|failure| {
        refused(failure.text.as_deref().unwrap_or_default());
        let source = std::io::Error::from_raw_os_error(failure.errno);
        Error::Io { what: "open the device", source }
    })
}

/// Explains why a device cannot be used.
fn refused(why: &str) {
    // The identifiers of host devices would have to be created by the host's librdmacm, but
    // programs create identifiers before they name an address.
    let host = if host::is_wanted() {
        "; connections by address (librdmacm) use no device of the host, also with --with-host-devices"
    } else {
        ""
    };
    if !why.is_empty() {
        explain::once("rdma_cm", &format!("{why}{host}"));
    }
}

fn none() -> Error {
    let source = std::io::Error::from_raw_os_error(libc::ENODEV);
    Error::Io { what: "find a device with that address", source }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let offered: Vec<String> = devices(Which::Offered).into_iter().map(name).collect();
    let contexts: Vec<Opened> = with_all(|all| {
        let shown = all.iter().filter(|(name, it)| offered.contains(name) && !it.is_removed());
        shown.map(|(_, opened)| *opened).collect()
    });
    // SAFETY: calloc of pointers; freed by rdma_free_devices.
    let list: *mut *mut ibv_context =
        unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) }.cast();
    if list.is_null() {
        return pointer_of("rdma_get_devices", Err(ffi::Failure::plain(libc::ENOMEM)));
    }
    for (at, opened) in contexts.iter().enumerate() {
        // SAFETY: `at` is less than what was allocated.
        unsafe { *list.add(at) = opened.context };
    }
    if !num_devices.is_null() {
        // SAFETY: the caller's variable.
        unsafe { *num_devices = c_int::try_from(contexts.len()).unwrap_or(c_int::MAX) };
    }
    list
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: from rdma_get_devices, by calloc. The contexts stay.
    unsafe { libc::free(list.cast()) }
}
