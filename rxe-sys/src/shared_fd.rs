//! A descriptor with several owners: one reads and writes, the others sleep until it is ready.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use crate::CheckedFd;
use crate::Error;
use crate::ForkGuarded;
use parking_lot::Mutex;

/// A descriptor with a high number, closed when its last clone is dropped. If the program has
/// closed the number, the descriptor is neither used nor closed any more, because the number may
/// refer to another file.
#[derive(Clone, Debug)]
pub struct SharedFd(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    Checked(CheckedFd),
    /// A descriptor that forked children do not keep.
    Guarded(ForkGuarded),
}

impl SharedFd {
    /// Takes ownership of a descriptor and moves it to a high number.
    pub fn new(fd: OwnedFd) -> Self {
        Self(Arc::new(Kind::Checked(CheckedFd::internal(fd))))
    }

    /// Takes ownership of a descriptor that forked children must not keep.
    pub fn guarded(fd: OwnedFd) -> Self {
        Self(Arc::new(Kind::Guarded(ForkGuarded::new(fd))))
    }

    /// Like [`SharedFd::guarded`], with one instance per socket. If this process already has a
    /// `SharedFd` for the same socket, returns a clone of that one.
    pub fn once(fd: OwnedFd) -> Self {
        /// The instances, by inode. Only `try_lock` is used: a forked child may find the lock held,
        /// with no thread that will release it.
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

    /// Returns whether the number is intact ([`CheckedFd::is_intact`]).
    pub(crate) fn is_intact(&self) -> bool {
        match &*self.0 {
            Kind::Checked(fd) => fd.is_intact(),
            Kind::Guarded(fd) => fd.is_intact(),
        }
    }

    /// Returns whether this process created the descriptor ([`CheckedFd::is_own`]). Always true for
    /// a guarded one, because children do not keep it.
    pub(crate) fn is_own(&self) -> bool {
        match &*self.0 {
            Kind::Checked(fd) => fd.is_own(),
            Kind::Guarded(_) => true,
        }
    }

    /// Checks that the number is intact. For the data path: a change is noticed within some
    /// milliseconds.
    ///
    /// # Errors
    /// [`Error::DescriptorsClosed`] if it is not.
    pub fn ensure(&self) -> Result<(), Error> {
        match &*self.0 {
            Kind::Checked(fd) => fd.ensure(),
            Kind::Guarded(fd) => fd.ensure(),
        }
    }

    /// Returns the descriptor if its number is intact ([`SharedFd::ensure`]).
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
        // The program closes the number, so the next call creates a new instance.
        let file = crate::checked_fd::tests::replace_by_file(&two);
        let three = SharedFd::once(again());
        assert_ne!(three.as_raw_fd(), number);
        drop((two, three));
        crate::checked_fd::tests::assert_untouched(file, number);
    }
}
