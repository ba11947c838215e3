//! The transmit queue of messages that are forwarded to other processes' inboxes. It holds messages
//! that wait because an inbox is full.
//!
//! An inbox takes `net.unix.max_dgram_qlen` messages, 10 by default in a network namespace. That is
//! fewer than arrive when many connections are created simultaneously, and messages lost then are
//! lost again when all senders repeat them at the same time. So some messages wait briefly. The
//! kernel does not tell when an inbox has room: a timer triggers the next attempt, or the caller's
//! thread sleeps in between.

use std::collections::{HashSet, VecDeque};
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::net::SocketAddrUnix;

use super::READY;
use rxe_sys::unix::UnixSocket;
use rxe_sys::{Epoll, TimerFd};

/// The maximum number of waiting bytes, whatever peers send.
pub(super) const CAPACITY: usize = 1 << 20;
/// The maximum number of waiting messages.
const MAX_MESSAGES: usize = 1024;
/// How long a message waits: as long as a process on a busy host may get no CPU. The sender does
/// not repeat every message.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two attempts.
pub(super) const AGAIN: Duration = Duration::from_millis(1);

/// A transmit queue to the inboxes of other processes.
pub(super) struct TxQueue {
    /// The sending socket, created with the first message.
    out: Option<UnixSocket>,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    wait: Duration,
    /// The timer, created when a message first waits. Without one, messages are lost.
    timer: Option<TimerFd>,
    /// Watches the timer. `None` if the caller tracks the time itself.
    epoll: Option<Epoll>,
}

struct Waiting {
    to: SocketAddrUnix,
    message: Vec<u8>,
    until: Instant,
}

impl TxQueue {
    /// Creates an empty queue. `epoll` becomes readable when it is time for [`TxQueue::try_again`].
    /// Without `epoll`, the caller calls that every [`AGAIN`] while messages wait.
    pub(super) fn new(epoll: Option<Epoll>) -> Self {
        let waiting = VecDeque::new();
        Self { out: None, waiting, bytes: 0, wait: TIMEOUT, timer: None, epoll }
    }

    /// Sends a message, or queues it. Returns `false` only if the inbox does not exist, so that no
    /// process has the block: the caller may answer in its place. A message without room in the
    /// inbox or here is lost, as on a wire.
    pub(super) fn send(&mut self, to: SocketAddrUnix, head: &[u8], body: &[u8]) -> bool {
        if self.out.is_none() {
            self.out = UnixSocket::sender().ok();
        }
        // No descriptor is left, so the message is lost.
        let Some(out) = &self.out else { return true };
        // Messages to one inbox stay in order, so this one must not overtake those that wait.
        if !self.waiting.iter().any(|w| w.to == to) {
            match out.send_to(&to, &[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(()) => return true,
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => {}
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return false,
                    _ => return true,
                },
            }
        }
        let len = head.len() + body.len();
        if let (None, Some(epoll)) = (&self.timer, &self.epoll) {
            let watched = |timer: &TimerFd| epoll.add(timer, READY, EventFlags::IN).is_ok();
            self.timer = TimerFd::new().ok().filter(watched);
        }
        if (self.timer.is_some() || self.epoll.is_none())
            && self.waiting.len() < MAX_MESSAGES
            && self.bytes + len <= CAPACITY
        {
            if let Some(timer) = &self.timer
                && self.waiting.is_empty()
            {
                timer.set_after(Some(AGAIN));
            }
            self.bytes += len;
            let until = Instant::now() + self.wait;
            self.waiting.push_back(Waiting { to, message: [head, body].concat(), until });
        }
        true
    }

    /// Returns whether no message waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends the messages that there is room for now. Called when the timer expires.
    pub(super) fn try_again(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut full = HashSet::new();
        let (Some(out), bytes) = (&self.out, &mut self.bytes) else { return };
        self.waiting.retain(|w| {
            let stays = now < w.until
                && (full.contains(&w.to)
                    || out
                        .send_to(&w.to, &[IoSlice::new(&w.message)])
                        .is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock));
            if stays && !full.contains(&w.to) {
                full.insert(w.to.clone());
            }
            if !stays {
                *bytes -= w.message.len();
            }
            stays
        });
        if let Some(timer) = &self.timer {
            timer.set_after((!self.waiting.is_empty()).then_some(AGAIN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rxe_sys::unix::NamedSocket;

    fn take(from: &UnixSocket, got: &mut Vec<u16>) {
        let mut buf = [0; 8];
        while let Some(received) = from.receive(&mut buf).unwrap() {
            assert_eq!(received.len, 2);
            got.push(u16::from_le_bytes([buf[0], buf[1]]));
        }
    }

    #[test]
    fn a_full_inbox_gets_its_messages_later_and_in_order() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("inbox");
        let inbox = NamedSocket::inbox(&path).unwrap();
        let to = SocketAddrUnix::new(&path).unwrap();
        let mut queue = TxQueue::new(Some(Epoll::new().unwrap()));
        queue.wait = Duration::from_secs(3600);
        const COUNT: u16 = 700;
        for i in 0..COUNT {
            let [low, high] = i.to_le_bytes();
            assert!(queue.send(to.clone(), &[low], &[high]));
        }
        let mut got = Vec::new();
        while got.len() < usize::from(COUNT) {
            take(&inbox, &mut got);
            if !queue.waiting.is_empty() {
                let epoll = queue.epoll.as_ref().unwrap().shared();
                poll(&mut [PollFd::new(epoll, PollFlags::IN)], None).unwrap();
                queue.try_again();
            }
        }
        assert!(got.iter().copied().eq(0..COUNT));
        assert_eq!((queue.waiting.len(), queue.bytes), (0, 0));
    }

    #[test]
    fn what_waits_is_bounded_and_not_for_ever() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("inbox");
        let inbox = NamedSocket::inbox(&path).unwrap();
        let to = SocketAddrUnix::new(&path).unwrap();
        let mut queue = TxQueue::new(None);
        for _ in 0..3000 {
            assert!(queue.send(to.clone(), &[0; 2000], &[]));
        }
        assert!(queue.bytes <= CAPACITY && queue.waiting.len() <= MAX_MESSAGES);
        queue.waiting.iter_mut().for_each(|w| w.until = Instant::now());
        queue.try_again();
        assert_eq!((queue.waiting.len(), queue.bytes), (0, 0), "none waits for ever");
        drop(inbox);
        assert!(!queue.send(to.clone(), &[0; 2], &[]), "nobody has it");
    }
}
