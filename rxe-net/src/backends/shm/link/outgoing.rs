//! The sender's end of a ring: puts frames and packets into it, and wakes the receiver.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rxe_core::mem::{AccessError, Source};
use rxe_core::wire::{Frame, NetHeader};
use rxe_sys::CheckedFd;
use rxe_sys::unix::UnixSocket;

use super::tag::PacketTag;
use super::{FRAME, OFFER};
use crate::backends::shm::ring::{Broken, CAPACITY, Producer};
use crate::backends::shm::wake::WakeUp;
use crate::host::message;

/// The maximum payload of a coalesced segment in bytes. A larger one would delay the first packet.
pub(in crate::backends::shm) const MAX_COALESCED: usize = 32 << 10;

/// The sender's end of a ring.
#[derive(Debug)]
pub(in crate::backends::shm) struct Outgoing {
    ring: Producer,
    wake: WakeUp,
    pub(in crate::backends::shm) line: UnixSocket,
    /// The ring has records that the receiver may not have been told of.
    unsignalled: bool,
    congestion: Congestion,
    /// The header of the last direct packet.
    net: Option<NetHeader>,
}

/// How well the receiver keeps up with the sender.
#[derive(Clone, Copy, Debug)]
enum Congestion {
    /// The ring has not been full since it was last at most half full.
    None,
    /// The ring was full at this time, when the receiver had taken this many bytes.
    Since(Instant, u64),
    /// The receiver took next to nothing while the sender waited. It had taken this many bytes
    /// then.
    Stopped(u64),
}

/// A receiver that takes fewer bytes than this within its timeout counts as stopped, until it has
/// taken that many. Without such a threshold, a receiver that takes a record now and then would
/// slow all other destinations.
const PROGRESS: u64 = 256 << 10;

/// The result of pushing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends::shm) enum Pushed {
    /// The frame is in the ring.
    Sent,
    /// The ring is full: try again soon.
    Full,
    /// The ring is full and its receiver does not empty it: the frame is lost.
    Lost,
}

impl Outgoing {
    /// Offers a ring to the process that listens on this path. Returns `None` if no process of this
    /// user does.
    pub(in crate::backends::shm) fn open(path: &Path) -> io::Result<Option<Self>> {
        let Ok(line) = UnixSocket::connect(path) else { return Ok(None) };
        Self::offer(line).map(Some)
    }

    /// Offers a ring over this connection.
    pub(in crate::backends::shm) fn offer(line: UnixSocket) -> io::Result<Self> {
        let (ring, memory) = Producer::create()?;
        let memory = CheckedFd::new(memory);
        let wake = WakeUp::new()?;
        line.send(&OFFER, &[memory.as_fd(), wake.as_fd()])?;
        Ok(Self { ring, wake, line, unsignalled: false, congestion: Congestion::None, net: None })
    }

    /// Puts a frame into the ring if there is room. A receiver gets `timeout` to make room: nothing
    /// slows a sender of unreliable messages, and when two processes share a CPU, the messages sent
    /// while the other does not run would be lost. A receiver that exceeds the timeout is not
    /// waited for again until it has made progress.
    pub(in crate::backends::shm) fn push(
        &mut self,
        frame: &Frame<'_>,
        timeout: Duration,
    ) -> Result<Pushed, Broken> {
        let header = message::emit(frame);
        let sent = self.ring.push(FRAME, [&header, frame.payload])?;
        self.unsignalled |= sent;
        if sent && matches!(self.congestion, Congestion::None) {
            return Ok(Pushed::Sent);
        }
        self.ring.refresh_tail()?;
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

    /// Puts `count` packets without pad and ICRC into the ring, at most 256. If there is more than
    /// one, their payload has at most [`MAX_COALESCED`] bytes. The payload is copied directly into
    /// the ring.
    #[inline]
    pub(in crate::backends::shm) fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
        count: u16,
    ) -> Result<DirectSend, SendError> {
        let len = payload.len();
        let has_header = self.net.as_ref() != Some(net);
        let aligned = len >= PacketTag::ALIGN_FROM;
        let tag = PacketTag { has_header, aligned, head_len: head.len(), count };
        let Some(record) = self.ring.reserve(tag.payload_at() + len)? else {
            return Ok(DirectSend::NoRoom);
        };
        if tag.has_header {
            record.write(0, &message::emit_header(net, 1))?;
        }
        record.write(tag.head_at(), head)?;
        payload.write_to(&[record.span(tag.payload_at(), len)]).map_err(SendError::Payload)?;
        record.commit(tag.to_word())?;
        if tag.has_header {
            self.net = Some(*net);
        }
        self.unsignalled = true;
        Ok(DirectSend::Sent(tag.bytes(len)))
    }

    /// Returns whether the receiver has taken nothing so far.
    pub(in crate::backends::shm) fn is_untouched(&mut self) -> bool {
        self.ring.refresh_tail().is_ok() && self.ring.taken() == 0
    }

    /// Wakes the receiver if it sleeps and there are new records.
    pub(in crate::backends::shm) fn flush(&mut self) -> Result<(), Broken> {
        if std::mem::take(&mut self.unsignalled) && self.ring.must_wake() {
            self.wake.signal()?;
        }
        Ok(())
    }
}

/// The result of sending packets without pad and ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends::shm) enum DirectSend {
    /// The packets are in the ring; this is the number of their bytes.
    Sent(usize),
    /// The ring has no room now.
    NoRoom,
}

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends::shm) enum SendError {
    /// The payload could not be read.
    Payload(AccessError),
    /// The ring cannot be used any more.
    Broken,
}

impl From<Broken> for SendError {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl AsFd for Outgoing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}
