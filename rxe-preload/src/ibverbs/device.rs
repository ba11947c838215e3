//! The devices that a program may open. IBTA 11.2.1.
//!
//! Invariant: a device to which a program has a pointer is never freed, because the program may get
//! the list again and compare pointers.

use rxe_sys::PerProcess;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, Once};

use rxe_verbs::DeviceInfo;

use super::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device};
use super::of_host::{self, List};
use super::owner;
use crate::config::CONFIG;
use crate::explain::{self, Instead};
use crate::ffi::{copy_text, set_errno};
use crate::host;

/// A device as programs hold it.
#[repr(C)]
pub(crate) struct DeviceEntry {
    verbs: ibv_device,
    /// The name that programs are given.
    name: String,
    index: c_int,
    /// The properties of the device when it was last listed.
    info: Mutex<DeviceInfo>,
}

// SAFETY: `verbs` holds no pointers but the mark in `_ops`, and is not changed after its creation.
unsafe impl Send for DeviceEntry {}
// SAFETY: as above; the rest is a Mutex.
unsafe impl Sync for DeviceEntry {}

impl DeviceEntry {
    fn new(info: DeviceInfo, number: usize) -> Self {
        let mut verbs = ibv_device {
            _ops: owner::mark(),
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        let name = CONFIG.identity.map_or_else(|| info.name().to_owned(), |id| id.device(number));
        // The host's devices do not have numbers from here on.
        let first = if host::is_wanted() { DeviceInfo::FIRST_BESIDE_HOST } else { 0 };
        let number = first + number;
        copy_text(&name, &mut verbs.name);
        copy_text(&format!("uverbs{number}"), &mut verbs.dev_name);
        copy_text(&format!("/sys/class/infiniband_verbs/uverbs{number}"), &mut verbs.dev_path);
        copy_text(&format!("/sys/class/infiniband/{name}"), &mut verbs.ibdev_path);
        let index = c_int::try_from(first).unwrap_or(0)
            + c_int::try_from(info.interface().index).unwrap_or(-1);
        Self { verbs, name, index, info: Mutex::new(info) }
    }

    /// Returns the entry behind a program's pointer.
    /// # Safety
    /// `device` is from [`ibv_get_device_list`].
    pub(super) unsafe fn of<'d>(device: *mut ibv_device) -> &'d Self {
        // SAFETY: the list only has pointers to the first field of entries, which are never freed.
        unsafe { &*device.cast() }
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_device {
        (&raw const self.verbs).cast_mut()
    }

    pub(super) fn info(&self) -> DeviceInfo {
        match self.info.lock() {
            Ok(info) => info.clone(),
            Err(poisoned) => poisoned.into_inner().clone(),
        }
    }
}

/// The devices to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The devices of `ibv_get_device_list`.
    Offered,
    /// All devices, including those to which only an address leads, as 127.0.0.1 to loopback's.
    Addressed,
}

/// Returns the present devices.
/// Devices that were listed before keep their addresses in memory. If `RXE_DEVICE` is set, only the
/// devices that it names are returned.
fn entries(which: Which) -> Vec<&'static DeviceEntry> {
    static ALL: PerProcess<Mutex<BTreeMap<String, &'static DeviceEntry>>> = PerProcess::new();
    let list = match (&CONFIG.devices, which) {
        (None, Which::Offered) => DeviceInfo::offered(),
        _ => DeviceInfo::list(),
    };
    let infos = list.unwrap_or_else(|e| {
        explain::once("ibv_get_device_list", &e.to_string());
        Vec::new()
    });
    for name in CONFIG.devices.iter().flatten() {
        if !infos.is_empty() && !infos.iter().any(|info| info.is_called(name)) {
            let all: Vec<_> = infos.iter().map(DeviceInfo::name).collect();
            let all = all.join(", ");
            explain::once("RXE_DEVICE", &format!("there is no device {name}: choose from {all}"));
        }
    }
    let shown = |info: &DeviceInfo| match &CONFIG.devices {
        None => true,
        Some(names) => names.iter().any(|name| info.is_called(name)),
    };
    let Ok(mut all) = ALL.get().lock() else { return Vec::new() };
    let infos = infos.into_iter().filter(shown);
    infos
        .map(|info| {
            let number = all.len();
            let entry = all
                .entry(info.name().to_owned())
                .or_insert_with(|| Box::leak(Box::new(DeviceEntry::new(info.clone(), number))));
            if let Ok(mut known) = entry.info.lock() {
                *known = info;
            }
            *entry
        })
        .collect()
}

/// A device as reported by netlink.
pub(crate) struct Present {
    /// The index that `ibv_get_device_index` returns.
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) info: DeviceInfo,
}

/// Returns the devices of `ibv_get_device_list`.
pub(crate) fn present() -> Vec<Present> {
    let present = |entry: &DeviceEntry| {
        let index = u32::try_from(entry.index).unwrap_or(0);
        Present { index, name: entry.name.clone(), info: entry.info() }
    };
    entries(Which::Offered).into_iter().map(present).collect()
}

/// Returns the names of the present devices.
pub(super) fn names() -> Vec<String> {
    entries(Which::Offered).iter().map(|entry| entry.name.clone()).collect()
}

/// Returns the present devices, for librdmacm.
pub(crate) fn devices(which: Which) -> Vec<*mut ibv_device> {
    entries(which).iter().map(|entry| entry.as_ptr()).collect()
}

/// The devices of a list that a program receives: ours, followed by the host's.
struct Listed {
    ours: Vec<&'static DeviceEntry>,
    host: Option<List>,
}

impl Listed {
    fn get() -> Self {
        Self { ours: entries(Which::Offered), host: List::get() }
    }

    fn devices(&self) -> Vec<*mut ibv_device> {
        let host = self.host.iter().flat_map(List::devices);
        self.ours.iter().map(|entry| entry.as_ptr()).chain(host).collect()
    }

    /// Explains a requested device that is missing from the list, or a duplicate name.
    /// Does so once, for the first list.
    fn explain_names(&self) {
        static DONE: Once = Once::new();
        DONE.call_once(|| {
            let mut names: Vec<_> = self.ours.iter().map(|entry| entry.name.clone()).collect();
            for device in self.host.iter().flat_map(List::devices) {
                // SAFETY: a device of the list, whose name is a C string.
                let name = unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy();
                if names.iter().any(|known| *known == name) {
                    let why = format!(
                        "the host has a device {name}, and so has rxe: programs find that of rxe. Give it \
                         another name: `rxe link add NAME type rxe netdev NETDEV`"
                    );
                    explain::once("--with-host-devices", &why);
                }
                names.push(name.into_owned());
            }
            if !names.is_empty() {
                explain::unknown_devices(&names, |name| self.instead_of(name));
            }
        });
    }

    /// Returns where the device of a name is that no device in the list has.
    fn instead_of(&self, name: &str) -> Option<Instead> {
        let device = DeviceInfo::list().ok()?.into_iter().find(|info| info.is_called(name))?;
        let Some(shown) = self.ours.iter().find(|entry| entry.info().name() == device.name())
        else {
            return Some(Instead::Hidden);
        };
        let given = shown.name == device.name() && device.endpoint().is_none();
        Some(Instead::Called { name: shown.name.clone(), given })
    }
}

pub(super) unsafe extern "C" fn ibv_get_device_list(
    num_devices: *mut c_int,
) -> *mut *mut ibv_device {
    if host::is_looking() {
        // The caller is the system's library, which must get only its own devices.
        // SAFETY: the caller's variable.
        return unsafe { of_host::get_device_list(num_devices) }.unwrap_or(std::ptr::null_mut());
    }
    let listed = Listed::get();
    listed.explain_names();
    let devices = listed.devices();
    if devices.is_empty() {
        explain::once(
            "ibv_get_device_list",
            "there is no device, since no interface has an address: `ip link set lo up` makes one",
        );
    }
    // SAFETY: calloc of pointers; freed by ibv_free_device_list.
    let list: *mut *mut ibv_device =
        unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }.cast();
    if list.is_null() {
        set_errno(libc::ENOMEM);
        return list;
    }
    for (at, device) in devices.iter().enumerate() {
        // SAFETY: `at` is less than what was allocated.
        unsafe { *list.add(at) = *device };
    }
    if let Some(host) = listed.host {
        host.keep_for(list);
    }
    if !num_devices.is_null() {
        // SAFETY: the caller's variable.
        unsafe { *num_devices = c_int::try_from(devices.len()).unwrap_or(c_int::MAX) };
    }
    list
}

pub(super) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if host::is_looking() {
        // SAFETY: the system's library frees its own list.
        let _ = unsafe { of_host::free_device_list(list) };
        return;
    }
    List::free_with(list);
    // SAFETY: from ibv_get_device_list, by calloc. Our devices stay.
    unsafe { libc::free(list.cast()) }
}

pub(super) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device from the list, which is never freed.
    unsafe { (*device).name.as_ptr() }
}

pub(super) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: as above.
    unsafe { DeviceEntry::of(device) }.info().guid().0.to_be()
}

pub(super) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: as above.
    unsafe { DeviceEntry::of(device) }.index
}

pub(super) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file in a directory into `buf`, without its final newline.
/// Returns the length in bytes, or -1.
pub(super) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: C strings of the caller.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let path = format!("{}/{}", dir.to_string_lossy(), file.to_string_lossy());
    let Ok(mut text) = std::fs::read(path) else { return -1 };
    text.truncate(size);
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    // SAFETY: the caller has room for `size` bytes.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), text.len()) };
    if text.len() < size {
        // SAFETY: as above.
        unsafe { *buf.add(text.len()) = 0 };
    }
    c_int::try_from(text.len()).unwrap_or(c_int::MAX)
}

impl std::fmt::Debug for DeviceEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}
