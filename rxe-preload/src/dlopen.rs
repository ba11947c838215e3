//! Redirects `dlopen` of libibverbs and librdmacm to this library, under any of their names.
//!
//! `LD_LIBRARY_PATH` leads `libibverbs.so.1` to our versioned library (`cargo xtask libs`).
//! Absolute paths, and the name `libibverbs.so`, which only development packages of rdma-core
//! install, would lead to the system's library, which finds no device of ours.
//!
//! The C library also searches the RUNPATH of the library that calls `dlopen`, and finds that
//! caller by the return address. So our `dlopen` only replaces the path and then jumps to the C
//! library's function, like the functions of [`crate::exits`].

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::explain;

/// The directory of the versioned libraries, next to the file of this library.
const DIRECTORY: &str = "rxe-libs";

/// A library that programs load, with the names that they use for it.
struct Library {
    /// The name without a version, and the soname.
    names: [&'static str; 2],
    ours: OnceLock<Option<CString>>,
}

static LIBRARIES: [Library; 2] = [
    Library { names: ["libibverbs.so", "libibverbs.so.1"], ours: OnceLock::new() },
    Library { names: ["librdmacm.so", "librdmacm.so.1"], ours: OnceLock::new() },
];

impl Library {
    /// Returns whether a path leads to this library, such as `/usr/lib/libibverbs.so.1.14.39`.
    fn is_at(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let [bare, soname] = self.names.map(str::as_bytes);
        name == bare
            || name.strip_prefix(soname).is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
    }

    /// Returns the path of our library, if it is installed.
    fn ours(&self) -> Option<&CStr> {
        let ours = self.ours.get_or_init(|| {
            let path = own_directory()?.join(DIRECTORY).join(self.names[1]);
            // A direct system call, because the C library's function would lead back to this
            // library.
            rustix::fs::stat(&path).ok()?;
            CString::new(path.into_os_string().into_vec()).ok()
        });
        ours.as_deref()
    }
}

/// Returns the path of the library to load instead of the one at `path`.
fn instead(path: &[u8], caller: *const c_void) -> Option<&'static CStr> {
    let library = LIBRARIES.iter().find(|library| library.is_at(path))?;
    // This library and the versioned ones load the system's library, for functions that they lack.
    let within = own_directory().zip(file_of(caller)).is_some_and(|(own, file)| {
        file.parent() == Some(&*own) || file.parent() == Some(&*own.join(DIRECTORY))
    });
    if within {
        return None;
    }
    let ours = library.ours();
    if ours.is_none() {
        let path = String::from_utf8_lossy(path);
        let why = format!(
            "the program loads {path} by itself and gets the system's library, which knows no device of \
             rxe, because {DIRECTORY}/{} is not beside librxe_preload.so: install the package, or run \
             `cargo xtask install` in the sources of rxe",
            library.names[1]
        );
        explain::once("dlopen", &why);
    }
    ours
}

/// Returns the directory that holds this library's file.
fn own_directory() -> Option<PathBuf> {
    let here: extern "C" fn(*const c_char, *const c_void) -> *const c_char = redirect;
    file_of(here as *const c_void)?.parent().map(Path::to_owned)
}

/// Returns the file of the library or program that contains this address.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: the structure is this function's; any address may be asked for.
    let found = unsafe { libc::dladdr(address, &raw mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: the loader's name for the object, a C string that lives as long as the library.
    found.then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes()).into())
}

static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Looks up the C library's `dlopen`.
pub(crate) fn resolve() {
    if REAL.load(Ordering::Relaxed).is_null() {
        // SAFETY: a C string; RTLD_NEXT is whatever follows this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
        REAL.store(found, Ordering::Relaxed);
    }
}

/// Returns the path that the C library is given instead of `path`.
/// `caller` is an address in the calling library.
extern "C" fn redirect(path: *const c_char, caller: *const c_void) -> *const c_char {
    // The constructor of another library may call `dlopen` before our constructor has run.
    resolve();
    if path.is_null() {
        return path;
    }
    // SAFETY: the caller's path, a C string.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    instead(bytes, caller).map_or(path, CStr::as_ptr)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn dlopen(path: *const c_char, flags: i32) -> *mut c_void {
    // At entry the stack pointer is 8 off a multiple of 16, and points to the return address.
    std::arch::naked_asm!(
        "push rsi",
        "mov rsi, [rsp + 8]",
        "call {redirect}",
        "mov rdi, rax",
        "pop rsi",
        "jmp qword ptr [rip + {real}]",
        redirect = sym redirect,
        real = sym REAL,
    )
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
#[cfg(target_arch = "aarch64")]
unsafe extern "C" fn dlopen(path: *const c_char, flags: i32) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "str x1, [sp, #16]",
        "mov x1, x30",
        "bl {redirect}",
        "ldr x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        redirect = sym redirect,
        real = sym REAL,
    )
}

#[cfg(test)]
mod tests {
    use super::LIBRARIES;

    #[test]
    fn libraries_are_known_by_every_name_of_theirs_and_no_other() {
        for (path, expected) in [
            ("libibverbs.so", Some(0)),
            ("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", Some(0)),
            ("./libibverbs.so.1.14.39.0", Some(0)),
            ("librdmacm.so.1", Some(1)),
            ("/opt/lib/librdmacm.so", Some(1)),
            ("libibverbs.so.12", None),
            ("libibverbs.so/libmlx5.so", None),
            ("libibverbs-3f1.so.1", None),
            ("libibverbs.sources", None),
            ("", None),
        ] {
            let found = LIBRARIES.iter().position(|library| library.is_at(path.as_bytes()));
            assert_eq!(found, expected, "{path}");
        }
    }
}
