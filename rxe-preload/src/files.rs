//! Redirects the files of a kernel device that some programs read to a [`tree`] of our own.
//!
//! These are the files in `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and
//! `/dev/infiniband`, and in `infiniband` below other devices in `/sys`. The functions by which
//! programs use files are defined here, and replace such a path by one in the tree. Every other
//! path goes to the C library unchanged. Files of counters are updated first ([`counters`]).
//!
//! Invariant: any other path costs a comparison of a few bytes and no allocation, because memory
//! allocators open files too.
//!
//! The functions are `C-unwind` because threads may be cancelled in them (pthread_cancel).
//!
//! `open` and `openat` are variadic in C. On the supported architectures a variadic integer
//! argument is passed like a fixed one.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

use rxe_verbs::device::Identity;

use crate::ffi::set_errno;
use crate::{counters, host, tree};

/// Returns the part of an RDMA device's path that names a file in the tree.
/// The tree has files in `/dev` and `/sys`. `infiniband` below a PCI or network device in `/sys`
/// belongs to the host's devices, which the tree does not have.
fn below(path: &[u8]) -> Option<&[u8]> {
    if path.starts_with(b"/dev/infiniband") {
        return Some(path);
    }
    let below = path.strip_prefix(b"/sys").filter(|below| below.starts_with(b"/"))?;
    let has = |part: &[u8]| below.windows(part.len()).any(|at| at == part);
    // Devices with a card's identity also have a PCI bus of their own.
    let pci = [b"/pci", b"/".as_slice()].iter().any(|before| {
        below.contains(&b':') && has(&[before, Identity::PCI_DOMAIN.as_bytes(), b":"].concat())
    });
    (pci || has(b"/infiniband")).then_some(below)
}

/// Returns the path in the tree that replaces `path`, if there is one.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn redirect(path: *const c_char) -> Option<CString> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let below = below(bytes)?;
    if host::is_looking() {
        return None;
    }
    let tree = tree::current()?;
    let tree = tree.as_os_str().as_bytes();
    if let Some(current) = counters::current(tree, below) {
        return CString::new(current.into_os_string().into_encoded_bytes()).ok();
    }
    let path = CString::new([tree, below].concat()).ok()?;
    // A file that the tree lacks may belong to the host's devices.
    (!host::is_wanted() || rustix::fs::lstat(&*path).is_ok()).then_some(path)
}

/// Defines overrides of C library functions whose path is the parameter named `path`.
macro_rules! hooks {
    ($(fn $name:ident($($before:ident: $before_type:ty,)* @path $(, $after:ident: $after_type:ty)*) -> $result:ty = $failed:expr;)*) => {
    $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            type Function = unsafe extern "C-unwind" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            let Some(next) = behind::$name.get() else {
                set_errno(libc::ENOSYS);
                return $failed;
            };
            // SAFETY: the C library's function of this name, which has this type.
            let next: Function = unsafe { std::mem::transmute(next) };
            // SAFETY: the caller's arguments, unchanged except for the path.
            unsafe {
                match redirect(path) {
                    None => next($($before,)* path $(, $after)*),
                    Some(other) => next($($before,)* other.as_ptr() $(, $after)*),
                }
            }
        }
    )*

        /// The C library's versions of our functions.
        #[allow(non_upper_case_globals, reason = "each has the name of its function")]
        mod behind {
            use crate::next::Next;
            $(pub(super) static $name: Next = Next::named(concat!(stringify!($name), "\0"));)*
        }

        /// Looks up the C library's functions.
        /// Called at load, so that no signal handler has to call `dlsym`.
        pub(crate) fn resolve() {
            $(behind::$name.get();)*
        }
    };
}

const NULL: *mut c_void = std::ptr::null_mut();

hooks! {
    fn open(@path, flags: c_int, mode: c_uint) -> c_int = -1;
    fn open64(@path, flags: c_int, mode: c_uint) -> c_int = -1;
    fn __open_2(@path, flags: c_int) -> c_int = -1;
    fn __open64_2(@path, flags: c_int) -> c_int = -1;
    fn openat(dir: c_int, @path, flags: c_int, mode: c_uint) -> c_int = -1;
    fn openat64(dir: c_int, @path, flags: c_int, mode: c_uint) -> c_int = -1;
    fn __openat_2(dir: c_int, @path, flags: c_int) -> c_int = -1;
    fn __openat64_2(dir: c_int, @path, flags: c_int) -> c_int = -1;
    fn fopen(@path, mode: *const c_char) -> *mut c_void = NULL;
    fn fopen64(@path, mode: *const c_char) -> *mut c_void = NULL;
    fn opendir(@path) -> *mut c_void = NULL;
    fn scandir(@path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int = -1;
    fn scandir64(@path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int = -1;
    fn access(@path, mode: c_int) -> c_int = -1;
    fn faccessat(dir: c_int, @path, mode: c_int, flags: c_int) -> c_int = -1;
    fn eaccess(@path, mode: c_int) -> c_int = -1;
    fn euidaccess(@path, mode: c_int) -> c_int = -1;
    fn chdir(@path) -> c_int = -1;
    fn stat(@path, out: *mut c_void) -> c_int = -1;
    fn stat64(@path, out: *mut c_void) -> c_int = -1;
    fn lstat(@path, out: *mut c_void) -> c_int = -1;
    fn lstat64(@path, out: *mut c_void) -> c_int = -1;
    fn fstatat(dir: c_int, @path, out: *mut c_void, flags: c_int) -> c_int = -1;
    fn fstatat64(dir: c_int, @path, out: *mut c_void, flags: c_int) -> c_int = -1;
    fn __xstat(version: c_int, @path, out: *mut c_void) -> c_int = -1;
    fn __xstat64(version: c_int, @path, out: *mut c_void) -> c_int = -1;
    fn __lxstat(version: c_int, @path, out: *mut c_void) -> c_int = -1;
    fn __lxstat64(version: c_int, @path, out: *mut c_void) -> c_int = -1;
    fn __fxstatat(version: c_int, dir: c_int, @path, out: *mut c_void, flags: c_int) -> c_int = -1;
    fn __fxstatat64(version: c_int, dir: c_int, @path, out: *mut c_void, flags: c_int) -> c_int = -1;
    fn statx(dir: c_int, @path, flags: c_int, mask: c_uint, out: *mut c_void) -> c_int = -1;
    fn statfs(@path, out: *mut c_void) -> c_int = -1;
    fn statfs64(@path, out: *mut c_void) -> c_int = -1;
    fn getxattr(@path, name: *const c_char, out: *mut c_void, size: usize) -> isize = -1;
    fn lgetxattr(@path, name: *const c_char, out: *mut c_void, size: usize) -> isize = -1;
    fn listxattr(@path, out: *mut c_char, size: usize) -> isize = -1;
    fn llistxattr(@path, out: *mut c_char, size: usize) -> isize = -1;
    fn readlink(@path, out: *mut c_char, size: usize) -> isize = -1;
    fn readlinkat(dir: c_int, @path, out: *mut c_char, size: usize) -> isize = -1;
    fn __readlink_chk(@path, out: *mut c_char, size: usize, room: usize) -> isize = -1;
    fn __readlinkat_chk(dir: c_int, @path, out: *mut c_char, size: usize, room: usize) -> isize = -1;
    fn realpath(@path, out: *mut c_char) -> *mut c_char = std::ptr::null_mut();
    fn __realpath_chk(@path, out: *mut c_char, size: usize) -> *mut c_char = std::ptr::null_mut();
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn paths_of_rdma_devices_lead_to_the_tree() {
        for (path, expected) in [
            ("/sys/class/infiniband", Some("/class/infiniband")),
            ("/sys/class/infiniband_mad/abi_version", Some("/class/infiniband_mad/abi_version")),
            (
                "/sys/bus/pci/devices/0000:01:00.0/infiniband",
                Some("/bus/pci/devices/0000:01:00.0/infiniband"),
            ),
            (
                "/sys/class/net/eth0/device/infiniband/mlx5_0",
                Some("/class/net/eth0/device/infiniband/mlx5_0"),
            ),
            ("/dev/infiniband/uverbs0", Some("/dev/infiniband/uverbs0")),
            (
                "/sys/bus/pci/devices/7278:01:00.0/numa_node",
                Some("/bus/pci/devices/7278:01:00.0/numa_node"),
            ),
            ("/sys/devices/pci7278:00/7278:01:00.0", Some("/devices/pci7278:00/7278:01:00.0")),
            ("/sys/bus/pci/devices/0000:01:00.0/numa_node", None),
            ("/sys/class/net/eth0/address", None),
            ("/sys", None),
            ("/system/infiniband", None),
            ("/home/infiniband", None),
        ] {
            assert_eq!(below(path.as_bytes()), expected.map(str::as_bytes), "{path}");
        }
    }
}
