//! The interface to C: failures, thread cancellation, errno.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::{mem, ptr};

use rxe_verbs::{Error, UseCounts, VerbsError};

use crate::explain;
use crate::next::Next;

/// The errno and the explanation of a verb that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: c_int,
    /// An explanation, if it says more than the errno.
    pub(crate) text: Option<String>,
}

impl Failure {
    /// A failure without an explanation.
    pub(crate) fn plain(errno: c_int) -> Self {
        Self { errno, text: None }
    }

    /// A failure with an explanation.
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Self {
        Self { errno, text: Some(text.into()) }
    }

    /// Adds the number of the queue pair to the explanation.
    pub(crate) fn of_qp(self, qpn: impl std::fmt::Display) -> Self {
        Self { text: self.text.map(|text| format!("QP {qpn}: {text}")), ..self }
    }

    /// The failure of a call on a parent process's object, which a forked child cannot use.
    pub(crate) fn of_parent(what: &str) -> Self {
        let why = format!(
            "{what} was made before fork(), by the parent of this process, and is the parent's: make \
             a new one in the child"
        );
        Self::new(libc::EIO, why)
    }

    /// The failure to destroy an object that these objects still use.
    pub(crate) fn in_use(used_by: UseCounts, what: &str) -> Self {
        let why = if used_by.is_empty() {
            format!("another thread is in a call on {what}")
        } else {
            format!("{what} is in use by {used_by}: destroy these first")
        };
        Self::new(libc::EBUSY, why)
    }

    /// The failure for a null pointer.
    pub(crate) fn null(what: &str) -> Self {
        Self::new(libc::EINVAL, format!("{what} is NULL: the call that should have made it failed"))
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        let errno = e.errno();
        // Some programs always post until the queue is full, so this error must be cheap.
        let again = matches!(&e, Error::Verbs(VerbsError::QueueFull { queue, .. })
            if !explain::fills(queue));
        Self { errno, text: (!again).then(|| e.to_string()) }
    }
}

impl From<rxe_sys::Error> for Failure {
    fn from(e: rxe_sys::Error) -> Self {
        Error::from(e).into()
    }
}

impl From<VerbsError> for Failure {
    fn from(e: VerbsError) -> Self {
        Error::Verbs(e).into()
    }
}

/// The result of a verb.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Fails with this errno if a mask has bits other than the known ones.
pub(crate) fn check_bits(name: &str, mask: u32, known: u32, errno: c_int) -> Outcome {
    if mask & !known == 0 {
        return Ok(());
    }
    Err(Failure::new(errno, format!("{name} {mask:#x} has unknown bits")))
}

/// Returns what a verb that returns 0 or an errno must return.
pub(crate) fn errno_of(verb: &'static str, outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            explain::refused(verb, failure.text.as_deref());
            set_errno(failure.errno);
            failure.errno
        }
    }
}

/// Returns what a verb that returns an object, or null with errno set, must return.
pub(crate) fn pointer_of<T>(verb: &'static str, outcome: Outcome<*mut T>) -> *mut T {
    outcome.unwrap_or_else(|failure| {
        explain::refused(verb, failure.text.as_deref());
        set_errno(failure.errno);
        ptr::null_mut()
    })
}

/// Returns what a verb that returns 0, or -1 with errno set, must return.
pub(crate) fn minus_one_of(verb: &'static str, outcome: Outcome) -> c_int {
    if errno_of(verb, outcome) == 0 { 0 } else { -1 }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno, always valid.
    unsafe { *libc::__errno_location() = errno }
}

/// Disables cancellation of the thread (pthread_cancel) while this value lives.
/// So no system call within a verb is a cancellation point. With a kernel device, a verb is an
/// ioctl, which is not one either.
///
/// The verbs of the data path do not use this guard, because it costs two atomic changes. They make
/// only direct system calls, which are no cancellation points.
#[must_use]
pub(crate) struct Uncancelled(c_int);

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

impl Uncancelled {
    pub(crate) fn new() -> Self {
        const PTHREAD_CANCEL_DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: our own variable.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: null is allowed.
        unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
    }
}

/// Ends the thread here if it has been cancelled.
/// The caller must be `extern "C-unwind"`, and must hold no value that needs to be dropped.
pub(crate) fn cancellation_point() {
    unsafe extern "C-unwind" {
        safe fn pthread_testcancel();
    }
    pthread_testcancel();
}

/// Sleeps in a read of this event descriptor, as a program would with a kernel device.
/// The kernel decides what a signal does. The thread may be cancelled in the read, so callers must
/// obey the rules of [`cancellation_point`].
///
/// # Errors
/// The errno of `read`.
pub(crate) fn read_event(fd: RawFd) -> Result<(), c_int> {
    type Read = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize) -> isize;
    /// Not this library's own `read`, which first updates counter files.
    static READ: Next = Next::new(c"read");
    let mut count = 0u64;
    let Some(read) = READ.get() else { return Err(libc::ENOSYS) };
    // SAFETY: the C library's function of this name, which has this type.
    let read: Read = unsafe { mem::transmute(read) };
    // SAFETY: a variable of this size.
    if unsafe { read(fd, (&raw mut count).cast(), size_of::<u64>()) } >= 0 {
        return Ok(());
    }
    // SAFETY: the address of this thread's errno, always valid.
    Err(unsafe { *libc::__errno_location() })
}

/// Copies a text into a C array, truncated to fit. The array always ends with a NUL.
pub(crate) fn copy_text(text: &str, field: &mut [c_char]) {
    field.fill(0);
    let room = field.len().saturating_sub(1);
    for (to, from) in field.iter_mut().take(room).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_queue_is_full_is_put_into_words_once() {
        let full = || Failure::from(VerbsError::QueueFull { queue: "test", depth: 4 });
        let first = full();
        assert!(
            first.text.is_some_and(|text| text.contains("the test queue is full (4 requests)"))
        );
        let again = full();
        assert_eq!((again.errno, again.text), (libc::ENOMEM, None));
    }

    /// The functions of librdmacm have no table that could add the guard to each of them.
    #[test]
    fn every_function_of_librdmacm_begins_with_what_forbids_cancellation() {
        const SLEEPS: &str = "fn rdma_get_cm_event(";
        let mut directories = vec![concat!(env!("CARGO_MANIFEST_DIR"), "/src/rdmacm").into()];
        let mut seen = 0;
        while let Some(directory) = directories.pop() {
            let directory: std::path::PathBuf = directory;
            for entry in std::fs::read_dir(directory).unwrap().flatten() {
                if entry.path().is_dir() {
                    directories.push(entry.path());
                    continue;
                }
                let text = std::fs::read_to_string(entry.path()).unwrap();
                for function in text.split("#[unsafe(no_mangle)]\n").skip(1) {
                    let (head, body) = function.split_once("{\n").unwrap();
                    let first = body.lines().next().unwrap();
                    assert_eq!(
                        first.contains("Uncancelled::new()"),
                        !head.contains(SLEEPS),
                        "{head}"
                    );
                    seen += 1;
                }
            }
        }
        assert!(seen > 40, "{seen}");
    }
}
