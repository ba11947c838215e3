//! A descriptor that an epoll descriptor watches for as long as it is held.
//!
//! Closing it would not be enough: epoll watches what a descriptor stands for, which stays while
//! anybody has it open, be it a forked child or the process that it came from. What nobody here can
//! read any more would then be reported readable for ever.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::sys::checked_fd::CheckedFd;

#[derive(Debug)]
pub(super) struct Watched<T: AsFd> {
    fd: T,
    by: Arc<CheckedFd>,
}

impl<T: AsFd> Watched<T> {
    pub(super) fn new(fd: T, by: &Arc<CheckedFd>) -> io::Result<Self> {
        watch(by, &fd)?;
        Ok(Self { fd, by: Arc::clone(by) })
    }
}

impl<T: AsFd> Drop for Watched<T> {
    fn drop(&mut self) {
        // It was added, so this does not fail.
        let _ = epoll::delete(&*self.by, &self.fd);
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

/// Watches a descriptor that lives as long as the epoll descriptor does.
pub(super) fn watch(epoll: &CheckedFd, fd: &impl AsFd) -> io::Result<()> {
    let flags = EventFlags::IN | EventFlags::RDHUP;
    Ok(epoll::add(epoll, fd, EventData::new_u64(0), flags)?)
}
