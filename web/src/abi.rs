//! The C ABI between the page's worker and the laboratory.
//!
//! The worker asks for room with [`rxe_request`], writes a request there, and calls [`rxe_call`]. The
//! answer is at [`rxe_answer`] until the next call. All memory that crosses the border belongs to this
//! module, so no pointer from outside is ever dereferenced. There is one thread.

use std::cell::RefCell;
use std::io::{self, Read};

use crate::laboratory::Laboratory;

/// The largest request in bytes.
const MAX_REQUEST: usize = 16 << 20;

#[derive(Default)]
struct Border {
    request: Vec<u8>,
    answer: Vec<u8>,
    laboratory: Laboratory,
}

thread_local! {
    static BORDER: RefCell<Border> = RefCell::default();
}

/// Makes room for a request of `len` bytes, and returns where it begins; null if it is too long.
#[unsafe(no_mangle)]
pub extern "C" fn rxe_request(len: usize) -> *mut u8 {
    BORDER.with_borrow_mut(|border| {
        if len > MAX_REQUEST {
            return std::ptr::null_mut();
        }
        border.request.clear();
        border.request.resize(len, 0);
        border.request.as_mut_ptr()
    })
}

/// Carries out the request that was written last. Returns the length of the answer in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn rxe_call() -> usize {
    BORDER.with_borrow_mut(|border| {
        let request = std::mem::take(&mut border.request);
        border.answer = border.laboratory.call(&request, Box::new(File));
        border.answer.len()
    })
}

/// Returns where the answer begins. It is valid until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn rxe_answer() -> *const u8 {
    BORDER.with_borrow(|border| border.answer.as_ptr())
}

/// The file that the page has opened. The worker keeps the position.
struct File;

impl Read for File {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        read(into).ok_or_else(|| io::Error::other("the browser cannot read the file"))
    }
}

/// Reads the next bytes of the file. Returns their number: 0 at the end, `None` if reading fails.
#[cfg(target_family = "wasm")]
fn read(into: &mut [u8]) -> Option<usize> {
    #[link(wasm_import_module = "page")]
    unsafe extern "C" {
        /// Writes at most `len` bytes of the file at `into`. Returns their number, or -1.
        fn read(into: *mut u8, len: usize) -> isize;
    }
    // SAFETY: the worker writes at most `len` bytes from `into` on, which this function borrows
    // exclusively, and keeps no pointer. It does not call back into this module.
    let got = unsafe { read(into.as_mut_ptr(), into.len()) };
    // The worker's number is not trusted: more than was asked for is an error.
    usize::try_from(got).ok().filter(|got| *got <= into.len())
}

/// Without a browser there is no file.
#[cfg(not(target_family = "wasm"))]
fn read(_: &mut [u8]) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_too_long_gets_no_room() {
        assert!(rxe_request(MAX_REQUEST + 1).is_null());
        assert!(!rxe_request(4).is_null());
        // Four zeros are no request, which the answer says.
        assert!(rxe_call() > 0 && !rxe_answer().is_null());
    }
}
