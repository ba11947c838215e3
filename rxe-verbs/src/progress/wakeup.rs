//! The descriptors that wake the driver: the backend's, a timer, which other threads also use to
//! wake the driver, and one that reports changes of the interface.

use std::array;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::types::Time;
use rxe_net::{Backend, NetError};
use rxe_sys::{Epoll, SharedFd, TimerFd};

use super::policy::Interest;
use crate::error::Result;
use crate::os::{Environment, Simulation};

/// The descriptors that wake a driver. [`WakeupState`] holds how they are set at present.
#[derive(Debug)]
pub(super) struct Wakeups {
    /// `None` in a simulation, where no thread sleeps.
    epoll: Option<Epoll>,
    wakeup: Arc<Wakeup>,
    /// The backend's descriptors.
    sockets: Vec<SharedFd>,
}

/// Wakes the driver, immediately or at a given time.
#[derive(Debug)]
pub(crate) struct Wakeup {
    timer: WakeupTimer,
    /// The timer was set to fire immediately, and must not be postponed. Written before the timer
    /// is set for that, and read after the timer is set for another time, so no wake-up is lost.
    now: AtomicBool,
}

/// The timer behind a [`Wakeup`].
enum WakeupTimer {
    Descriptor(TimerFd),
    Simulated(Arc<dyn Simulation>),
}

/// The current setting of the descriptors; kept under the shard's lock.
#[derive(Debug)]
pub(super) struct WakeupState {
    interest: Interest,
    /// When the timer fires; [`Time::MAX`] if it is not set.
    timer: Time,
    /// The earliest time passed to [`WakeupState::set_timer`] since the timer last fired.
    deadline: Time,
    /// When waiting posts leave at the latest, as last requested.
    posts: Time,
}

impl Default for WakeupState {
    fn default() -> Self {
        let never = Time::MAX;
        Self { interest: Interest::None, timer: never, deadline: never, posts: never }
    }
}

const SOCKET: u64 = 0;
const TIMER: u64 = 1;
const INTERFACE: u64 = 2;

/// The reasons other than packets that ended a sleep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WokenBy {
    /// The timer has fired: [`WakeupState::timer_fired`] must be called.
    pub(super) timer: bool,
    /// The interface may have changed, or [`Wakeup::wake`] was called.
    pub(super) interface: bool,
}

impl Wakeups {
    pub(super) fn new(backend: &dyn Backend, environment: &Environment) -> Result<Self> {
        if let Environment::Simulated(host) = environment {
            let wakeup = Wakeup::new(WakeupTimer::Simulated(Arc::clone(host)));
            return Ok(Self { epoll: None, wakeup: Arc::new(wakeup), sockets: Vec::new() });
        }
        let mut sockets = Vec::new();
        backend.for_each_fd(&mut |fd| sockets.push(fd.clone()));
        let epoll = Epoll::new()?;
        let timer = TimerFd::new()?;
        epoll.add(&timer, TIMER, EventFlags::IN)?;
        for socket in &sockets {
            epoll.add(socket, SOCKET, EventFlags::empty())?;
        }
        let wakeup = Wakeup::new(WakeupTimer::Descriptor(timer));
        Ok(Self { epoll: Some(epoll), wakeup: Arc::new(wakeup), sockets })
    }

    /// Adds a descriptor that reports changes of the interface.
    pub(super) fn add_interface(&self, fd: BorrowedFd<'_>) -> Result<()> {
        match &self.epoll {
            Some(epoll) => Ok(epoll.add(fd, INTERFACE, EventFlags::IN)?),
            None => Ok(()),
        }
    }

    /// Sleeps until a descriptor is ready, for [`Epoll::LONGEST_SLEEP`] at most. Not for a
    /// simulation.
    pub(super) fn sleep(&self) -> Result<WokenBy> {
        let Some(epoll) = &self.epoll else { return Ok(WokenBy::default()) };
        let mut events = [Epoll::NO_EVENT; 8];
        let count = epoll.wait(&mut events, Some(&Epoll::LONGEST_SLEEP))?;
        let events = &events[..count];
        let has = |what| events.iter().any(|e| { e.data }.u64() == what);
        let timer = has(TIMER);
        let woken = timer && self.wakeup.clear();
        Ok(WokenBy { timer, interface: has(INTERFACE) || woken })
    }

    /// Returns whether [`Wakeups::wake`] can end a sleep: the program may have closed the
    /// descriptors.
    pub(super) fn can_wake(&self) -> bool {
        match &self.wakeup.timer {
            WakeupTimer::Descriptor(timer) => timer.is_intact(),
            WakeupTimer::Simulated(_) => true,
        }
    }

    /// Returns the backend's descriptors, to sleep on.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &SharedFd> {
        self.sockets.iter()
    }

    /// Fails if the program has closed or replaced one of the backend's descriptors.
    pub(super) fn ensure(&self) -> Result<(), NetError> {
        Ok(self.sockets.iter().try_for_each(SharedFd::ensure)?)
    }

    /// Returns whether a socket has something to receive.
    pub(super) fn has_input(&self) -> bool {
        if self.ensure().is_err() {
            return false;
        }
        has_input(&self.sockets)
    }

    /// Returns a handle with which other threads wake the driver.
    pub(super) fn wakeup(&self) -> Arc<Wakeup> {
        Arc::clone(&self.wakeup)
    }

    /// Ends a sleep.
    pub(super) fn wake(&self) {
        self.wakeup.wake();
    }
}

impl Wakeup {
    fn new(timer: WakeupTimer) -> Self {
        Self { timer, now: AtomicBool::new(false) }
    }

    /// Wakes the driver immediately.
    pub(crate) fn wake(&self) {
        self.now.store(true, Ordering::SeqCst);
        self.timer.fire_now();
    }

    /// Wakes the driver at this time, or immediately if a wake-up is pending.
    fn set(&self, at: Time) {
        self.timer.set(at);
        if self.now.load(Ordering::SeqCst) {
            self.timer.fire_now();
        }
    }

    /// Clears the timer after it has fired. Returns whether [`Wakeup::wake`] was the reason.
    fn clear(&self) -> bool {
        if let WakeupTimer::Descriptor(timer) = &self.timer {
            timer.clear();
        }
        self.now.swap(false, Ordering::SeqCst)
    }
}

impl WakeupTimer {
    fn set(&self, at: Time) {
        match self {
            Self::Descriptor(timer) => timer.set(Duration::from_nanos(at.as_nanos())),
            Self::Simulated(host) => host.wake_at(at),
        }
    }

    fn fire_now(&self) {
        match self {
            Self::Descriptor(timer) => timer.set_after(Some(Duration::ZERO)),
            Self::Simulated(host) => host.wake_at(Time::ZERO),
        }
    }
}

impl fmt::Debug for WakeupTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakeupTimer")
    }
}

impl WakeupState {
    /// Sets the socket events that wake the driver, also while it sleeps. Only `Core::set_interest`
    /// may call this.
    pub(super) fn set_interest(&mut self, wakeups: &Wakeups, interest: Interest) {
        if std::mem::replace(&mut self.interest, interest) == interest {
            return;
        }
        let flags = match interest {
            Interest::None => EventFlags::empty(),
            Interest::Receive => EventFlags::IN,
            Interest::ReceiveAndSend => EventFlags::IN | EventFlags::OUT,
        };
        for socket in &wakeups.sockets {
            // This fails only if the program has closed the sockets, which their next use notices.
            let _ = wakeups.epoll.as_ref().map(|epoll| epoll.modify(socket, SOCKET, flags));
        }
    }

    /// Wakes the driver at `at`, or earlier if the timer is set for an earlier time.
    pub(super) fn set_timer(&mut self, wakeups: &Wakeups, at: Time) {
        if at < self.deadline {
            self.deadline = at;
            self.apply(wakeups);
        }
    }

    /// Wakes the driver when posts have waited between `wait` / 2 and `wait` from `now`. Replaces
    /// the time of the previous call, so that a stream of posts does not wake the driver. The
    /// driver may wake earlier for another reason.
    pub(super) fn set_posts_timer(&mut self, wakeups: &Wakeups, now: Time, wait: Duration) {
        if self.posts > now + wait || self.posts < now + wait / 2 {
            self.posts = now + wait;
            self.apply(wakeups);
        }
    }

    fn apply(&mut self, wakeups: &Wakeups) {
        let at = self.deadline.min(self.posts);
        if at != self.timer {
            self.timer = at;
            wakeups.wakeup.set(at);
        }
    }

    /// Records that the timer has fired. Returns whether posts were to leave by `now`.
    pub(super) fn timer_fired(&mut self, now: Time) -> bool {
        let posts = self.posts <= now;
        (self.timer, self.deadline, self.posts) = (Time::MAX, Time::MAX, Time::MAX);
        posts
    }
}

/// Returns whether any of these sockets has something to receive. Runs for each timer that is due,
/// so it allocates no memory.
fn has_input(sockets: &[SharedFd]) -> bool {
    const CHUNK: usize = 8;
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    sockets.chunks(CHUNK).any(|chunk| {
        // A shorter chunk fills the array with its first socket, and these entries are not polled.
        let fd = |at| chunk.get(at).unwrap_or(&chunk[0]);
        let mut fds: [_; CHUNK] = array::from_fn(|at| PollFd::new(fd(at), PollFlags::IN));
        poll(&mut fds[..chunk.len()], Some(&at_once)).is_ok_and(|ready| ready > 0)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn input_is_found_on_any_of_many_sockets() {
        let mut pairs: Vec<_> = (0..9).map(|_| UnixStream::pair().unwrap()).collect();
        let shared = |stream: &UnixStream| SharedFd::new(stream.try_clone().unwrap().into());
        let sockets: Vec<_> = pairs.iter().map(|(socket, _)| shared(socket)).collect();
        assert!(!has_input(&[]) && !has_input(&sockets));
        for (at, (_, peer)) in pairs.iter_mut().enumerate().rev() {
            peer.write_all(b"x").unwrap();
            assert!(has_input(&sockets[..=at]), "{at}");
            assert!(!has_input(&sockets[..at]), "{at}");
        }
    }

    #[test]
    fn a_time_that_is_set_delays_no_wakeup() {
        let wakeup = Wakeup::new(WakeupTimer::Descriptor(TimerFd::new().unwrap()));
        let gone_off = |seconds| {
            let WakeupTimer::Descriptor(timer) = &wakeup.timer else { unreachable!() };
            let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
            poll(&mut [PollFd::new(timer, PollFlags::IN)], Some(&limit)).unwrap() == 1
        };
        wakeup.set(Time::MAX);
        assert!(!gone_off(0));
        wakeup.wake();
        wakeup.set(Time::MAX);
        assert!(gone_off(10) && wakeup.clear());
        wakeup.set(Time::MAX);
        assert!(!gone_off(0) && !wakeup.clear());
        wakeup.set(crate::os::now());
        assert!(gone_off(10) && !wakeup.clear(), "it was the time");
    }
}
