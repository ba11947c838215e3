//! A descriptor that is removed from an epoll descriptor when it is dropped.
//!
//! Closing the descriptor would not be enough: epoll watches the open file, which stays open while
//! any other process has it, such as a forked child or the process that passed the descriptor.
//! Epoll would then permanently report a file as readable that this process cannot read any more.

use rustix::event::epoll::EventFlags;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;

use crate::error::NetError;
use rxe_sys::Epoll;

/// A descriptor that is registered with an epoll descriptor until it is dropped.
#[derive(Debug)]
pub(super) struct Registered<T: AsFd> {
    fd: T,
    by: Epoll,
}

impl<T: AsFd> Registered<T> {
    /// Adds the descriptor to the epoll descriptor `by` with this data.
    pub(super) fn new(fd: T, by: &Epoll, data: u64) -> Result<Self, NetError> {
        by.add(&fd, data, EventFlags::IN | EventFlags::RDHUP)?;
        Ok(Self { fd, by: by.clone() })
    }
}

impl<T: AsFd> Drop for Registered<T> {
    fn drop(&mut self) {
        self.by.delete(&self.fd);
    }
}

impl<T: AsFd> Deref for Registered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fd
    }
}

impl<T: AsFd> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.fd
    }
}
