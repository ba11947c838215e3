//! One direction of traffic between two processes. The sender makes a ring and offers it over a
//! connection, whose end tells either process that the other is gone.
//!
//! The receiver is woken by an event descriptor that comes with the ring. The sender signals it only
//! while the receiver says that it sleeps ([`Incoming::prepare_sleep`]), so two ends that poll make
//! no system call.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rxe_core::wire::Frame;

use super::ring::{Broken, CAPACITY, Consumer, MAX_RECORD, Producer};
use super::wake::WakeUp;
use super::watched::Watched;
use crate::lease::message;
use crate::sys::unix::UnixSocket;

/// The message that goes with the descriptors of a ring and of its wake-up.
/// The last byte is the version of what is in a ring: both ends must have the same.
pub(super) const OFFER: [u8; 4] = *b"rxm\x02";

/// The tag of a record that holds a frame as [`message`] writes it.
pub(super) const FRAME: u32 = 1;

/// The sender's end.
#[derive(Debug)]
pub(super) struct Outgoing {
    ring: Producer,
    wake: WakeUp,
    pub(super) line: UnixSocket,
    /// There are records that the receiver may not know of.
    fresh: bool,
    congestion: Congestion,
}

/// How the receiver keeps up with the sender.
#[derive(Clone, Copy, Debug)]
enum Congestion {
    /// The ring is at most half full, or has not been full since it was.
    None,
    /// The ring was full at this time, when the receiver had taken so many bytes.
    Since(Instant, u64),
    /// The receiver took next to nothing while it was waited for, and had taken so many bytes then.
    Stopped(u64),
}

/// A receiver that takes fewer bytes than this in the time it is given counts as stopped, until it has
/// taken as many. Without such a threshold, one that takes a record now and then would slow all other
/// destinations.
const PROGRESS: u64 = CAPACITY as u64 / 8;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It is in the ring.
    Sent,
    /// The ring is full: try again soon.
    Full,
    /// The ring is full and its receiver does not empty it: the frame is lost.
    Lost,
}

impl Outgoing {
    /// Offers a ring to the process that listens on this path; `None` if no process of this user
    /// does.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let Ok(line) = UnixSocket::connect(path) else { return Ok(None) };
        let (ring, memory) = Producer::create()?;
        let wake = WakeUp::new()?;
        line.send(&OFFER, &[memory.as_fd(), wake.as_fd()])?;
        Ok(Some(Self { ring, wake, line, fresh: false, congestion: Congestion::None }))
    }

    /// Puts a frame into the ring if there is room. A receiver gets `timeout` to make some: nothing
    /// slows a sender of unreliable messages, and when two processes share a CPU, one would lose what
    /// it sends while the other does not run. A receiver that lets the time pass is not waited for
    /// again until it has made progress.
    pub(super) fn push(&mut self, frame: &Frame<'_>, timeout: Duration) -> Result<Pushed, Broken> {
        let header = message::emit(frame);
        let sent = self.ring.push(FRAME, [&header, frame.payload])?;
        self.fresh |= sent;
        if sent && matches!(self.congestion, Congestion::None) {
            return Ok(Pushed::Sent);
        }
        self.ring.look()?;
        let taken = self.ring.taken();
        let progress = |before: u64| taken.wrapping_sub(before) >= PROGRESS;
        self.congestion = match self.congestion {
            _ if self.ring.free()? >= CAPACITY / 2 => Congestion::None,
            Congestion::None => Congestion::Since(Instant::now(), taken),
            Congestion::Since(at, before) if at.elapsed() >= timeout && !progress(before) => {
                Congestion::Stopped(taken)
            }
            Congestion::Since(at, _) if at.elapsed() >= timeout => {
                Congestion::Since(Instant::now(), taken)
            }
            Congestion::Stopped(before) if progress(before) => {
                Congestion::Since(Instant::now(), taken)
            }
            same => same,
        };
        Ok(match self.congestion {
            _ if sent => Pushed::Sent,
            Congestion::Stopped(_) => Pushed::Lost,
            _ => Pushed::Full,
        })
    }

    /// Wakes the receiver if it sleeps.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        if std::mem::take(&mut self.fresh) && self.ring.must_wake() {
            self.wake.signal()?;
        }
        Ok(())
    }
}

impl AsFd for Outgoing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// The receiver's end.
#[derive(Debug)]
pub(super) struct Incoming {
    ring: Consumer,
    wake: Watched<WakeUp>,
    pub(super) line: Watched<UnixSocket>,
    /// Where the last frame went to: a sender has a ring for each address. `None` before the first.
    pub(super) address: Option<IpAddr>,
    /// The sender was asked to signal the next record.
    asleep: bool,
    /// `wake` is readable, or will be: the sender has answered.
    signalled: bool,
    /// The sender is gone: what it has left is taken up to this place of the ring.
    end: Option<u64>,
}

impl Incoming {
    /// Takes the offer that has come over this connection; `None` if there is none yet.
    pub(super) fn accept(line: &UnixSocket) -> io::Result<Option<(Consumer, WakeUp)>> {
        let mut buf = [0; 16];
        let Some(offer) = line.receive(&mut buf)? else { return Ok(None) };
        let refuse = || io::Error::from(io::ErrorKind::InvalidData);
        if buf[..offer.len] != OFFER {
            return Err(refuse());
        }
        let [memory, wake] = <[OwnedFd; 2]>::try_from(offer.fds).map_err(|_| refuse())?;
        Ok(Some((Consumer::open(&memory)?, WakeUp::adopt(wake)?)))
    }

    pub(super) fn new(ring: Consumer, wake: Watched<WakeUp>, line: Watched<UnixSocket>) -> Self {
        Self { ring, wake, line, address: None, asleep: false, signalled: false, end: None }
    }

    /// Whether the sender is gone, and all that it has left is taken. Nobody writes into the ring then, so
    /// what it holds is at most one lap; what is in it may say otherwise.
    pub(super) fn is_over(&mut self) -> bool {
        if !is_gone(&self.line) {
            return false;
        }
        let end = *self.end.get_or_insert(self.ring.place() + CAPACITY as u64);
        self.ring.is_empty() || self.ring.place() >= end
    }

    /// Hands over frames, about `budget` packets; how many packets and bytes.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        buf: &mut [u8; MAX_RECORD],
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<(usize, usize), Broken> {
        let (mut packets, mut bytes) = (0, 0);
        while packets < budget {
            let Some((tag, len)) = self.ring.pop(buf)? else { break };
            let frame = message::parse(&buf[..len]).filter(|_| tag == FRAME).ok_or(Broken)?;
            self.address = Some(frame.net.dst);
            packets += frame.payloads().count();
            bytes += frame.payload.len();
            sink(&frame);
        }
        Ok((packets, bytes))
    }

    /// A thread is about to sleep: asks the sender to signal the next record, if there is none now.
    /// Whether there is a record, which the caller must signal by other means.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        if self.ring.is_empty() {
            let answered = self.asleep && !self.ring.is_asleep();
            if self.signalled || answered {
                self.signalled = !self.wake.clear();
            }
            // It may have answered only now.
            self.signalled |= !self.ring.sleeps(true) && self.asleep && !answered;
            self.asleep = true;
        }
        !self.ring.is_empty()
    }

    /// No thread sleeps: the sender need not signal.
    pub(super) fn end_sleep(&mut self) {
        let was_asleep = self.ring.sleeps(false);
        self.signalled |= std::mem::take(&mut self.asleep) && !was_asleep;
    }

    /// Makes the wake-up one that blocks who writes to it.
    #[cfg(test)]
    pub(super) fn spoil_wake(&self) {
        self.wake.spoil();
    }
}

/// Whether a connection over which nothing more is said has ended.
pub(super) fn is_gone(line: &UnixSocket) -> bool {
    // Whatever else is said is not according to the rules.
    !matches!(line.receive(&mut [0; 1]), Ok(None))
}
