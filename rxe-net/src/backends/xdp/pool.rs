//! The state that AF_XDP sockets on one queue of the interface share. It consists of the UMEM, and
//! of the fill and completion rings, in which chunks go to the kernel and come back. The kernel has
//! one of each for a queue, and a socket for each shard. Documentation/networking/af_xdp.rst,
//! "XDP_SHARED_UMEM".
//!
//! Invariants: a receive chunk is in the fill ring, in the receive ring of a socket or being read.
//! A transmit chunk is in its sender's `free`, in a transmit ring, in the completion ring or
//! waiting in [`Sent`]. So no ring is ever too small for its chunks.
//!
//! Each of the two rings has a lock, under which only addresses are moved.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ring::{Consumer, Producer};
use super::umem::{TxChunks, Umem};

/// The UMEM of a queue, with its fill and completion rings.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) umem: Arc<Umem>,
    fill: Mutex<Producer<u64>>,
    sent: Mutex<Sent>,
    /// The transmit chunks that no shard has yet, those of the next shard last.
    tx_chunks: Mutex<Vec<TxChunks>>,
}

/// The completion ring, and chunks of other senders found in it.
#[derive(Debug)]
struct Sent {
    ring: Consumer<u64>,
    /// The chunks that wait for their sender, by the range of the sender's chunks.
    waiting: Vec<(Range<u64>, Vec<u64>)>,
}

impl Pool {
    /// Creates a pool. The rings must have an entry for each chunk; the receive chunks are in the
    /// fill ring already.
    pub(super) fn new(
        umem: Arc<Umem>,
        mut tx_chunks: Vec<TxChunks>,
        fill: Producer<u64>,
        completion: Consumer<u64>,
    ) -> Self {
        let waiting = tx_chunks.iter().map(|chunks| (chunks.range().clone(), Vec::new())).collect();
        tx_chunks.reverse();
        Self {
            umem,
            fill: Mutex::new(fill),
            sent: Mutex::new(Sent { ring: completion, waiting }),
            tx_chunks: Mutex::new(tx_chunks),
        }
    }

    /// Takes the transmit chunks of one more shard. Returns `None` if all are taken.
    pub(super) fn take_tx_chunks(&self) -> Option<TxChunks> {
        self.tx_chunks.lock().pop()
    }

    /// Gives receive chunks back to the kernel.
    pub(super) fn refill(&self, chunks: impl Iterator<Item = u64>) {
        let mut fill = self.fill.lock();
        chunks.for_each(|chunk| _ = fill.push(chunk));
        fill.publish();
    }

    /// Returns whether the kernel has no receive chunk left.
    pub(super) fn is_dry(&self) -> bool {
        self.fill.lock().pending() == 0
    }

    /// Returns whether the driver needs a system call to notice chunks in the fill ring.
    pub(super) fn wants_wakeup(&self) -> bool {
        let fill = self.fill.lock();
        fill.needs_wakeup() && fill.pending() > 0
    }

    /// Collects the chunks in the range `own` that have been sent.
    pub(super) fn reclaim(&self, own: &Range<u64>, free: &mut Vec<u64>) {
        let Sent { ring, waiting } = &mut *self.sent.lock();
        if let Some((_, mine)) = waiting.iter_mut().find(|(range, _)| range == own) {
            free.append(mine);
        }
        let sent = ring.available();
        for chunk in (0..sent).map(|i| ring.peek(i)) {
            if own.contains(&chunk) {
                free.push(chunk);
            } else if let Some((_, others)) =
                waiting.iter_mut().find(|(range, _)| range.contains(&chunk))
            {
                others.push(chunk);
            }
        }
        ring.release(sent);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::tests::both;
    use super::*;

    /// Returns a pool with one receive chunk and these numbers of transmit chunks, and the kernel's
    /// ends of its rings.
    fn pool(tx: &[u32]) -> (Pool, Consumer<u64>, Producer<u64>) {
        let (umem, tx_chunks) = Umem::new(1, tx).unwrap();
        let ((fill, to_kernel), (from_kernel, completion)) = (both(), both());
        (Pool::new(umem, tx_chunks, fill, completion), to_kernel, from_kernel)
    }

    #[test]
    fn each_sender_gets_its_own_chunks_back() {
        let (pool, _, mut kernel) = pool(&[2, 1]);
        let [one, other] = [(); 2].map(|()| pool.take_tx_chunks().unwrap());
        assert!(pool.take_tx_chunks().is_none());
        assert!(one.chunks().eq([4096, 8192]) && other.chunks().eq([12288]));
        // The last chunk belongs to no shard.
        for chunk in [8192, 12288, 4096, 0] {
            assert!(kernel.push(chunk));
        }
        kernel.publish();
        let mut free = Vec::new();
        pool.reclaim(one.range(), &mut free);
        assert_eq!(free, [8192, 4096]);
        pool.reclaim(one.range(), &mut free);
        assert_eq!(free, [8192, 4096]);
        free.clear();
        for _ in 0..2 {
            pool.reclaim(other.range(), &mut free);
            assert_eq!(free, [12288], "it comes back once");
        }
        assert_eq!(kernel.room(), 4);
    }

    #[test]
    fn the_kernel_gets_chunks_to_receive_into() {
        let (pool, kernel, _) = pool(&[]);
        assert!(pool.is_dry() && !pool.wants_wakeup());
        pool.refill([0, 4096].into_iter());
        assert_eq!((kernel.available(), kernel.peek(1)), (2, 4096));
        assert!(!pool.is_dry() && !pool.wants_wakeup(), "it has not asked");
    }
}
