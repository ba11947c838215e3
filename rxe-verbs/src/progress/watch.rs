//! The descriptors that the driver sleeps on: the backend's, a timer, one to wake it, and the one
//! that tells of changes of the interface.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::types::Time;
use rxe_net::{Backend, Epoll, EventFd, NetError, SharedFd, TimerFd};

use super::policy::Interest;
use crate::error::Result;

/// See the module's opening. What changes of it is in [`Armed`].
#[derive(Debug)]
pub(super) struct Watch {
    epoll: Epoll,
    timer: TimerFd,
    wake: Arc<EventFd>,
    /// The backend's.
    sockets: Vec<SharedFd>,
}

/// How the descriptors are set; kept under the shard's lock.
#[derive(Debug)]
pub(super) struct Armed {
    interest: Interest,
    /// When the timer goes off; [`Time::MAX`] if it is not set.
    timer: Time,
}

impl Default for Armed {
    fn default() -> Self {
        Self { interest: Interest::None, timer: Time::MAX }
    }
}

const SOCKET: u64 = 0;
const TIMER: u64 = 1;
const WAKE: u64 = 2;
const INTERFACE: u64 = 3;

/// What ended a sleep, beside packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Woken {
    /// The timer has gone off: [`Armed::timer_gone`] must be told.
    pub(super) timer: bool,
    /// The interface may have changed, or a thread that looks after it has woken the driver.
    pub(super) interface: bool,
}

impl Watch {
    pub(super) fn new(backend: &dyn Backend) -> Result<Self> {
        let mut sockets = Vec::new();
        backend.for_each_fd(&mut |fd| sockets.push(fd.clone()));
        let (epoll, timer, wake) = (Epoll::new()?, TimerFd::new()?, Arc::new(EventFd::new()?));
        epoll.add(&timer, TIMER, EventFlags::IN)?;
        epoll.add(&*wake, WAKE, EventFlags::IN)?;
        for socket in &sockets {
            epoll.add(socket, SOCKET, EventFlags::empty())?;
        }
        Ok(Self { epoll, timer, wake, sockets })
    }

    /// Also sleeps on this descriptor, which tells of changes of the interface.
    pub(super) fn add_interface(&self, fd: BorrowedFd<'_>) -> Result<()> {
        Ok(self.epoll.add(fd, INTERFACE, EventFlags::IN)?)
    }

    /// Sleeps.
    pub(super) fn sleep(&self) -> Result<Woken> {
        let mut events = [Epoll::NO_EVENT; 8];
        let count = self.epoll.wait(&mut events, None)?;
        let events = &events[..count];
        let has = |what| events.iter().any(|e| { e.data }.u64() == what);
        if has(WAKE) {
            self.wake.clear();
        }
        if has(TIMER) {
            self.timer.clear();
        }
        Ok(Woken { timer: has(TIMER), interface: has(INTERFACE) || has(WAKE) })
    }

    /// Whether [`Watch::wake`] reaches who sleeps: the program may have closed the descriptors.
    pub(super) fn can_wake(&self) -> bool {
        self.wake.is_intact()
    }

    /// The backend's descriptors, to sleep on.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &SharedFd> {
        self.sockets.iter()
    }

    /// Whether they are the backend's still.
    pub(super) fn ensure(&self) -> Result<(), NetError> {
        self.sockets.iter().try_for_each(SharedFd::ensure)
    }

    /// Whether a socket has something to receive.
    pub(super) fn has_input(&self) -> bool {
        if self.ensure().is_err() {
            return false;
        }
        let mut fds: Vec<_> = self.sockets.iter().map(|s| PollFd::new(s, PollFlags::IN)).collect();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// For whoever wakes the driver later.
    pub(super) fn waker(&self) -> Arc<EventFd> {
        Arc::clone(&self.wake)
    }

    /// Ends a sleep.
    pub(super) fn wake(&self) {
        self.wake.set();
    }
}

impl Armed {
    /// Makes the driver sleep on the sockets for this from now on, also if it sleeps already. To be
    /// called by `Core::set_interest` alone.
    pub(super) fn set_interest(&mut self, watch: &Watch, interest: Interest) {
        if std::mem::replace(&mut self.interest, interest) == interest {
            return;
        }
        let flags = match interest {
            Interest::None => EventFlags::empty(),
            Interest::Receive => EventFlags::IN,
            Interest::ReceiveAndSend => EventFlags::IN | EventFlags::OUT,
        };
        for socket in &watch.sockets {
            // It fails only where the program has closed them, which the next use notices.
            let _ = watch.epoll.modify(socket, SOCKET, flags);
        }
    }

    /// Wakes the driver at `at`, or earlier if it is set so.
    pub(super) fn set_timer(&mut self, watch: &Watch, at: Time) {
        if at < self.timer {
            self.timer = at;
            watch.timer.set(at);
        }
    }

    /// The timer has gone off.
    pub(super) fn timer_gone(&mut self) {
        self.timer = Time::MAX;
    }
}
