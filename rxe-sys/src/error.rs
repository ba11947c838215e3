//! Errors of system calls.

use std::fmt;
use std::io;

/// The error of a failed system call.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The program has closed a descriptor that it did not open. It may have opened another file
    /// under the number.
    DescriptorsClosed,
    /// Any other error.
    Os {
        /// The operation that failed, as in "open a socket".
        what: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
}

impl Error {
    /// Wraps an error of the kernel for the operation `what`. This library uses no descriptor that
    /// it has closed, and none of the wrong kind, so EBADF and ENOTSOCK become
    /// [`Error::DescriptorsClosed`].
    pub fn os(what: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match source.raw_os_error() {
            Some(libc::EBADF | libc::ENOTSOCK) => Self::DescriptorsClosed,
            _ => Self::Os { what, source },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DescriptorsClosed => f.write_str(
                "the program has closed descriptors of the device, which are open files of the \
                 same process (close_range(), closefrom() or a loop over all numbers, as daemons do \
                 it): open the device after that, and close only what the program has opened",
            ),
            Self::Os { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::DescriptorsClosed => None,
            Self::Os { source, .. } => Some(source),
        }
    }
}
