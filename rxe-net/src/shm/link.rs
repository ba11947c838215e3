//! One direction of traffic between two processes: who has something to send makes a ring and offers
//! it, over a connection that tells either when the other is gone.
//!
//! The taker wakes by an event descriptor of the ring. It stands for "there is a record" only while
//! somebody sleeps on it ([`Incoming::settle`]), so that two ends that poll make no system call.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rxe_core::wire::Frame;

use super::ring::{Broken, Consumer, MOST, Producer};
use super::watched::Watched;
use crate::lease::letter;
use crate::sys::unix::{UnixSocket, own_uid};

/// What is said with the descriptors of a ring and of its bell.
const OFFER: [u8; 4] = *b"rxm\x01";

/// An event descriptor.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// The one that a sender has made with [`Self::new`]. Another kind of descriptor could block who
    /// reads it, or be readable for ever.
    fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let what = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        if what.as_os_str() != "anon_inode:[eventfd]" || !flags.contains(OFlags::NONBLOCK) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self(fd))
    }

    pub(super) fn ring(&self) {
        // It can only fail when it is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Whether it had been rung.
    pub(super) fn silence(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The sender's end.
#[derive(Debug)]
pub(super) struct Outgoing {
    ring: Producer,
    bell: Bell,
    pub(super) line: UnixSocket,
    /// There are records that the taker may not know of.
    fresh: bool,
    /// It was waited for room in vain, and there has been none since.
    stuck: bool,
}

impl Outgoing {
    /// Offers a ring to who listens by this name; `None` if nobody of this user does.
    pub(super) fn open(name: &str) -> io::Result<Option<Self>> {
        let line = match UnixSocket::connect(name) {
            Ok(line) if line.peer_uid()? == own_uid() => line,
            _ => return Ok(None),
        };
        let (ring, memory) = Producer::create()?;
        let bell = Bell::new()?;
        line.send_connected(&OFFER, &[memory.as_fd(), bell.as_fd()])?;
        Ok(Some(Self { ring, bell, line, fresh: false, stuck: false }))
    }

    /// `false`: there is no room, and the frame is lost. A taker that has not let us down before gets
    /// up to `patience` to make room: nothing slows who sends unreliably, and between two processes
    /// that share a CPU the one would lose what it sends while the other does not run.
    pub(super) fn push(&mut self, frame: &Frame<'_>, patience: Duration) -> Result<bool, Broken> {
        let header = letter::emit(frame);
        let mut went = self.ring.push([&header, frame.payload])?;
        if !went && !self.stuck {
            self.flush();
            let until = Instant::now() + patience;
            while !went && Instant::now() < until {
                thread::yield_now();
                went = self.ring.push([&header, frame.payload])?;
            }
        }
        self.stuck = !went;
        self.fresh |= went;
        Ok(went)
    }

    /// Wakes the taker if it sleeps.
    pub(super) fn flush(&mut self) {
        if std::mem::take(&mut self.fresh) && self.ring.must_wake() {
            self.bell.ring();
        }
    }
}

impl AsFd for Outgoing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// The taker's end.
#[derive(Debug)]
pub(super) struct Incoming {
    ring: Consumer,
    bell: Watched<Bell>,
    pub(super) line: Watched<UnixSocket>,
    /// The address that was asked for.
    pub(super) address: IpAddr,
    /// The bell is or may be readable.
    rung: bool,
}

impl Incoming {
    /// Takes the offer that has come over this connection; `None` if there is none yet.
    pub(super) fn accept(line: &UnixSocket) -> io::Result<Option<(Consumer, Bell)>> {
        let mut buf = [0; 16];
        let Some(letter) = line.receive(&mut buf)? else { return Ok(None) };
        let refuse = || io::Error::from(io::ErrorKind::InvalidData);
        if buf[..letter.len] != OFFER || letter.uid != Some(own_uid()) {
            return Err(refuse());
        }
        let [memory, bell] = <[OwnedFd; 2]>::try_from(letter.fds).map_err(|_| refuse())?;
        Ok(Some((Consumer::open(&memory)?, Bell::adopt(bell)?)))
    }

    pub(super) fn new(
        ring: Consumer,
        bell: Watched<Bell>,
        line: Watched<UnixSocket>,
        address: IpAddr,
    ) -> Self {
        Self { ring, bell, line, address, rung: false }
    }

    /// Whether all has been taken.
    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Hands over frames, about `budget` packets; how many packets and bytes.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        buf: &mut [u8; MOST],
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<(usize, usize), Broken> {
        let (mut packets, mut bytes) = (0, 0);
        while packets < budget {
            let Some(len) = self.ring.pop(buf)? else { break };
            let frame = letter::parse(&buf[..len]).ok_or(Broken)?;
            packets += frame.payloads().count();
            bytes += frame.payload.len();
            sink(&frame);
        }
        Ok((packets, bytes))
    }

    /// Somebody sleeps on the bell: sees to it that it is readable if there is a record, is not if
    /// there is none, and becomes so when one comes.
    pub(super) fn settle(&mut self) {
        if self.ring.is_empty() {
            if !self.ring.is_asleep() {
                // The sender may have rung, or be about to.
                self.rung = true;
            }
            if self.rung {
                self.rung = !self.bell.silence();
            }
            self.ring.sleeps(true);
        }
        if !self.ring.is_empty() && !self.rung {
            self.bell.ring();
            self.rung = true;
        }
    }

    /// Nobody sleeps on the bell.
    pub(super) fn ignore(&mut self) {
        self.ring.sleeps(false);
    }
}
