//! The sending side of a shard, on the one queue of the interface that it sends on.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::pool::Pool;
use super::ring::Producer;
use super::socket::Kind;
use super::umem::{CHUNK, TxChunks};
use crate::error::NetError;
use rxe_sys::SharedFd;

/// The transmit ring of a shard, and its chunks.
#[derive(Debug)]
pub(super) struct Sender {
    fd: SharedFd,
    tx: Producer<XdpDesc>,
    kind: Kind,
    /// Declared after the ring, so that it is dropped after it.
    pool: Arc<Pool>,
    tx_chunks: TxChunks,
    /// The transmit chunks that are not in use.
    free: Vec<u64>,
    /// The driver has not noticed the last [`Sender::flush`].
    wakeup_missed: bool,
}

/// The result of [`Sender::transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transmitted {
    /// The frame is in the ring.
    Queued,
    /// All chunks are in use.
    NoRoom,
    /// The frame needs several chunks, which this socket cannot send.
    TooBig,
}

/// The length of the shortest Ethernet frame without its checksum, in bytes. Not every driver pads.
const SHORTEST: usize = 60;

impl Sender {
    /// Creates a sender with the chunks of a shard and the ring of a socket on the pool's queue.
    pub(super) fn new(
        fd: SharedFd,
        tx: Producer<XdpDesc>,
        kind: Kind,
        pool: Arc<Pool>,
        tx_chunks: TxChunks,
    ) -> Self {
        let free = tx_chunks.chunks().collect();
        Self { fd, tx, kind, pool, tx_chunks, free, wakeup_missed: false }
    }

    /// Puts a frame made of these parts into the transmit ring. The kernel gets the frame with the
    /// next [`Sender::flush`].
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
            let Some(chunk) = self.tx_chunks.chunk(addr) else { return Transmitted::NoRoom };
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

    /// Puts a frame of `len` bytes into the transmit ring like [`Sender::transmit`]; `fill` writes
    /// it. A frame that needs several chunks is too big here.
    ///
    /// # Errors
    /// The error of `fill`; the frame is then not sent.
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
        let Some(chunk) = self.tx_chunks.chunk(addr) else { return Ok(Transmitted::NoRoom) };
        let (frame, rest) = chunk.split_at_mut(len);
        fill(frame)?;
        rest[..whole - len].fill(0);
        self.free.pop();
        #[expect(clippy::cast_possible_truncation, reason = "at most a chunk")]
        self.tx.push(XdpDesc { addr, len: whole as u32, options: XdpDescOptions::empty() });
        Ok(Transmitted::Queued)
    }

    /// Returns whether the kernel has taken everything in the transmit ring.
    pub(super) fn is_empty(&self) -> bool {
        self.tx.pending() == 0
    }

    /// Returns whether no further call is needed for the transmit ring. The kernel has taken
    /// everything, or the driver will take the rest by itself.
    pub(super) fn is_flushed(&self) -> bool {
        self.is_empty() || (self.kind.zero_copy && !self.wakeup_missed)
    }

    /// Returns whether [`Sender::flush`] must be called again for frames already in the transmit
    /// ring.
    pub(super) fn wants_flush(&self) -> bool {
        !self.is_empty() && (!self.kind.zero_copy || self.wakeup_missed || self.tx.needs_wakeup())
    }

    /// Makes the kernel send the contents of the transmit ring. Some may stay in the ring if the
    /// interface is busy ([`Sender::is_flushed`]).
    pub(super) fn flush(&mut self) -> Result<io::Result<()>, NetError> {
        self.tx.publish();
        self.wakeup_missed = false;
        let mut pending = self.tx.pending();
        while pending > 0 && self.tx.needs_wakeup() {
            match rustix::net::send(self.fd.intact()?, &[], SendFlags::DONTWAIT) {
                Ok(_) => {}
                // The kernel has sent some frames and must be called again for the others. A busy
                // zero-copy driver has not begun.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {
                    self.wakeup_missed = self.kind.zero_copy;
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

    /// Collects the chunks of frames that were sent.
    fn reclaim(&mut self) {
        self.pool.reclaim(self.tx_chunks.range(), &mut self.free);
    }
}
