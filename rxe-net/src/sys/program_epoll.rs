//! An epoll descriptor that the program sees: it sleeps on it, and may set its flags.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::checked_fd::CheckedFd;
use crate::NetError;

/// Readable while the one descriptor that it watches is. Its number is one that select(2) takes, above
/// those that the program opens itself. A program that has closed everything may get it again. If it opens
/// an epoll descriptor of its own there, only what that watches tells the two apart: this is looked at
/// before the number is closed.
#[derive(Debug)]
pub struct ProgramEpoll {
    fd: CheckedFd,
    /// What goes with the events of the descriptor that it watches; 0 while it watches none.
    mark: AtomicU64,
}

/// No program uses numbers like these for its events: addresses and descriptors are smaller.
static NEXT_MARK: AtomicU64 = AtomicU64::new(0x7278_655f_0000_0001);

impl ProgramEpoll {
    /// One that watches nothing yet.
    ///
    /// # Errors
    /// The process or the system has no descriptor left.
    pub fn new() -> Result<Self, NetError> {
        let fd = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|e| NetError::os("make an epoll descriptor", e))?;
        Ok(Self { fd: CheckedFd::seen(fd), mark: AtomicU64::new(0) })
    }

    /// Watches this one; to be called once.
    ///
    /// # Errors
    /// The system has no memory left, or this was closed.
    pub fn watch(&self, fd: impl AsFd) -> Result<(), NetError> {
        self.ensure()?;
        let mark = NEXT_MARK.fetch_add(1, Ordering::Relaxed);
        epoll::add(&self.fd, fd, EventData::new_u64(mark), EventFlags::IN)
            .map_err(|e| NetError::os("watch a descriptor", e))?;
        self.mark.store(mark, Ordering::Relaxed);
        Ok(())
    }

    /// Refuses to use a number that the program has closed, and perhaps opened anew.
    ///
    /// # Errors
    /// [`NetError::DescriptorsClosed`].
    pub fn ensure(&self) -> Result<(), NetError> {
        self.fd.ensure()
    }

    /// Whether `other` is a duplicate of this descriptor: what one watches, the other cannot be told to
    /// watch.
    pub fn is(&self, other: BorrowedFd<'_>) -> bool {
        let Ok(probe) = eventfd(0, EventfdFlags::CLOEXEC) else { return false };
        let watch = |fd| epoll::add(fd, &probe, EventData::new_u64(0), EventFlags::empty());
        if self.ensure().is_err() || watch(self.fd.as_fd()).is_err() {
            return false;
        }
        let added = watch(other);
        if added.is_ok() {
            let _ = epoll::delete(other, &probe);
        }
        let _ = epoll::delete(&self.fd, &probe);
        added == Err(Errno::EXIST)
    }

    /// Whether it watches what it was told to, as far as the system tells.
    fn watches_its_own(&self) -> bool {
        let path = format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd());
        let Ok(info) = fs::read_to_string(path) else { return true };
        let mark = self.mark.load(Ordering::Relaxed);
        let mut marks = info.lines().filter_map(watched);
        if mark == 0 { marks.next().is_none() } else { marks.any(|found| found == mark) }
    }
}

/// What goes with the events of a watched descriptor: `tfd: 5 events: 19 data: 7278655f00000001 …`.
fn watched(line: &str) -> Option<u64> {
    let mut words = line.strip_prefix("tfd:")?.split_ascii_whitespace();
    words.find(|word| *word == "data:")?;
    u64::from_str_radix(words.next()?, 16).ok()
}

impl Drop for ProgramEpoll {
    fn drop(&mut self) {
        if !self.watches_its_own() {
            self.fd.give_up();
        }
    }
}

impl AsFd for ProgramEpoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for ProgramEpoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;
    use crate::EventFd;

    /// Puts an epoll descriptor of the program in its place; whether dropping it leaves that open.
    fn leaves_open(ours: ProgramEpoll, watches: bool) -> bool {
        let event = EventFd::new().unwrap();
        let programs = epoll::create(CreateFlags::CLOEXEC).unwrap();
        if watches {
            epoll::add(&programs, &event, EventData::new_u64(7), EventFlags::IN).unwrap();
        }
        let number = ours.as_raw_fd();
        // SAFETY: its owner copes with this.
        #[expect(unsafe_code, reason = "does to a descriptor what its owner would not")]
        let rc = unsafe { libc::dup3(programs.as_raw_fd(), number, libc::O_CLOEXEC) };
        assert_eq!(rc, number);
        drop(ours);
        let open = fs::read_link(format!("/proc/self/fd/{number}")).is_ok();
        if open {
            // SAFETY: nobody owns it any more.
            #[expect(unsafe_code, reason = "as above")]
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
        open
    }

    #[test]
    fn the_program_s_own_under_the_same_number_stays_open() {
        let event = EventFd::new().unwrap();
        let ours = || {
            let ours = ProgramEpoll::new().unwrap();
            ours.watch(&event).unwrap();
            ours
        };
        assert!(leaves_open(ours(), true) && leaves_open(ours(), false));
        assert!(leaves_open(ProgramEpoll::new().unwrap(), true), "it has watched nothing");
        let own = ours();
        let number = own.as_raw_fd();
        drop(own);
        assert!(fs::read_link(format!("/proc/self/fd/{number}")).is_err());
    }

    #[test]
    fn its_number_is_above_the_program_s_and_one_that_select_takes() {
        let ours = ProgramEpoll::new().unwrap();
        assert!((256..1024).contains(&ours.as_raw_fd()), "{ours:?}");
    }

    #[test]
    fn a_duplicate_is_told_from_another() {
        let (one, other) = (ProgramEpoll::new().unwrap(), ProgramEpoll::new().unwrap());
        let duplicate = rustix::io::dup(&one).unwrap();
        let file = fs::File::open("/dev/null").unwrap();
        assert!(one.is(duplicate.as_fd()) && one.is(one.as_fd()));
        assert!(!other.is(duplicate.as_fd()) && !one.is(file.as_fd()));
        // Nothing is left in them, so that each still watches its own.
        let watched = EventFd::new().unwrap();
        one.watch(&watched).unwrap();
        assert!(one.is(duplicate.as_fd()) && one.watches_its_own() && other.watches_its_own());
    }
}
