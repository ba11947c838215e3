//! An event descriptor (eventfd(2)) with which one process wakes another that sleeps.
//!
//! O_NONBLOCK decides whether a read or a write of an eventfd blocks. It is a flag of the open file
//! description, which all processes that have received the descriptor share: any of them can clear
//! the flag at any time. So reads here request non-blocking operation with each call, and a
//! descriptor whose flag was cleared is not written to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::ring::Broken;
use rxe_sys::CheckedFd;

/// A wake-up descriptor: readable from [`WakeUp::signal`] until [`WakeUp::clear`].
#[derive(Debug)]
pub(super) struct WakeUp(CheckedFd);

impl WakeUp {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(CheckedFd::internal(eventfd(0, flags)?)))
    }

    /// Accepts a wake-up that another process has created with [`Self::new`]. Another kind of
    /// descriptor could block a read indefinitely, or be readable permanently.
    pub(super) fn adopt(fd: CheckedFd) -> io::Result<Self> {
        let what = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if what.as_os_str() != "anon_inode:[eventfd]" || !is_nonblocking(&fd) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self(fd.into_internal()))
    }

    /// Makes the descriptor readable.
    ///
    /// # Errors
    /// Another process has made the descriptor blocking, so a write could block if that process has
    /// also filled the counter. Or the program has closed it.
    pub(super) fn signal(&self) -> Result<(), Broken> {
        if !self.0.is_intact() || !is_nonblocking(&self.0) {
            return Err(Broken);
        }
        // The write fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        Ok(())
    }

    /// Makes the descriptor unreadable. Returns whether it was readable.
    pub(super) fn clear(&self) -> bool {
        if !self.0.is_intact() {
            return false;
        }
        let mut count = [0; 8];
        let mut parts = [io::IoSliceMut::new(&mut count)];
        // `preadv2` takes -1 as the offset of a descriptor without a position.
        match rustix::io::preadv2(&self.0, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT) {
            Ok(_) => true,
            // `RWF_NOWAIT` works on an eventfd since Linux 5.8. Before, the flag of the description
            // must be set.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                is_nonblocking(&self.0) && rustix::io::read(&self.0, &mut count).is_ok()
            }
            Err(_) => false,
        }
    }

    /// Makes the descriptor blocking, with the largest counter: one more write would block.
    #[cfg(test)]
    pub(super) fn spoil(&self) {
        rustix::fs::fcntl_setfl(&self.0, OFlags::empty()).unwrap();
        self.clear();
        rustix::io::write(&self.0, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_nonblocking(fd: &impl AsFd) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

#[cfg(test)]
mod tests {
    use rustix::fs::fcntl_setfl;

    use super::*;

    #[test]
    fn it_is_readable_from_a_signal_until_it_is_cleared() {
        let wake = WakeUp::new().unwrap();
        assert!(!wake.clear());
        wake.signal().unwrap();
        wake.signal().unwrap();
        assert!(wake.clear() && !wake.clear());
    }

    /// Without the check, the number was closed twice, which ends the process in a debug build.
    #[test]
    fn one_that_the_program_has_closed_meanwhile_is_refused() {
        let own = WakeUp::new().unwrap();
        // A number so high that nothing else in this process gets it.
        let fd = CheckedFd::new(rustix::io::fcntl_dupfd_cloexec(&own, 900).unwrap());
        // SAFETY: every later user of the number first checks whether it is open.
        unsafe { rustix::io::close(fd.as_raw_fd()) };
        assert!(WakeUp::adopt(fd).is_err());
    }

    #[test]
    fn one_that_another_holder_made_blocking_blocks_nobody() {
        let own = WakeUp::new().unwrap();
        let others = WakeUp(CheckedFd::new(own.as_fd().try_clone_to_owned().unwrap()));
        fcntl_setfl(&others, OFlags::empty()).unwrap();
        assert!(!own.clear(), "a read would wait for ever");
        others.spoil();
        assert_eq!(own.signal(), Err(Broken));
        assert!(own.clear() && !own.clear());
    }
}
