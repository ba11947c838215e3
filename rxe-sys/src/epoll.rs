//! An epoll descriptor. epoll(7).

use std::os::fd::AsFd;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::Error;
use crate::SharedFd;
use crate::may_block;

/// An epoll descriptor. It is readable while a descriptor in its interest list is ready.
///
/// Every call first checks that the number still belongs to this descriptor ([`SharedFd::ensure`]),
/// because the program may have opened a file under it.
#[derive(Clone, Debug)]
pub struct Epoll(SharedFd);

impl Epoll {
    /// Creates an epoll descriptor with an empty interest list and a high number. A forked child
    /// does not keep it, because changes by the child would apply to the parent's list.
    ///
    /// # Errors
    /// The process or the host has no free descriptor.
    pub fn new() -> Result<Self, Error> {
        let made = epoll::create(CreateFlags::CLOEXEC);
        made.map(|fd| Self(SharedFd::guarded(fd)))
            .map_err(|e| Error::os("make an epoll descriptor", e))
    }

    /// Adds a descriptor to the interest list. `data` is returned with its events.
    ///
    /// # Errors
    /// The descriptor is in the list already, the kernel has no memory, or the program has closed
    /// this epoll descriptor.
    pub fn add(&self, fd: impl AsFd, data: u64, flags: EventFlags) -> Result<(), Error> {
        self.0.ensure()?;
        epoll::add(&self.0, fd, EventData::new_u64(data), flags)
            .map_err(|e| Error::os("watch a descriptor", e))
    }

    /// Changes the events that a descriptor in the interest list is watched for.
    ///
    /// # Errors
    /// The descriptor is not in the list, or the program has closed this epoll descriptor.
    pub fn modify(&self, fd: impl AsFd, data: u64, flags: EventFlags) -> Result<(), Error> {
        self.0.ensure()?;
        epoll::modify(&self.0, fd, EventData::new_u64(data), flags)
            .map_err(|e| Error::os("watch a descriptor", e))
    }

    /// Watches a descriptor for input, and for room to write if `on`. `watches_room` holds the
    /// current setting and is updated; the data of the events becomes 0.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
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

    /// Removes a descriptor from the interest list, if it is there.
    pub fn delete(&self, fd: impl AsFd) {
        if self.0.ensure().is_ok() {
            let _ = epoll::delete(&self.0, fd);
        }
    }

    /// The longest sleep of a thread that no timer wakes. If the program closes all descriptors, no
    /// event wakes the thread any more; after this time it checks its descriptors and ends.
    pub const LONGEST_SLEEP: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

    /// Waits for events and returns their number. A signal ends the wait with 0 events.
    ///
    /// # Errors
    /// The program has closed this epoll descriptor.
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

    /// Returns whether a descriptor that was added with this data is ready, or may be.
    pub fn has(&self, data: u64) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [Self::NO_EVENT; 16];
        let ready = self.wait(&mut events, Some(&at_once)).unwrap_or(0);
        // A full array may have left out further events.
        ready == events.len() || events[..ready].iter().any(|e| { e.data }.u64() == data)
    }

    /// An empty event, to initialise arrays for [`Epoll::wait`].
    pub const NO_EVENT: Event = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
}
