//! An epoll descriptor. epoll(7).

use std::os::fd::AsFd;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::Error;
use crate::SharedFd;
use crate::may_block;

/// An epoll descriptor. It is readable while a descriptor that it watches is ready.
///
/// Every call first checks that the number still belongs to this descriptor ([`SharedFd::ensure`]), because the
/// program may have opened a file under it.
#[derive(Clone, Debug)]
pub struct Epoll(SharedFd);

impl Epoll {
    /// One that watches nothing. Its number is high. A forked child does not keep it: what that
    /// would add or delete would be the parent's.
    ///
    /// # Errors
    /// The process or the system has no descriptor left.
    pub fn new() -> Result<Self, Error> {
        let made = epoll::create(CreateFlags::CLOEXEC);
        made.map(|fd| Self(SharedFd::guarded(fd)))
            .map_err(|e| Error::os("make an epoll descriptor", e))
    }

    /// Watches one more.
    ///
    /// # Errors
    /// It is watched already, or the system has no memory left, or this was closed.
    pub fn add(&self, fd: impl AsFd, data: u64, flags: EventFlags) -> Result<(), Error> {
        self.0.ensure()?;
        epoll::add(&self.0, fd, EventData::new_u64(data), flags)
            .map_err(|e| Error::os("watch a descriptor", e))
    }

    /// Watches one for something else.
    ///
    /// # Errors
    /// It is not watched, or this was closed.
    pub fn modify(&self, fd: impl AsFd, data: u64, flags: EventFlags) -> Result<(), Error> {
        self.0.ensure()?;
        epoll::modify(&self.0, fd, EventData::new_u64(data), flags)
            .map_err(|e| Error::os("watch a descriptor", e))
    }

    /// Watches one that is watched for input also for room to write, or for input alone. `watches_room` is
    /// what it was watched for, and changes with it.
    ///
    /// # Errors
    /// As for [`modify`](Self::modify).
    pub fn watch_room(
        &self,
        fd: impl AsFd,
        on: bool,
        watches_room: &mut bool,
    ) -> Result<(), Error> {
        if on != *watches_room {
            let room = if on { EventFlags::OUT } else { EventFlags::empty() };
            self.modify(fd, 0, EventFlags::IN | room)?;
            *watches_room = on;
        }
        Ok(())
    }

    /// Watches one no more, if it does.
    pub fn delete(&self, fd: impl AsFd) {
        if self.0.ensure().is_ok() {
            let _ = epoll::delete(&self.0, fd);
        }
    }

    /// The longest sleep of a thread that no timer wakes. If the program has closed all descriptors, no event
    /// wakes the thread any more; after this time it checks its descriptors, and ends.
    pub const LONGEST_SLEEP: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

    /// Waits until something is ready; how many events there are. A signal ends it too.
    ///
    /// # Errors
    /// It was closed.
    pub fn wait(&self, events: &mut [Event], timeout: Option<&Timespec>) -> Result<usize, Error> {
        if timeout.is_none_or(|t| *t != Timespec::default()) {
            may_block("sleeping in epoll");
        }
        self.0.ensure()?;
        match epoll::wait(&self.0, events, timeout) {
            Err(Errno::INTR) => Ok(0),
            waited => waited.map_err(|e| Error::os("sleep in epoll", e)),
        }
    }

    /// Returns the descriptor, to share it with threads that sleep on it.
    pub fn shared(&self) -> &SharedFd {
        &self.0
    }

    /// Whether something is ready that was added with this data, or may be.
    pub fn has(&self, data: u64) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [Self::NO_EVENT; 16];
        let ready = self.wait(&mut events, Some(&at_once)).unwrap_or(0);
        // There may be more than these.
        ready == events.len() || events[..ready].iter().any(|e| { e.data }.u64() == data)
    }

    /// Room for an event.
    pub const NO_EVENT: Event = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
}
