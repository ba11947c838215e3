//! The control socket of a device.
//!
//! The socket has a path for each block of queue pair numbers that the device has leased on an
//! address. The path proves the lease, and newcomers connect to it to get the shared UDP sockets. A
//! thread serves the socket, so that a newcomer does not wait for other work of this process. The
//! thread sleeps while there are no callers.
//!
//! The thread also answers queries of users ([`super::report`]). A caller that asks for packets
//! keeps its connection, on which another thread sends them; this thread notices when the caller
//! hangs up.
//!
//! Only processes of the same user are accepted, as the kernel identifies them, before anything is
//! received; and root, which gets reports but no sockets. Descriptors are never received. Each
//! caller may ask one question; callers that ask nothing are turned away when [`CALLERS`] others
//! have come. If the thread dies nevertheless, the device continues, and newcomers are told that it
//! does not answer, so they do not wait for it.
//!
//! The thread keeps one descriptor in reserve, so that it can serve one caller at a time when the
//! program has used up all others.
//!
//! The thread sleeps in epoll(7), which, unlike poll(2), does not keep the watched files open: once
//! the program has closed all descriptors, the sockets are closed, and newcomers notice that
//! immediately.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::epoll::EventFlags;

use super::Group;
use super::directory::ScopedAddr;
use super::report::{MAX_REPORT, Question, Reporter};
use super::stream::CaptureStream;
use crate::error::NetError;
use rxe_sys::addr::{from_mapped_octets, to_mapped_octets};
use rxe_sys::spawn_and_await;
use rxe_sys::unix::{MAX_FDS, NamedSocket, UnixSocket, distinct, own_uid};
use rxe_sys::{Epoll, EventFd, SharedFd};

/// A message on the control socket. The first five bytes have the same meaning in all versions, so
/// that versions can refuse each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// A request for the sockets `from` to `to` of the address's group.
    Ask {
        /// The address.
        address: IpAddr,
        /// The index of the first socket.
        from: u8,
        /// The index of the last socket.
        to: u8,
    },
    /// The answer to [`ControlMessage::Ask`]; the sockets are attached.
    Give {
        /// The number of sockets attached.
        count: u8,
        /// The index of the last socket that the sender holds.
        last: u8,
    },
    /// A refusal: the sender speaks this version.
    OtherVersion(u8),
    /// A request for a report about the device. The answer is a header of 8 bytes and text.
    Report(Question),
    /// A request for the device's packets, until the caller shuts down its sending direction. The
    /// answer is a text as for a report, then blocks of a pcapng file without section header and
    /// interface, then another text.
    Capture,
}

/// The version of [`ControlMessage`], of the layout of the directory, and of the port group.
pub(super) const VERSION: u8 = 3;
/// The length of a message in bytes.
const LEN: usize = 24;
const MAGIC: [u8; 3] = *b"rxe";

/// The header of a report.
pub(super) const REPORT_HEADER: [u8; 8] = [MAGIC[0], MAGIC[1], MAGIC[2], VERSION, 6, 0, 0, 0];

impl ControlMessage {
    /// Returns the message as bytes.
    pub fn emit(self) -> [u8; LEN] {
        let (kind, a, b, address) = match self {
            Self::Ask { address, from, to } => (1, from, to, to_mapped_octets(address)),
            Self::Give { count, last } => (2, count, last, [0; 16]),
            Self::OtherVersion(_) => (4, 0, 0, [0; 16]),
            Self::Report(Question { subject, from }) => (5, subject, 0, wide_number(from)),
            Self::Capture => (7, 0, 0, [0; 16]),
        };
        let mut bytes = [0; LEN];
        bytes[..3].copy_from_slice(&MAGIC);
        bytes[3..7].copy_from_slice(&[VERSION, kind, a, b]);
        bytes[8..].copy_from_slice(&address);
        bytes
    }

    /// Parses a message. Returns `None` if it is not a control message.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        match *rest {
            [version, ..] if version != VERSION => Some(Self::OtherVersion(version)),
            [_, 1, from, to, _, ref address @ ..] => {
                Some(Self::Ask { address: from_mapped_octets(address.try_into().ok()?), from, to })
            }
            [_, 2, count, last, ..] => Some(Self::Give { count, last }),
            [version, 4, ..] => Some(Self::OtherVersion(version)),
            [_, 5, subject, _, _, a, b, c, d, ..] => {
                let from = u32::from_le_bytes([a, b, c, d]);
                Some(Self::Report(Question { subject, from }))
            }
            [_, 7, ..] => Some(Self::Capture),
            _ => None,
        }
    }
}

fn wide_number(number: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The device's control socket for one block on one address.
#[derive(Debug)]
pub(super) struct ControlSocket {
    addr: ScopedAddr,
    block: u8,
    /// `None` if no directory can be used: the device then has the address for itself.
    listener: Option<NamedSocket>,
    group: Group,
}

impl ControlSocket {
    pub(super) fn new(
        addr: ScopedAddr,
        block: u8,
        listener: Option<NamedSocket>,
        group: Group,
    ) -> Self {
        Self { addr, block, listener, group }
    }

    pub(super) fn address(&self) -> IpAddr {
        self.addr.address
    }

    pub(super) fn block(&self) -> u8 {
        self.block
    }
}

/// All control sockets of a device, and the thread that serves them. Dropping closes them.
#[derive(Debug)]
pub(super) struct ControlSockets(Arc<Shared>, Mutex<Option<JoinHandle<()>>>);

#[derive(Debug)]
struct Shared {
    /// Watches the listeners and the callers.
    epoll: Epoll,
    state: Mutex<State>,
    /// The reporter. Locked while a report is created.
    reporter: Mutex<Option<Box<dyn Reporter>>>,
}

/// A process that has connected.
struct Caller {
    socket: Arc<UnixSocket>,
    /// The caller is a process of this user, not just of root.
    own: bool,
}

/// The state of a caller after a check for its question.
#[derive(PartialEq, Eq)]
enum Next {
    /// The caller has not asked yet.
    Waits,
    /// The caller was answered, or is gone.
    Done,
    /// The caller receives packets from now on.
    Captures,
}

#[derive(Debug, Default)]
struct State {
    sockets: Vec<ControlSocket>,
    stop: bool,
}

/// The maximum number of callers that may still ask. A caller asks immediately or never.
const CALLERS: usize = 32;
/// How long the thread pauses when it has no descriptor to accept a caller.
const REST: Duration = Duration::from_millis(100);

impl ControlSockets {
    /// Starts the thread that serves the sockets.
    pub(super) fn new() -> Result<Self, NetError> {
        let shared = Arc::new(Shared {
            epoll: Epoll::new()?,
            state: Mutex::default(),
            reporter: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        // Reserved here, because the program may use up all descriptors before the thread runs.
        let reserve = EventFd::new().ok();
        let thread = spawn_and_await("rxe-lease", move || theirs.serve(reserve))
            .map_err(|e| NetError::os("start a thread", e))?;
        Ok(Self(shared, Mutex::new(Some(thread))))
    }

    pub(super) fn add(&self, socket: ControlSocket) {
        let mut state = self.0.lock();
        if let Some(listener) = &socket.listener
            && !state.listens(listener)
        {
            // If epoll has no memory for it, the socket is not served, and newcomers are told so.
            let _ = self.0.epoll.add(listener, 0, EventFlags::IN);
        }
        state.sockets.push(socket);
    }

    /// Sets or removes the reporter of this device. Waits for a report in progress.
    pub(super) fn set_reporter(&self, reporter: Option<Box<dyn Reporter>>) {
        let before = std::mem::replace(&mut *self.0.reporter.lock(), reporter);
        drop(before);
    }

    /// Closes some sockets. Their paths are free immediately, and their groups are released.
    pub(super) fn remove(&self, which: impl Fn(&ControlSocket) -> bool) {
        let mut state = self.0.lock();
        let gone: Vec<_> = state.sockets.extract_if(.., |socket| which(socket)).collect();
        for listener in gone.into_iter().filter_map(|socket| socket.listener) {
            let socket = Arc::clone(listener.socket());
            let is_last = !state.listens(&listener);
            drop(listener);
            if is_last {
                // The thread may still hold the socket, so dropping it here would not close it.
                self.0.epoll.delete(&*socket);
                socket.shut_down();
            }
        }
    }

    /// Closes all sockets permanently and ends the thread. If the program has closed the descriptor
    /// that the thread sleeps on, or none is left to wake it with, the thread ends some seconds
    /// later without being joined.
    pub(super) fn close(&self) {
        self.remove(|_| true);
        self.0.lock().stop = true;
        let Some(thread) = self.1.lock().take() else {
            return;
        };
        if let Ok(wake) = EventFd::new()
            && self.0.epoll.add(&wake, 0, EventFlags::IN).is_ok()
        {
            wake.set();
            rxe_sys::may_block("ending a thread");
            // The thread blocks only in epoll, and a panic of it has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for ControlSockets {
    fn drop(&mut self) {
        self.close();
    }
}

impl State {
    fn listeners(&self) -> impl Iterator<Item = &NamedSocket> {
        self.sockets.iter().filter_map(|socket| socket.listener.as_ref())
    }

    /// Returns whether this listener has a path among the sockets.
    fn listens(&self, listener: &NamedSocket) -> bool {
        self.listeners().any(|one| one.is_same(listener))
    }

    /// Returns the sockets that the device holds of an address's group.
    fn group(&self, address: IpAddr) -> Option<Group> {
        let on = self.sockets.iter().filter(|socket| socket.address() == address);
        on.max_by_key(|socket| socket.group.len()).map(|socket| Arc::clone(&socket.group))
    }
}

impl Shared {
    /// Locks the state, which is consistent even if a thread panicked. Nothing slow is done under
    /// this lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn serve(&self, mut reserve: Option<EventFd>) {
        let mut callers = Vec::new();
        let mut capturing: Option<Arc<UnixSocket>> = None;
        let mut events = [Epoll::NO_EVENT; 1];
        loop {
            let listeners = {
                let state = self.lock();
                if state.stop {
                    return;
                }
                distinct(state.listeners().map(NamedSocket::socket))
            };
            if reserve.is_none() {
                reserve = EventFd::new().ok();
            }
            for listener in &listeners {
                self.let_in(listener, &mut callers, &mut reserve);
            }
            if capturing.as_ref().is_some_and(|caller| self.is_gone(caller)) {
                capturing = None;
            }
            callers.retain(|caller: &Caller| match self.answer(caller) {
                Next::Waits => true,
                Next::Done => false,
                Next::Captures => {
                    capturing = Some(Arc::clone(&caller.socket));
                    false
                }
            });
            let surplus = callers.len().saturating_sub(CALLERS);
            callers.drain(..surplus);
            drop(listeners);
            if self.epoll.wait(&mut events, Some(&Epoll::LONGEST_SLEEP)).is_err() {
                // The program has closed descriptors that it did not open, including this epoll
                // descriptor.
                return;
            }
        }
    }

    /// Accepts waiting callers, at most [`CALLERS`] at a time. Releases `reserve` for one of them
    /// if there are no other descriptors.
    fn let_in(
        &self,
        listener: &UnixSocket,
        callers: &mut Vec<Caller>,
        reserve: &mut Option<EventFd>,
    ) {
        for _ in 0..CALLERS {
            match listener.accept_also_root() {
                Ok((socket, peer)) => {
                    if self.epoll.add(&socket, 0, EventFlags::IN).is_ok() {
                        let socket = Arc::new(socket);
                        callers.push(Caller { socket, own: peer.uid == own_uid() });
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) if reserve.take().is_some() => {}
                // The callers stay in the queue and keep the listener readable, so pause.
                Err(_) => return thread::sleep(REST),
            }
        }
    }

    /// Returns whether a caller that receives packets is gone or has shut down, and then ends its
    /// capture.
    fn is_gone(&self, caller: &UnixSocket) -> bool {
        if matches!(caller.receive(&mut [0; 64]), Ok(None)) {
            return false;
        }
        // The capture may keep the socket until it has sent the rest. In epoll the closed socket
        // would wake this thread again and again.
        self.epoll.delete(caller);
        if let Some(reporter) = &*self.reporter.lock() {
            reporter.end_capture();
        }
        true
    }

    /// Answers a caller, if it has asked.
    fn answer(&self, caller: &Caller) -> Next {
        let mut buf = [0; 64];
        let asked = match caller.socket.receive(&mut buf) {
            Ok(None) => return Next::Waits,
            Ok(Some(received)) => ControlMessage::parse(&buf[..received.len]),
            Err(_) => None,
        };
        let Some(question) = asked else { return Next::Done };
        let group = match question {
            ControlMessage::Report(question) => {
                let reporter = self.reporter.lock();
                let report = reporter.as_ref().map(|reporter| reporter.report(question));
                drop(reporter);
                // Without a reporter the report is empty; another control socket of the process may
                // have one.
                let report = report.unwrap_or_default();
                let report = &report[..report.len().min(MAX_REPORT)];
                let _ = caller.socket.send(&[&REPORT_HEADER, report].concat(), &[]);
                return Next::Done;
            }
            ControlMessage::Capture => {
                let stream = CaptureStream::new(Arc::clone(&caller.socket), REPORT_HEADER);
                return match &*self.reporter.lock() {
                    Some(reporter) if reporter.capture(stream) => Next::Captures,
                    _ => Next::Done,
                };
            }
            _ if !caller.own => return Next::Done,
            // No group means that the device has just left the address.
            ControlMessage::Ask { address, .. } => match self.lock().group(address) {
                Some(group) => group,
                None => return Next::Done,
            },
            _ => Arc::from([]),
        };
        if let Some((message, sockets)) = reply(question, &group) {
            let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
            // An error means that the caller does not wait for the answer any more.
            let _ = caller.socket.send(&message.emit(), &fds);
        }
        Next::Done
    }
}

/// Returns the answer to a question and the sockets to attach. `None` if the message needs no such
/// answer.
pub(super) fn reply(
    question: ControlMessage,
    group: &[SharedFd],
) -> Option<(ControlMessage, &[SharedFd])> {
    match question {
        ControlMessage::OtherVersion(_) => Some((ControlMessage::OtherVersion(VERSION), &[])),
        ControlMessage::Ask { from, to, .. } => {
            let asked = usize::from(from)..usize::from(to) + 1;
            let end = asked.end.min(group.len()).min(asked.start + MAX_FDS);
            let sockets = group.get(asked.start..end).unwrap_or_default();
            let byte = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
            let (count, last) = (byte(sockets.len()), byte(group.len().saturating_sub(1)));
            Some((ControlMessage::Give { count, last }, sockets))
        }
        ControlMessage::Give { .. } | ControlMessage::Report(_) | ControlMessage::Capture => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way_there_and_back() {
        for message in [
            ControlMessage::Ask { address: "10.0.0.1".parse().unwrap(), from: 3, to: 9 },
            ControlMessage::Ask { address: "fe80::1".parse().unwrap(), from: 0, to: 255 },
            ControlMessage::Give { count: 7, last: 20 },
            ControlMessage::OtherVersion(VERSION),
            ControlMessage::Report(Question { subject: 3, from: 0x0102_0304 }),
            ControlMessage::Capture,
        ] {
            assert_eq!(ControlMessage::parse(&message.emit()), Some(message));
        }
    }

    #[test]
    fn another_version_is_known_whatever_it_says() {
        assert_eq!(ControlMessage::parse(b"rxe\x02"), Some(ControlMessage::OtherVersion(2)));
        assert_eq!(
            ControlMessage::parse(b"rxe\x07\x01\x02\x03"),
            Some(ControlMessage::OtherVersion(7))
        );
        assert_eq!(ControlMessage::parse(b"rxe\x03\x63\0\0\0"), None);
        assert_eq!(ControlMessage::parse(b"rxe\x03\x01\x00\x01\x00short"), None);
        assert_eq!(ControlMessage::parse(b"rx"), None);
        assert_eq!(ControlMessage::parse(b"nonsense"), None);
    }
}
