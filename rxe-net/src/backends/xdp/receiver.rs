//! What a shard receives on one queue of the interface.

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
    /// Dropped after the ring.
    pool: Arc<Pool>,
    /// A frame of several chunks is put together here.
    whole: Vec<u8>,
}

/// Frames between two refills of the fill ring.
const REFILL: usize = 64;
/// The longest frame that is put together: that of an IP packet.
const LONGEST: usize = (64 << 10) + 64;

impl Receiver {
    /// Receives from the ring of a socket on the pool's queue.
    pub(super) fn new(fd: SharedFd, rx: Consumer<XdpDesc>, kind: Kind, pool: Arc<Pool>) -> Self {
        Self { fd, rx, kind, pool, whole: Vec::new() }
    }

    pub(super) fn shared(&self) -> &SharedFd {
        &self.fd
    }

    /// How many frames of a chunk can wait.
    pub(super) fn room(&self) -> usize {
        self.rx.size()
    }

    /// Hands at most about `budget` frames to `f`, each with the bytes of one that comes later, as a
    /// hint. Returns how many.
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
        // The driver may have found the ring empty since these or earlier chunks were given back.
        if self.kind.zero_copy && self.pool.wants_wakeup() {
            self.fd.ensure()?;
            // It receives nothing: the driver looks at the fill ring.
            let _ = rustix::net::recv(&self.fd, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
        }
        Ok(frames)
    }

    /// Reads frames of at most about [`REFILL`] of the `available` chunks. Returns the numbers of chunks and
    /// frames.
    fn read(&mut self, available: usize, f: &mut dyn FnMut(&[u8], &[u8])) -> (usize, usize) {
        /// As the engine wants it.
        const DISTANCE: usize = rxe_core::wire::Frame::PREFETCH_DISTANCE;
        let umem = &self.pool.umem;
        let (mut chunks, mut frames) = (0, 0);
        while chunks < available.min(REFILL) {
            let desc = self.rx.peek(chunks);
            if !goes_on(&desc) {
                let next = (chunks + DISTANCE < available).then(|| self.rx.peek(chunks + DISTANCE));
                let next = next.and_then(|d| umem.received(d.addr, d.len));
                if let Some(bytes) = umem.received(desc.addr, desc.len) {
                    f(bytes, next.unwrap_or(&[]));
                }
                chunks += 1;
                frames += 1;
                continue;
            }
            let rest = (chunks..available).position(|i| !goes_on(&self.rx.peek(i)));
            // The last chunk is not there yet. If the ring has no place for it, it never will be.
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

    /// Chunks that frames came in so far.
    #[cfg(test)]
    pub(super) fn received(&self) -> u32 {
        self.rx.taken()
    }

    /// Chunks with frames that nobody has received yet.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.rx.available()
    }

    /// Clears an error that would keep the descriptor readable: the interface went down.
    pub(super) fn clear_error(&self) {
        let _ = rustix::net::sockopt::socket_error(&self.fd);
    }

    /// Frames that were lost so far because there was no room for them.
    pub(super) fn lost(&self) -> u64 {
        let Ok(lost) = xdp_statistics(&self.fd) else { return 0 };
        lost.rx_dropped + lost.rx_ring_full.unwrap_or(0)
    }
}

/// Whether a frame goes on in the next chunk.
fn goes_on(desc: &XdpDesc) -> bool {
    desc.options.contains(XdpDescOptions::XDP_PKT_CONTD)
}
