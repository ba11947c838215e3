//! Waiting without spinning: the thread that waits sleeps on the sockets itself, which saves a
//! hand-over from the driver.

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
use super::shard::BUDGET;
use super::turn::Backlog;
use crate::error::{Error, Result};
use crate::os::until;

impl Shard {
    /// Sleeps until `done` has something, or until `deadline` (then `None`).
    ///
    /// `done` is asked before every sleep; before it says "nothing yet" it must have seen to it that
    /// `fd` becomes readable when another thread changes that. What this thread itself completes need
    /// not make it readable, so between the last time that `done` is asked and the sleep this thread
    /// turns nothing.
    ///
    /// # Errors
    /// The device has failed; `done` has.
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
        self.turn(BUDGET)?;
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
                // It has held the lock, and then served doorbells that were rung meanwhile.
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
                self.turn(BUDGET)?;
            }
        }
    }
}

/// A thread that waits: the leader, which sleeps on the sockets, or a follower.
struct Waiting<'s> {
    shard: &'s Shard,
    leads: bool,
}

impl<'s> Waiting<'s> {
    fn take(shard: &'s Shard) -> Self {
        shard.bare(|core| core.watchers.enter());
        Self { shard, leads: false }
    }

    /// Becomes the leader if there is none.
    fn lead(&mut self) {
        self.leads = self.shard.bare(|core| {
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
        self.shard.bare(|core| {
            let blocked = core.backlog == Backlog::Blocked;
            let now = core.environment.now();
            if let Some(plan) = core.watchers.leave(self.leads, blocked, now) {
                self.shard.apply(core, plan);
            }
        });
    }
}

/// How a thread that waits is woken: every thread has one.
#[derive(Debug)]
pub(crate) struct Waker {
    fd: EventFd,
    /// Written after the descriptor, read before it: a wake-up that this does not show yet leaves
    /// the descriptor readable, and so is seen the next time.
    set: AtomicBool,
}

thread_local! {
    static WAKER: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// The calling thread's.
    pub(crate) fn current() -> Result<Arc<Self>> {
        let known = WAKER.try_with(|cell| cell.borrow().clone()).ok().flatten();
        // The program may have closed it, and opened a device after that; or this is a forked child.
        if let Some(waker) = known.filter(|waker| waker.fd.is_intact()) {
            return Ok(waker);
        }
        let fd = Self::new_event()?;
        let waker = Arc::new(Self { fd, set: AtomicBool::new(false) });
        // In a destructor of thread-local data the thread's own may be gone: then this is for one call.
        let _ = WAKER.try_with(|cell| cell.replace(Some(Arc::clone(&waker))));
        Ok(waker)
    }

    /// Makes the descriptor. If the process may open no more, another thread may have the last one only for a
    /// moment, as for a process that has connected to offer shared memory: for long, if the machine gives that
    /// thread no time. So it is tried for a second.
    fn new_event() -> Result<EventFd> {
        /// How often, and after which pauses.
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

    /// Wakes the thread, unless it is this one: who turns the engine looks afterwards anyway.
    pub(crate) fn wake(self: &Arc<Self>) {
        let own =
            WAKER.try_with(|cell| cell.borrow().as_ref().is_some_and(|own| Arc::ptr_eq(own, self)));
        if own != Ok(true) {
            self.fd.set();
            self.set.store(true, Ordering::Release);
        }
    }

    /// Readable when the thread is woken.
    pub(crate) fn event(&self) -> &EventFd {
        &self.fd
    }

    /// Forgets wake-ups until now.
    pub(crate) fn clear(&self) {
        if self.set.swap(false, Ordering::Acquire) {
            self.fd.clear();
        }
    }
}
