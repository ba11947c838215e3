//! The receiving side of a shard on one queue of the interface.

use std::sync::Arc;

use rustix::net::RecvFlags;
use rustix::net::sockopt::xdp_statistics;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::pool::Pool;
use super::ring::Consumer;
use super::socket::Kind;
use super::umem::CHUNK;
use crate::error::NetError;
use rxe_sys::SharedFd;

/// The receive ring of a shard on one queue.
#[derive(Debug)]
pub(super) struct Receiver {
    fd: SharedFd,
    rx: Consumer<XdpDesc>,
    kind: Kind,
    /// Declared after the ring, so that it is dropped after it.
    pool: Arc<Pool>,
    /// The buffer in which a frame of several chunks is put together.
    whole: Vec<u8>,
}

/// The number of frames between two refills of the fill ring.
const REFILL: usize = 64;
/// The longest frame that is put together, in bytes: an IP packet of maximum length.
const LONGEST: usize = (64 << 10) + 64;

impl Receiver {
    /// Creates a receiver for the ring of a socket on the pool's queue.
    pub(super) fn new(fd: SharedFd, rx: Consumer<XdpDesc>, kind: Kind, pool: Arc<Pool>) -> Self {
        Self { fd, rx, kind, pool, whole: Vec::new() }
    }

    pub(super) fn shared(&self) -> &SharedFd {
        &self.fd
    }

    /// Returns how many single-chunk frames can wait.
    pub(super) fn room(&self) -> usize {
        self.rx.size()
    }

    /// Hands about `budget` frames to `f`, each with the bytes of a later frame as a prefetch hint.
    /// Returns the number of frames.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        f: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, NetError> {
        let mut frames = 0;
        while frames < budget {
            let available = self.rx.available();
            if available == 0 {
                break;
            }
            let (chunks, got) = self.read(available, f);
            if chunks == 0 {
                break;
            }
            frames += got;
            let chunk = |i| self.rx.peek(i).addr & !(CHUNK as u64 - 1);
            self.pool.refill((0..chunks).map(chunk));
            self.rx.release(chunks);
        }
        // The driver may have found the fill ring empty before chunks were given back to it.
        if self.kind.zero_copy && self.pool.wants_wakeup() {
            self.fd.ensure()?;
            // A receive of 0 bytes, which only makes the driver poll the fill ring.
            let _ = rustix::net::recv(&self.fd, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
        }
        Ok(frames)
    }

    /// Reads frames of about [`REFILL`] of the `available` chunks. Returns the number of chunks and
    /// of frames.
    fn read(&mut self, available: usize, f: &mut dyn FnMut(&[u8], &[u8])) -> (usize, usize) {
        /// The distance to the prefetched frame, as the engine wants it.
        const DISTANCE: usize = rxe_core::wire::Frame::PREFETCH_DISTANCE;
        let umem = &self.pool.umem;
        let (mut chunks, mut frames) = (0, 0);
        while chunks < available.min(REFILL) {
            let desc = self.rx.peek(chunks);
            if !continues(&desc) {
                let next = (chunks + DISTANCE < available).then(|| self.rx.peek(chunks + DISTANCE));
                let next = next.and_then(|d| umem.received(d.addr, d.len));
                if let Some(bytes) = umem.received(desc.addr, desc.len) {
                    f(bytes, next.unwrap_or(&[]));
                }
                chunks += 1;
                frames += 1;
                continue;
            }
            let rest = (chunks..available).position(|i| !continues(&self.rx.peek(i)));
            // The last chunk has not arrived yet. If the kernel has no chunk left for it, it never
            // will, and the frame is dropped.
            let Some(rest) = rest else {
                if chunks == 0 && self.pool.is_dry() {
                    chunks = available;
                }
                break;
            };
            self.whole.clear();
            for i in chunks..=chunks + rest {
                let desc = self.rx.peek(i);
                let bytes = umem.received(desc.addr, desc.len).unwrap_or(&[]);
                if self.whole.len() + bytes.len() <= LONGEST {
                    self.whole.extend_from_slice(bytes);
                }
            }
            f(&self.whole, &[]);
            chunks += rest + 1;
            frames += 1;
        }
        (chunks, frames)
    }

    /// Returns the number of chunks received so far.
    #[cfg(test)]
    pub(super) fn received(&self) -> u32 {
        self.rx.taken()
    }

    /// Returns the number of chunks that wait to be received.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.rx.available()
    }

    /// Clears an error that would keep the descriptor readable, as when the interface went down.
    pub(super) fn clear_error(&self) {
        let _ = rustix::net::sockopt::socket_error(&self.fd);
    }

    /// Returns the number of frames lost so far for lack of room.
    pub(super) fn lost(&self) -> u64 {
        let Ok(lost) = xdp_statistics(&self.fd) else { return 0 };
        lost.rx_dropped + lost.rx_ring_full.unwrap_or(0)
    }
}

/// Returns whether a frame continues in the next chunk.
fn continues(desc: &XdpDesc) -> bool {
    desc.options.contains(XdpDescOptions::XDP_PKT_CONTD)
}
