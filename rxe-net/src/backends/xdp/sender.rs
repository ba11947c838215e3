//! What a shard sends, on the one queue of the interface that it sends on.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::pool::Pool;
use super::ring::Producer;
use super::socket::Kind;
use super::umem::{CHUNK, Lot};
use crate::error::NetError;
use rxe_sys::SharedFd;

/// The transmit ring of a shard, and its chunks.
#[derive(Debug)]
pub(super) struct Sender {
    fd: SharedFd,
    tx: Producer<XdpDesc>,
    kind: Kind,
    /// Dropped after the ring.
    pool: Arc<Pool>,
    lot: Lot,
    /// Chunks of the lot that are not in use.
    free: Vec<u64>,
    /// The driver has not noticed the last [`Sender::flush`].
    unheard: bool,
}

/// How far [`Sender::transmit`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transmitted {
    /// The frame is in the ring.
    Queued,
    /// All chunks are in use.
    NoRoom,
    /// The frame needs several chunks, which this socket cannot send.
    TooBig,
}

/// The shortest Ethernet frame, without its checksum. Not every driver pads.
const SHORTEST: usize = 60;

impl Sender {
    /// Sends from the chunks of a lot, through the ring of a socket on the pool's queue.
    pub(super) fn new(
        fd: SharedFd,
        tx: Producer<XdpDesc>,
        kind: Kind,
        pool: Arc<Pool>,
        lot: Lot,
    ) -> Self {
        let free = lot.chunks().collect();
        Self { fd, tx, kind, pool, lot, free, unheard: false }
    }

    /// Puts a frame made of these parts into the transmit ring. The kernel gets it with the next
    /// [`Sender::flush`].
    pub(super) fn transmit(&mut self, parts: [&[u8]; 3]) -> Transmitted {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let chunks = len.div_ceil(CHUNK);
        if chunks > 1 && !self.kind.frags {
            return Transmitted::TooBig;
        }
        if self.free.len() < chunks {
            self.reclaim();
        }
        if self.free.len() < chunks || self.tx.room() < chunks {
            return Transmitted::NoRoom;
        }
        let mut parts = parts.into_iter();
        let mut part = parts.next().unwrap_or(&[]);
        for left in (0..chunks).rev() {
            let Some(addr) = self.free.pop() else { return Transmitted::NoRoom };
            let Some(chunk) = self.lot.chunk(addr) else { return Transmitted::NoRoom };
            let mut at = 0;
            loop {
                let n = part.len().min(CHUNK - at);
                chunk[at..at + n].copy_from_slice(&part[..n]);
                (at, part) = (at + n, &part[n..]);
                if part.is_empty() {
                    let Some(next) = parts.next() else { break };
                    part = next;
                } else {
                    break;
                }
            }
            if len < SHORTEST {
                chunk[at..SHORTEST].fill(0);
                at = SHORTEST;
            }
            let mut options = XdpDescOptions::empty();
            options.set(XdpDescOptions::XDP_PKT_CONTD, left > 0);
            #[expect(clippy::cast_possible_truncation, reason = "at most a chunk")]
            self.tx.push(XdpDesc { addr, len: at as u32, options });
        }
        Transmitted::Queued
    }

    /// Has `fill` write a frame of `len` bytes, which then stands in the transmit ring as with
    /// [`Sender::transmit`]. One of several chunks is too big here.
    ///
    /// # Errors
    /// That of `fill`; there is no frame then.
    pub(super) fn write<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Transmitted, E> {
        let whole = len.max(SHORTEST);
        if whole > CHUNK {
            return Ok(Transmitted::TooBig);
        }
        if self.free.is_empty() {
            self.reclaim();
        }
        let Some(addr) = self.free.last().copied() else { return Ok(Transmitted::NoRoom) };
        if self.tx.room() == 0 {
            return Ok(Transmitted::NoRoom);
        }
        let Some(chunk) = self.lot.chunk(addr) else { return Ok(Transmitted::NoRoom) };
        let (frame, rest) = chunk.split_at_mut(len);
        fill(frame)?;
        rest[..whole - len].fill(0);
        self.free.pop();
        #[expect(clippy::cast_possible_truncation, reason = "at most a chunk")]
        self.tx.push(XdpDesc { addr, len: whole as u32, options: XdpDescOptions::empty() });
        Ok(Transmitted::Queued)
    }

    /// Whether the kernel has taken all that was put into the transmit ring.
    pub(super) fn is_empty(&self) -> bool {
        self.tx.pending() == 0
    }

    /// Whether the kernel has taken all that was put into the transmit ring, or the driver goes on with the
    /// rest by itself.
    pub(super) fn is_flushed(&self) -> bool {
        self.is_empty() || (self.kind.zero_copy && !self.unheard)
    }

    /// Whether [`Sender::flush`] is to be called again for what was put into the transmit ring before.
    pub(super) fn wants_flush(&self) -> bool {
        !self.is_empty() && (!self.kind.zero_copy || self.unheard || self.tx.needs_wakeup())
    }

    /// Has the kernel send what is in the transmit ring. It may leave some of it there, if the
    /// interface is busy ([`Sender::is_flushed`]).
    pub(super) fn flush(&mut self) -> Result<io::Result<()>, NetError> {
        self.tx.publish();
        self.unheard = false;
        let mut pending = self.tx.pending();
        while pending > 0 && self.tx.needs_wakeup() {
            match rustix::net::send(self.fd.intact()?, &[], SendFlags::DONTWAIT) {
                Ok(_) => {}
                // It sends some, and wants to be called again for others. A driver with zero copy that is
                // busy has not begun.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {
                    self.unheard = self.kind.zero_copy;
                }
                Err(e) => return Ok(Err(e.into())),
            }
            let before = std::mem::replace(&mut pending, self.tx.pending());
            if self.kind.zero_copy || pending == before {
                break;
            }
        }
        self.reclaim();
        Ok(Ok(()))
    }

    /// Takes back the chunks of what has been sent.
    fn reclaim(&mut self) {
        self.pool.reclaim(self.lot.range(), &mut self.free);
    }
}
