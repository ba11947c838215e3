//! Detects Go programs that read the files of devices.
//! Go makes system calls directly, so the functions of [`crate::files`] do not intercept them, and
//! the program finds no device in `/sys/class/infiniband`. An explanation tells the user where the
//! files are.
//!
//! A Go program that calls C has the symbol `crosscall2`. One that does not is linked statically,
//! so nothing can be preloaded into it, and `rxe run` reports that.

use std::ffi::{c_int, c_void};
use std::slice;

use crate::{explain, tree};

/// A path that a program's constants contain if it reads these files.
const PATH: &[u8] = b"/sys/class/infiniband";

/// Explains where the files of devices are, if a Go program would not find them. Called at load.
pub(crate) fn check() {
    // SAFETY: a C string.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"crosscall2".as_ptr()) };
    if symbol.is_null() || !names_path() {
        return;
    }
    if let Some(tree) = tree::given() {
        let why = format!(
            "this program is written in Go and reads files by system calls of its own, so it finds no device \
             of rxe in /sys/class/infiniband: let it look in {}/class/infiniband (RXE_SYSFS names that \
             tree). Verbs work as in other programs",
            tree.display()
        );
        explain::once("files", &why);
    }
}

/// Returns whether the program's own constants contain [`PATH`].
fn names_path() -> bool {
    let mut found = false;
    // SAFETY: the function below, and its argument, which lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(search), (&raw mut found).cast()) };
    found
}

/// Searches the first object, which is the program, and then ends the iteration.
unsafe extern "C" fn search(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader's structure and table, and the caller's variable.
    let (info, headers, found) = unsafe {
        let info = &*info;
        let headers = slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        (info, headers, &mut *found.cast::<bool>())
    };
    let constant = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R
    };
    *found = headers.iter().filter(constant).any(|header| {
        let begin = usize::try_from(info.dlpi_addr + header.p_vaddr).unwrap_or(0);
        let length = usize::try_from(header.p_filesz).unwrap_or(0);
        let begin = std::ptr::with_exposed_provenance::<c_void>(begin);
        // SAFETY: a segment of the program, which is mapped for reading from its file and stays.
        let at = unsafe { libc::memmem(begin, length, PATH.as_ptr().cast(), PATH.len()) };
        !at.is_null()
    });
    1
}
