//! The errors of the calls in this module.

use rxe_core::VerbsError;
use rxe_core::cm::CmError;

use crate::error::Error;

/// Returns the error of a call that is not valid now, or with these arguments.
pub(super) fn invalid(why: &'static str) -> Error {
    VerbsError::InvalidRequest { why }.into()
}

/// Returns the error of a failed system call that does `what`.
pub(super) fn os(what: &'static str, errno: i32) -> Error {
    Error::Io { what, source: std::io::Error::from_raw_os_error(errno) }
}

/// Returns the error of a call that the connection manager refused.
pub(super) fn refused(e: CmError) -> Error {
    match e {
        CmError::Unknown => invalid("the connection has ended meanwhile"),
        CmError::WrongState => invalid("the connection is not in a state for this"),
        CmError::InUse => os("use that service", libc::EADDRINUSE),
        CmError::NoResources => os("make a connection", libc::ENOMEM),
    }
}
