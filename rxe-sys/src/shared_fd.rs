//! A descriptor with several owners: one that reads and writes it, and others that sleep until it is ready.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use crate::CheckedFd;
use crate::Error;
use crate::ForkGuarded;
use parking_lot::Mutex;

/// A descriptor that is closed when its last clone is dropped. It has a high number. If the program has closed
/// that number, it is neither used nor closed any more: it may stand for another file.
#[derive(Clone, Debug)]
pub struct SharedFd(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    Checked(CheckedFd),
    /// Forked children do not keep it.
    Guarded(ForkGuarded),
}

impl SharedFd {
    /// Takes a descriptor of this library's own.
    pub fn new(fd: OwnedFd) -> Self {
        Self(Arc::new(Kind::Checked(CheckedFd::internal(fd))))
    }

    /// One that forked children do not keep.
    pub fn guarded(fd: OwnedFd) -> Self {
        Self(Arc::new(Kind::Guarded(ForkGuarded::new(fd))))
    }

    /// One that forked children do not keep, and that this process has once: if it has the same socket
    /// already, that one.
    pub fn once(fd: OwnedFd) -> Self {
        /// By inode. Whoever finds it locked does without: a forked child may find it so for ever.
        static KNOWN: Mutex<Vec<(u64, Weak<Kind>)>> = Mutex::new(Vec::new());
        let inode = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_ino);
        let Some(mut known) = KNOWN.try_lock() else { return Self::guarded(fd) };
        known.retain(|(_, kind)| kind.strong_count() > 0);
        let same = known.iter().filter(|(known, _)| *known == inode);
        let intact = |kind: &Arc<Kind>| matches!(&**kind, Kind::Guarded(fd) if fd.is_intact());
        if let Some(kind) = same.filter_map(|(_, kind)| kind.upgrade()).find(intact) {
            return Self(kind);
        }
        let made = Self::guarded(fd);
        known.push((inode, Arc::downgrade(&made.0)));
        made
    }

    /// Whether its number still is its own.
    pub(crate) fn is_intact(&self) -> bool {
        match &*self.0 {
            Kind::Checked(fd) => fd.is_intact(),
            Kind::Guarded(fd) => fd.is_intact(),
        }
    }

    /// Whether this process made it ([`CheckedFd::is_own`]). One that children do not keep is theirs nowhere.
    pub(crate) fn is_own(&self) -> bool {
        match &*self.0 {
            Kind::Checked(fd) => fd.is_own(),
            Kind::Guarded(_) => true,
        }
    }

    /// Whether its number still is its own. For the data path: it notices within some milliseconds.
    ///
    /// # Errors
    /// [`Error::DescriptorsClosed`].
    pub fn ensure(&self) -> Result<(), Error> {
        match &*self.0 {
            Kind::Checked(fd) => fd.ensure(),
            Kind::Guarded(fd) => fd.ensure(),
        }
    }

    /// The descriptor, if it still is one of ours ([`SharedFd::ensure`]).
    pub fn intact(&self) -> Result<BorrowedFd<'_>, Error> {
        self.ensure()?;
        Ok(self.as_fd())
    }
}

impl AsFd for SharedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &*self.0 {
            Kind::Checked(fd) => fd.as_fd(),
            Kind::Guarded(fd) => fd.as_fd(),
        }
    }
}

impl AsRawFd for SharedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_that_the_process_has_already_takes_no_second_number() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let again = || OwnedFd::from(socket.try_clone().unwrap());
        let one = SharedFd::once(again());
        let number = one.as_raw_fd();
        let two = SharedFd::once(again());
        assert_eq!(two.as_raw_fd(), number);
        drop(one);
        two.ensure().unwrap();
        // The program closes it, and so it is not given to the next.
        let file = crate::checked_fd::tests::replace_by_file(&two);
        let three = SharedFd::once(again());
        assert_ne!(three.as_raw_fd(), number);
        drop((two, three));
        crate::checked_fd::tests::assert_untouched(file, number);
    }
}
