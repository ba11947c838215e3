//! A descriptor that identifies an object of this process, also through its duplicates.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::CheckedFd;
use crate::Error;

/// A descriptor that the program sees, may duplicate and pass back. It is a socket that carries no
/// data, because each socket has its own inode.
#[derive(Debug)]
pub struct TokenFd(CheckedFd);

impl TokenFd {
    /// Creates a new token.
    ///
    /// # Errors
    /// The process or the host has no free descriptor.
    pub fn new() -> Result<Self, Error> {
        socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map(|fd| Self(CheckedFd::for_program(fd)))
            .map_err(|e| Error::os("make a descriptor", e))
    }

    /// Returns whether `other` is this descriptor or a duplicate of it.
    pub fn is(&self, other: BorrowedFd<'_>) -> bool {
        self.0.is_intact() && self.0.is_same(other)
    }
}

impl AsFd for TokenFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for TokenFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_is_told_from_another() {
        let (one, other) = (TokenFd::new().unwrap(), TokenFd::new().unwrap());
        let duplicate = rustix::io::dup(&one).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(one.is(duplicate.as_fd()) && one.is(one.as_fd()));
        assert!(!other.is(duplicate.as_fd()) && !one.is(file.as_fd()));
    }
}
