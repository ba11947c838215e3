//! A descriptor that knows whether its number is still its own.
//!
//! A program that this library lives in may close descriptors that it did not open
//! (`close_range(3, ~0)`, a daemon's loop over all numbers) and then get the same numbers for files
//! of its own. What is written to such a number would land in the program's file, and closing it
//! would close that file. So:
//!
//! - [`CheckedFd::is_intact`] compares the number's device and inode with those of the day it was
//!   made. A socket, a pipe and a memfd have an inode of their own, so for them the answer is exact.
//!   All event, timer and epoll descriptors of a system share one inode: for them the answer only
//!   tells a file, a socket or a pipe from a descriptor of that family. None of that family but an
//!   event descriptor can be written to.
//! - Dropping closes the number only if it is intact. Otherwise it is the program's, or nobody's.
//! - Internal descriptors get high numbers ([`CheckedFd::internal`]). The system gives out the lowest
//!   free number, so a program that closed everything gets ours again only after hundreds of others;
//!   and a program with a table for few descriptors keeps the low ones for itself.
//!
//! Between the check and the use another thread may still close and reuse the number. No program is
//! known to do that; what protects from it is the high number.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, getrlimit};

/// See the module's opening.
#[derive(Debug)]
pub(crate) struct CheckedFd {
    /// `None` only while it is being dropped.
    fd: Option<OwnedFd>,
    identity: Identity,
}

/// Device and inode; zeros where the system would not tell, which no descriptor has.
type Identity = (u64, u64);

/// Where the numbers of internal descriptors begin, unless the process may not have so many.
const HIGH: u64 = 512;

impl CheckedFd {
    /// Keeps the number that the descriptor has: for those that the program sees, since select(2)
    /// takes only numbers below 1024.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let identity = identity(fd.as_fd());
        Self { fd: Some(fd), identity }
    }

    /// Moves the descriptor to a high number, if one is free.
    pub(crate) fn internal(fd: OwnedFd) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let floor = RawFd::try_from(HIGH.min(limit / 2)).unwrap_or(0);
        Self::new(rustix::io::fcntl_dupfd_cloexec(&fd, floor).unwrap_or(fd))
    }

    /// Whether the number still stands for what it was made for (see the module's opening).
    pub(crate) fn is_intact(&self) -> bool {
        self.identity != (0, 0) && self.identity == identity(self.as_fd())
    }
}

impl Drop for CheckedFd {
    fn drop(&mut self) {
        let intact = self.is_intact();
        let Some(fd) = self.fd.take() else { return };
        if !intact {
            // Not ours to close.
            let _ = fd.into_raw_fd();
        }
    }
}

impl AsFd for CheckedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("only a drop takes it").as_fd()
    }
}

impl AsRawFd for CheckedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

fn identity(fd: BorrowedFd<'_>) -> Identity {
    rustix::fs::fstat(fd).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use super::*;

    /// Closes the number behind its owner's back, as a program may, and opens a file under it.
    pub(crate) fn replace_by_file(fd: &impl AsRawFd) -> File {
        let mut file = File::from(
            rustix::fs::memfd_create("program", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
        );
        file.write_all(b"the program's").unwrap();
        // SAFETY: the number is in use, and its owner is a `CheckedFd` that copes with this.
        #[expect(unsafe_code, reason = "does to a descriptor what its owner would not")]
        let rc = unsafe { libc::dup3(file.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
        assert_eq!(rc, fd.as_raw_fd());
        file
    }

    /// The file has what the program has written, and the number is open still.
    pub(crate) fn assert_untouched(mut file: File, number: RawFd) {
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"the program's");
        // SAFETY: the number is open: `replace_by_file` opened it and its owner must not close it.
        #[expect(unsafe_code, reason = "a number that nobody owns any more")]
        let left = unsafe { BorrowedFd::borrow_raw(number) };
        assert_eq!(identity(left), identity(file.as_fd()));
        // SAFETY: nobody owns it.
        #[expect(unsafe_code, reason = "as above")]
        drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) });
    }

    #[test]
    fn a_number_that_the_program_uses_again_is_not_closed() {
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = CheckedFd::internal(socket.into());
        assert!(fd.is_intact());
        let number = fd.as_raw_fd();
        let file = replace_by_file(&fd);
        assert!(!fd.is_intact());
        drop(fd);
        assert_untouched(file, number);
    }

    #[test]
    fn another_socket_under_the_number_is_not_ours() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = CheckedFd::new(a.into());
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "does to a descriptor what its owner would not")]
        let rc = unsafe { libc::dup2(b.as_raw_fd(), fd.as_raw_fd()) };
        assert!(rc >= 0 && !fd.is_intact());
    }

    #[test]
    fn internal_descriptors_leave_the_low_numbers_to_the_program() {
        let (a, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let low = a.as_raw_fd();
        let fd = CheckedFd::internal(a.into());
        assert!(fd.as_raw_fd() > low && fd.as_raw_fd() >= 32);
    }
}
