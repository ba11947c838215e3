//! The descriptors that the driver sleeps on: the backend's, a timer, one to wake it, and the one
//! that tells of changes of the interface.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rxe_core::types::Time;
use rxe_net::{Backend, EventFd, TimerFd};

use super::policy::Interest;
use crate::error::{Error, Result};

/// See the module's opening. What changes of it is in [`Armed`].
#[derive(Debug)]
pub(super) struct Watch {
    epoll: OwnedFd,
    timer: TimerFd,
    wake: EventFd,
    /// The backend's, in copies of our own.
    pub(super) sockets: Vec<OwnedFd>,
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
    /// The interface may have changed.
    pub(super) interface: bool,
}

impl Watch {
    pub(super) fn new(backend: &dyn Backend) -> Result<Self> {
        let mut sockets = Vec::new();
        let mut failed = None;
        backend.for_each_fd(&mut |fd| match fd.try_clone_to_owned() {
            Ok(fd) => sockets.push(fd),
            Err(e) => failed = Some(e),
        });
        if let Some(e) = failed {
            return Err(Error::io("copy a socket's descriptor", e));
        }
        let watch = Self {
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(cannot)?,
            timer: TimerFd::new()?,
            wake: EventFd::new()?,
            sockets,
        };
        let add = |fd: &dyn AsFd, data, flags| {
            epoll::add(&watch.epoll, fd.as_fd(), EventData::new_u64(data), flags).map_err(cannot)
        };
        add(&watch.timer, TIMER, EventFlags::IN)?;
        add(&watch.wake, WAKE, EventFlags::IN)?;
        for socket in &watch.sockets {
            add(socket, SOCKET, EventFlags::empty())?;
        }
        Ok(watch)
    }

    /// Also sleeps on this descriptor, which tells of changes of the interface.
    pub(super) fn add_interface(&self, fd: BorrowedFd<'_>) -> Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(INTERFACE), EventFlags::IN).map_err(cannot)
    }

    /// Sleeps.
    pub(super) fn sleep(&self) -> Result<Woken> {
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 8];
        let events = match epoll::wait(&self.epoll, &mut events[..], None) {
            Ok(n) => &events[..n],
            Err(Errno::INTR) => &[],
            Err(e) => return Err(Error::io("sleep in epoll", e)),
        };
        let has = |what| events.iter().any(|e| { e.data }.u64() == what);
        if has(WAKE) {
            self.wake.clear();
        }
        if has(TIMER) {
            self.timer.clear();
        }
        Ok(Woken { timer: has(TIMER), interface: has(INTERFACE) })
    }

    /// Whether [`Watch::wake`] reaches who sleeps: the program may have closed the descriptors.
    pub(super) fn can_wake(&self) -> bool {
        self.wake.is_intact()
    }

    /// Whether a socket has something to receive.
    pub(super) fn has_input(&self) -> bool {
        let mut fds: Vec<_> = self.sockets.iter().map(|s| PollFd::new(s, PollFlags::IN)).collect();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
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
            // The descriptors are ours and were added, so this does not fail.
            let _ = epoll::modify(&watch.epoll, socket, EventData::new_u64(SOCKET), flags);
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

fn cannot(e: Errno) -> Error {
    Error::io("make an epoll descriptor", e)
}
