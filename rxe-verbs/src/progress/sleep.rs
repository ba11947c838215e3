//! Waiting without spinning: the thread that waits sleeps on the sockets itself. This avoids waking
//! it through the driver.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rxe_core::types::Time;
use rxe_sys::EventFd;

use super::Shard;
use super::policy::Interest;
use super::shard::RX_BUDGET;
use super::turn::Backlog;
use crate::error::{Error, Result};
use crate::os::until;

impl Shard {
    /// Sleeps until `done` returns a value, or until `deadline` (then returns `None`).
    ///
    /// `done` is called before every sleep. Before it returns `None` it must ensure that `fd`
    /// becomes readable when another thread makes a value available. What this thread itself
    /// completes need not make `fd` readable: this thread does not turn the engine between the last
    /// call of `done` and the sleep.
    ///
    /// # Errors
    /// The device has failed, or `done` returned an error.
    pub(crate) fn sleep<T>(
        &self,
        fd: &EventFd,
        deadline: Time,
        mut done: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.check_own()?;
        let mut waiting = Waiting::take(self);
        let mut fds = Vec::with_capacity(8);
        fds.push(PollFd::new(fd, PollFlags::IN));
        fds.extend(self.wakeups.sockets().map(|s| PollFd::new(s, PollFlags::IN)));
        let mut look = || match done()? {
            None => self.check().map(|()| None),
            found => Ok(found),
        };
        self.turn(RX_BUDGET)?;
        if let Some(host) = self.environment().simulation() {
            loop {
                if let Some(found) = look()? {
                    return Ok(Some(found));
                }
                if !host.advance(deadline) {
                    return look();
                }
            }
        }
        loop {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            if !waiting.leads {
                waiting.lead();
                // `lead` took the lock, and may have sent other threads' requests after it released
                // it.
                if let Some(found) = look()? {
                    return Ok(Some(found));
                }
            }
            let leads = waiting.leads;
            self.fail_on(self.wakeups.ensure().and_then(|()| Ok(fd.ensure()?)))?;
            rxe_sys::may_block("waiting for a completion");
            let left = until(deadline);
            let watched = if leads { &mut fds[..] } else { &mut fds[..1] };
            match poll(watched, left.as_ref()) {
                Ok(0) if self.environment().now() >= deadline => return look(),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::io("sleep in poll", e)),
            }
            if leads && fds[1..].iter().any(|fd| !fd.revents().is_empty()) {
                self.turn(RX_BUDGET)?;
            }
        }
    }
}

/// A waiting thread: the leader, which sleeps on the sockets, or a follower.
struct Waiting<'s> {
    shard: &'s Shard,
    leads: bool,
}

impl<'s> Waiting<'s> {
    fn take(shard: &'s Shard) -> Self {
        shard.with_lock(|core| core.watchers.enter());
        Self { shard, leads: false }
    }

    /// Becomes the leader, if there is none.
    fn lead(&mut self) {
        self.leads = self.shard.with_lock(|core| {
            let leads = core.watchers.lead();
            if leads && core.backlog != Backlog::Blocked {
                core.set_interest(&self.shard.wakeups, Interest::None);
            }
            leads
        });
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shard.with_lock(|core| {
            let blocked = core.backlog == Backlog::Blocked;
            let now = core.environment.now();
            if let Some(plan) = core.watchers.leave(self.leads, blocked, now) {
                self.shard.apply(core, plan);
            }
        });
    }
}

/// Wakes a waiting thread. Every thread has its own.
#[derive(Debug)]
pub(crate) struct Waker {
    fd: EventFd,
    /// Written after the descriptor is set, read before it is cleared. If `clear` misses a wake-up
    /// here, the descriptor stays readable, and the next wait sees it.
    set: AtomicBool,
}

thread_local! {
    static WAKER: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// Returns the calling thread's waker.
    pub(crate) fn current() -> Result<Arc<Self>> {
        let known = WAKER.try_with(|cell| cell.borrow().clone()).ok().flatten();
        // The program may have closed the descriptor, or this may be a forked child.
        if let Some(waker) = known.filter(|waker| waker.fd.is_intact()) {
            return Ok(waker);
        }
        let fd = Self::new_event()?;
        let waker = Arc::new(Self { fd, set: AtomicBool::new(false) });
        // While thread-local data is destroyed, the cell may be gone: then the waker serves this
        // call only.
        let _ = WAKER.try_with(|cell| cell.replace(Some(Arc::clone(&waker))));
        Ok(waker)
    }

    /// Creates the descriptor. If the process has reached its limit of descriptors, tries again for
    /// a second: another thread may hold the last one only briefly, for example while it accepts an
    /// offer of shared memory.
    fn new_event() -> Result<EventFd> {
        /// The number of tries and the pause between them.
        const TRIES: u32 = 1000;
        const PAUSE: Duration = Duration::from_millis(1);
        let mut made = EventFd::new().map_err(Error::from);
        for _ in 1..TRIES {
            if !made.as_ref().is_err_and(|e| e.errno() == libc::EMFILE) {
                break;
            }
            rxe_sys::may_block("waiting for a descriptor");
            thread::sleep(PAUSE);
            made = EventFd::new().map_err(Error::from);
        }
        made
    }

    /// Wakes the thread, unless it is the calling one: a thread that turns the engine checks
    /// afterwards anyway.
    pub(crate) fn wake(self: &Arc<Self>) {
        let own =
            WAKER.try_with(|cell| cell.borrow().as_ref().is_some_and(|own| Arc::ptr_eq(own, self)));
        if own != Ok(true) {
            self.fd.set();
            self.set.store(true, Ordering::Release);
        }
    }

    /// Returns the descriptor that is readable when the thread is woken.
    pub(crate) fn event(&self) -> &EventFd {
        &self.fd
    }

    /// Clears earlier wake-ups.
    pub(crate) fn clear(&self) {
        if self.set.swap(false, Ordering::Acquire) {
            self.fd.clear();
        }
    }
}
