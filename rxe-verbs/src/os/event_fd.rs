//! A descriptor that is readable while it is set.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use crate::error::{Error, Result};

/// See eventfd(2).
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(|e| Error::io("make an event descriptor", e))
    }

    /// Makes it readable. Cannot fail but for a full counter, which is readable too.
    pub(crate) fn set(&self) {
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it not readable.
    pub(crate) fn clear(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
