//! Letters to other processes' boxes, and those that wait because a box is full.
//!
//! A box takes `net.unix.max_dgram_qlen` letters, 10 in a network namespace that nobody has tuned:
//! fewer than there are when many connections are made at once, and what is lost then is lost again
//! when all repeat it at the same time. So some letters wait a little. Nobody says when a box has
//! room: a timer tells when to try again.

use std::collections::{HashSet, VecDeque};
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use rustix::net::SocketAddrUnix;

use crate::sys::unix::UnixSocket;
use crate::{NetError, TimerFd};

/// Bytes that wait at most, whatever peers send.
const ROOM: usize = 1 << 20;
/// Letters that wait at most.
const LETTERS: usize = 1024;
/// How long a letter waits: less than it takes until somebody sends it again.
const WAIT: Duration = Duration::from_millis(200);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(1);

/// See the module's opening.
pub(super) struct Outbox {
    out: UnixSocket,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    wait: Duration,
    timer: TimerFd,
}

struct Waiting {
    to: SocketAddrUnix,
    letter: Vec<u8>,
    until: Instant,
}

impl Outbox {
    pub(super) fn new() -> Result<Self, NetError> {
        let out = UnixSocket::anonymous().map_err(|e| NetError::os("open a unix socket", e))?;
        let timer = TimerFd::new()?;
        Ok(Self { out, waiting: VecDeque::new(), bytes: 0, wait: WAIT, timer })
    }

    /// Readable when it is time for [`Outbox::try_again`].
    pub(super) fn timer(&self) -> &TimerFd {
        &self.timer
    }

    /// Sends a letter, or lets it wait; `false` if there is no such box. What finds neither room
    /// there nor here is lost, as on a wire.
    pub(super) fn send(&mut self, to: SocketAddrUnix, head: &[u8], body: &[u8]) -> bool {
        // Behind those that wait for the same box.
        if !self.waiting.iter().any(|w| w.to == to) {
            match self.out.send(&to, &[IoSlice::new(head), IoSlice::new(body)], &[]) {
                Ok(()) => return true,
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return false,
                Err(_) => {}
            }
        }
        let len = head.len() + body.len();
        if self.waiting.len() < LETTERS && self.bytes + len <= ROOM {
            if self.waiting.is_empty() {
                self.timer.set_after(Some(AGAIN));
            }
            self.bytes += len;
            let until = Instant::now() + self.wait;
            self.waiting.push_back(Waiting { to, letter: [head, body].concat(), until });
        }
        true
    }

    /// Sends what there is room for now; to be called when the timer says so.
    pub(super) fn try_again(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut full = HashSet::new();
        let (out, bytes) = (&self.out, &mut self.bytes);
        self.waiting.retain(|w| {
            let stays = now < w.until
                && (full.contains(&w.to)
                    || out
                        .send(&w.to, &[IoSlice::new(&w.letter)], &[])
                        .is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock));
            if stays && !full.contains(&w.to) {
                full.insert(w.to.clone());
            }
            if !stays {
                *bytes -= w.letter.len();
            }
            stays
        });
        self.timer.set_after((!self.waiting.is_empty()).then_some(AGAIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::unix::abstract_name;
    use rustix::event::{PollFd, PollFlags, poll};

    fn take(from: &UnixSocket, got: &mut Vec<u16>) {
        let mut buf = [0; 8];
        while let Some(letter) = from.receive(&mut buf).unwrap() {
            assert_eq!(letter.len, 2);
            got.push(u16::from_le_bytes([buf[0], buf[1]]));
        }
    }

    #[test]
    fn a_full_box_gets_its_letters_later_and_in_order() {
        let name = format!("rxe-outbox-{}", std::process::id());
        let letterbox = UnixSocket::bind(&name).unwrap();
        let mut outbox = Outbox::new().unwrap();
        outbox.wait = Duration::from_secs(3600);
        const COUNT: u16 = 700;
        for i in 0..COUNT {
            let [low, high] = i.to_le_bytes();
            assert!(outbox.send(abstract_name(&name).unwrap(), &[low], &[high]));
        }
        let mut got = Vec::new();
        while got.len() < usize::from(COUNT) {
            take(&letterbox, &mut got);
            if !outbox.waiting.is_empty() {
                poll(&mut [PollFd::new(&outbox.timer, PollFlags::IN)], None).unwrap();
                outbox.try_again();
            }
        }
        assert!(got.iter().copied().eq(0..COUNT));
        assert_eq!((outbox.waiting.len(), outbox.bytes), (0, 0));
    }

    #[test]
    fn what_waits_is_bounded_and_not_for_ever() {
        let name = format!("rxe-outbox-full-{}", std::process::id());
        let letterbox = UnixSocket::bind(&name).unwrap();
        let mut outbox = Outbox::new().unwrap();
        for _ in 0..3000 {
            assert!(outbox.send(abstract_name(&name).unwrap(), &[0; 2000], &[]));
        }
        assert!(outbox.bytes <= ROOM && outbox.waiting.len() <= LETTERS);
        outbox.waiting.iter_mut().for_each(|w| w.until = Instant::now());
        outbox.try_again();
        assert_eq!((outbox.waiting.len(), outbox.bytes), (0, 0), "none waits for ever");
        drop(letterbox);
        assert!(!outbox.send(abstract_name(&name).unwrap(), &[0; 2], &[]), "nobody has it");
    }
}
