//! An event descriptor: readable while it is set. eventfd(2).

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::CheckedFd;
use crate::Error;

/// An event descriptor. It wakes whoever sleeps on it, from any thread.
///
/// Nothing is read from or written into what the program may have opened under its number: each
/// call looks first (fstat, about 0.1 µs beside the 0.3 µs of the call itself).
///
/// A forked child shares it with its parent. What the child sets or clears changes nothing, so that it may drop
/// what it has inherited.
#[derive(Debug)]
pub struct EventFd {
    fd: CheckedFd,
    /// Reading it may block.
    of_program: bool,
}

impl EventFd {
    /// One that is not set. Its number is high: whatever the program opens when it has closed all
    /// would otherwise get it, and nothing tells two event descriptors apart.
    ///
    /// # Errors
    /// The process or the system has no descriptor left.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { fd: CheckedFd::internal(make(EventfdFlags::NONBLOCK)?), of_program: false })
    }

    /// One that the program sees, as a kernel's device would give it: a `read` blocks until it is set, unless the
    /// program sets O_NONBLOCK. Its number is one that select(2) takes, above those that the program opens
    /// itself.
    ///
    /// # Errors
    /// As [`EventFd::new`].
    pub fn of_program() -> Result<Self, Error> {
        Ok(Self { fd: CheckedFd::seen(make(EventfdFlags::empty())?), of_program: true })
    }

    /// Makes it readable.
    pub fn set(&self) {
        if self.is_intact() {
            // It fails only if the counter is full: then it is readable anyway.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Makes it not readable. Does not block, even if another thread reads it in this moment.
    pub fn clear(&self) {
        if !self.is_intact() {
            return;
        }
        // Reading fails with EAGAIN if it is not readable.
        if !self.of_program {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        } else if !matches!(read_now(&self.fd), Ok(_) | Err(Errno::AGAIN)) {
            read_as_nonblocking(&self.fd);
        }
    }

    /// Refuses to sleep on what the program may have opened under its number.
    ///
    /// # Errors
    /// [`Error::DescriptorsClosed`].
    pub fn ensure(&self) -> Result<(), Error> {
        self.fd.ensure()
    }

    /// Whether this process made it and nobody has closed it, or nothing tells so: what the program opens under
    /// its number is known by its inode, unless it is another event, timer or epoll descriptor.
    pub fn is_intact(&self) -> bool {
        self.fd.is_own() && self.fd.is_intact()
    }
}

/// Reads without blocking, whatever the flags of the descriptor (Linux 5.8).
fn read_now(fd: &CheckedFd) -> rustix::io::Result<usize> {
    /// The descriptor has no position.
    const NO_OFFSET: u64 = u64::MAX;
    let mut count = [0; 8];
    preadv2(fd, &mut [IoSliceMut::new(&mut count)], NO_OFFSET, ReadWriteFlags::NOWAIT)
}

/// The same on older kernels. A thread of the program that begins to read in this moment fails with EAGAIN.
fn read_as_nonblocking(fd: &CheckedFd) {
    let Ok(flags) = fcntl_getfl(fd) else { return };
    if fcntl_setfl(fd, flags | OFlags::NONBLOCK).is_ok() {
        let _ = rustix::io::read(fd, &mut [0; 8]);
        let _ = fcntl_setfl(fd, flags);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn make(flags: EventfdFlags) -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | flags).map_err(|e| Error::os("make an event descriptor", e))
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::checked_fd::tests::{assert_untouched, replace_by_file};

    fn readable(event: &EventFd) -> bool {
        let now = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        poll(&mut [PollFd::new(event, PollFlags::IN)], now).unwrap() == 1
    }

    fn both() -> [EventFd; 2] {
        [EventFd::new().unwrap(), EventFd::of_program().unwrap()]
    }

    #[test]
    fn it_is_readable_while_it_is_set() {
        for event in both() {
            assert!(!readable(&event));
            event.set();
            event.set();
            assert!(readable(&event));
            event.clear();
            assert!(!readable(&event));
            // It does not block.
            event.clear();
        }
    }

    #[test]
    fn it_is_cleared_without_blocking_by_an_old_kernel_too() {
        let event = EventFd::of_program().unwrap();
        event.set();
        read_as_nonblocking(&event.fd);
        assert!(!readable(&event));
        read_as_nonblocking(&event.fd);
        assert!(!fcntl_getfl(&event).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn the_program_s_number_is_above_its_own_and_one_that_select_takes() {
        let event = EventFd::of_program().unwrap();
        assert!((256..1024).contains(&event.as_raw_fd()), "{event:?}");
    }

    #[test]
    fn a_forked_child_changes_nothing_of_its_parent_s() {
        for (event, unset) in both().into_iter().zip(both()) {
            event.set();
            let mut own = Some((event, unset));
            // SAFETY: the child only calls what follows, and ends.
            #[expect(unsafe_code, reason = "a child without exec")]
            let status = unsafe {
                let child = libc::fork();
                if child == 0 {
                    let (event, unset) = own.take().unwrap();
                    event.clear();
                    unset.set();
                    drop((event, unset));
                    libc::_exit(0);
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status
            };
            assert_eq!(status, 0);
            let (event, unset) = own.unwrap();
            assert!(readable(&event) && !readable(&unset));
        }
    }

    #[test]
    fn nothing_is_written_into_a_file_of_the_program() {
        let event = EventFd::new().unwrap();
        let number = event.as_raw_fd();
        let file = replace_by_file(&event);
        event.set();
        event.clear();
        drop(event);
        assert_untouched(file, number);
    }
}
