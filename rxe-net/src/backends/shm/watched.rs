//! A descriptor that an epoll descriptor watches for as long as it is held.
//!
//! Closing it would not be enough: epoll watches what a descriptor stands for, which stays while
//! anybody has it open, be it a forked child or the process that it came from. What nobody here can
//! read any more would then be reported readable for ever.

use rustix::event::epoll::EventFlags;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;

use crate::error::NetError;
use rxe_sys::Epoll;

#[derive(Debug)]
pub(super) struct Watched<T: AsFd> {
    fd: T,
    by: Epoll,
}

impl<T: AsFd> Watched<T> {
    /// `by` tells of it with this data.
    pub(super) fn new(fd: T, by: &Epoll, data: u64) -> Result<Self, NetError> {
        by.add(&fd, data, EventFlags::IN | EventFlags::RDHUP)?;
        Ok(Self { fd, by: by.clone() })
    }
}

impl<T: AsFd> Drop for Watched<T> {
    fn drop(&mut self) {
        self.by.delete(&self.fd);
    }
}

impl<T: AsFd> Deref for Watched<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fd
    }
}

impl<T: AsFd> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.fd
    }
}
