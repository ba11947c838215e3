//! The doors of a device: the names that say which block it has, where newcomers ask for the sockets
//! that are shared. A thread answers them, so that a newcomer waits for nothing that this process
//! does; without newcomers it sleeps.

use std::io::IoSlice;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::Group;
use super::name::Place;
use crate::NetError;
use crate::sys::fork::Held;
use crate::sys::thread::spawn_thread;
use crate::sys::unix::{Letter, MAX_FDS, UnixSocket, own_uid};

/// What is asked and answered: eight bytes, of which the first five never change their meaning, so
/// that versions can refuse each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// "Give me the sockets from this place in the group on, and up to that one."
    Ask { from: u8, to: u8 },
    /// "Here are so many of them, and of the group I hold those up to this."
    Give { count: u8, last: u8 },
    /// "No: you are another user."
    OtherUser,
    /// "No: I speak this version."
    OtherVersion(u8),
}

/// Of what [`Message`] says and of what a group is.
pub(super) const VERSION: u8 = 1;
const MAGIC: [u8; 3] = *b"rxe";

impl Message {
    pub(super) fn emit(self) -> [u8; 8] {
        let (kind, a, b) = match self {
            Self::Ask { from, to } => (1, from, to),
            Self::Give { count, last } => (2, count, last),
            Self::OtherUser => (3, 0, 0),
            Self::OtherVersion(_) => (4, 0, 0),
        };
        let [m0, m1, m2] = MAGIC;
        [m0, m1, m2, VERSION, kind, a, b, 0]
    }

    /// `None` if it is nothing of ours.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        match *rest {
            [version, ..] if version != VERSION => Some(Self::OtherVersion(version)),
            [_, 1, from, to, ..] => Some(Self::Ask { from, to }),
            [_, 2, count, last, ..] => Some(Self::Give { count, last }),
            [_, 3, ..] => Some(Self::OtherUser),
            [version, 4, ..] => Some(Self::OtherVersion(version)),
            _ => None,
        }
    }
}

/// The door of one block on one address.
#[derive(Debug)]
pub(super) struct Door {
    place: Place,
    block: u8,
    socket: Arc<UnixSocket>,
    group: Group,
}

impl Door {
    pub(super) fn new(place: Place, block: u8, socket: UnixSocket, group: Group) -> Self {
        Self { place, block, socket: Arc::new(socket), group }
    }

    pub(super) fn address(&self) -> IpAddr {
        self.place.address
    }

    pub(super) fn block(&self) -> u8 {
        self.block
    }

    /// Answers whoever has asked.
    fn answer(&self) {
        let mut buf = [0; 64];
        while let Ok(Some(letter)) = self.socket.receive(&mut buf) {
            let Letter { len, uid, from: Some(from), .. } = letter else { continue };
            let (message, fds) = match Message::parse(&buf[..len]) {
                Some(Message::OtherVersion(_)) => (Message::OtherVersion(VERSION), &[][..]),
                Some(Message::Ask { .. }) if uid != Some(own_uid()) => {
                    (Message::OtherUser, &[][..])
                }
                Some(Message::Ask { from, to }) => self.give(from, to),
                _ => continue,
            };
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            // Who does not wait for the answer needs none.
            let _ = self.socket.send(&from, &[IoSlice::new(&message.emit())], &fds);
        }
    }

    fn give(&self, from: u8, to: u8) -> (Message, &[Arc<Held>]) {
        let asked = usize::from(from)..usize::from(to) + 1;
        let end = asked.end.min(self.group.len()).min(asked.start + MAX_FDS);
        let fds = self.group.get(asked.start..end).unwrap_or_default();
        let byte = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        (Message::Give { count: byte(fds.len()), last: byte(self.group.len() - 1) }, fds)
    }
}

/// All doors of a device. Closed when dropped.
#[derive(Debug)]
pub(super) struct Doors {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    /// Readable when `state` has changed.
    wake: std::os::fd::OwnedFd,
    state: Mutex<State>,
    /// `seen` has changed.
    taken_up: Condvar,
}

#[derive(Debug, Default)]
struct State {
    doors: Vec<Arc<Door>>,
    stop: bool,
    /// Changes made, and those of them that the thread knows of.
    made: u64,
    seen: u64,
}

impl Doors {
    pub(super) fn new() -> Result<Self, NetError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| NetError::os("make an event descriptor", e))?;
        let taken_up = Condvar::new();
        let shared = Arc::new(Shared { wake, state: Mutex::default(), taken_up });
        let theirs = Arc::clone(&shared);
        let thread = spawn_thread("rxe-lease", move || theirs.serve())
            .map_err(|e| NetError::os("start a thread", e))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn add(&self, door: Door) {
        self.shared.change(|state| state.doors.push(Arc::new(door)));
    }

    /// Closes doors: then their names are free.
    pub(super) fn remove(&self, which: impl Fn(&Door) -> bool) {
        let made = self.shared.change(|state| state.doors.retain(|door| !which(door)));
        // The thread may hold it a moment longer.
        let state = self.shared.lock();
        let taken_up = |state: &mut State| state.seen < made && !state.stop;
        let waits = self.shared.taken_up.wait_while(state, taken_up);
        drop(waits.unwrap_or_else(PoisonError::into_inner));
    }

    /// Closes all doors, for ever.
    pub(super) fn close(&self) {
        self.shared.change(|state| {
            state.doors.clear();
            state.stop = true;
        });
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It does not panic; and if it did, there would be nobody left to tell. In a forked
            // child there is none, and this ends at once.
            let _ = thread.join();
        }
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// The state is whole whatever panicked.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state; the number of the change.
    fn change(&self, f: impl FnOnce(&mut State)) -> u64 {
        let mut state = self.lock();
        f(&mut state);
        state.made += 1;
        // It can only fail when it is readable anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        state.made
    }

    fn serve(&self) {
        loop {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            let doors = {
                let mut state = self.lock();
                state.seen = state.made;
                self.taken_up.notify_all();
                if state.stop {
                    return;
                }
                state.doors.clone()
            };
            let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
            fds.extend(doors.iter().map(|door| PollFd::new(&*door.socket, PollFlags::IN)));
            // Only a signal ends it with an error.
            let _ = poll(&mut fds, None);
            for (door, fd) in doors.iter().zip(&fds[1..]) {
                if !fd.revents().is_empty() {
                    door.answer();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way_there_and_back() {
        for message in [
            Message::Ask { from: 3, to: 9 },
            Message::Give { count: 7, last: 20 },
            Message::OtherUser,
            Message::OtherVersion(VERSION),
        ] {
            assert_eq!(Message::parse(&message.emit()), Some(message));
        }
    }

    #[test]
    fn another_version_is_known_whatever_it_says() {
        assert_eq!(Message::parse(b"rxe\x02"), Some(Message::OtherVersion(2)));
        assert_eq!(Message::parse(b"rxe\x07\x01\x02\x03"), Some(Message::OtherVersion(7)));
        assert_eq!(Message::parse(b"rxe\x01\x63\0\0\0"), None);
        assert_eq!(Message::parse(b"rx"), None);
        assert_eq!(Message::parse(b"nonsense"), None);
    }
}
