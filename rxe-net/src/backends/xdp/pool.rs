//! What the AF_XDP sockets on one queue of the interface share: the UMEM, and the rings in which chunks go
//! to the kernel and come back (fill and completion ring). The kernel has one of each for a queue, and each
//! shard a socket. Documentation/networking/af_xdp.rst, "XDP_SHARED_UMEM".
//!
//! Invariants: a chunk for receiving is in the fill ring, in the receive ring of a socket or being read. One
//! of a lot is in its sender's `free`, in a transmit ring, in the completion ring or waiting in [`Sent`]. So
//! no ring is ever too small for what belongs into it.
//!
//! Each of the two rings has a lock, under which addresses are moved and nothing else is done.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ring::{Consumer, Producer};
use super::umem::{Lot, Umem};

/// The UMEM of a queue, with its fill and completion rings.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) umem: Arc<Umem>,
    fill: Mutex<Producer<u64>>,
    sent: Mutex<Sent>,
    /// Those that no shard has yet, the next one last.
    lots: Mutex<Vec<Lot>>,
}

/// The completion ring, and what others have found in it.
#[derive(Debug)]
struct Sent {
    ring: Consumer<u64>,
    /// Chunks that wait for the sender of their lot, by lot.
    waiting: Vec<(Range<u64>, Vec<u64>)>,
}

impl Pool {
    /// The rings must have a place for each chunk; the chunks for receiving are in the fill ring already.
    pub(super) fn new(
        umem: Arc<Umem>,
        mut lots: Vec<Lot>,
        fill: Producer<u64>,
        completion: Consumer<u64>,
    ) -> Self {
        let waiting = lots.iter().map(|lot| (lot.range().clone(), Vec::new())).collect();
        lots.reverse();
        Self {
            umem,
            fill: Mutex::new(fill),
            sent: Mutex::new(Sent { ring: completion, waiting }),
            lots: Mutex::new(lots),
        }
    }

    /// Chunks to send from, for one more shard. `None` if all are given away.
    pub(super) fn take_lot(&self) -> Option<Lot> {
        self.lots.lock().pop()
    }

    /// Gives the kernel chunks to receive into.
    pub(super) fn refill(&self, chunks: impl Iterator<Item = u64>) {
        let mut fill = self.fill.lock();
        chunks.for_each(|chunk| _ = fill.push(chunk));
        fill.publish();
    }

    /// Whether the kernel has no chunk to receive into.
    pub(super) fn is_dry(&self) -> bool {
        self.fill.lock().pending() == 0
    }

    /// Whether the driver waits for a system call before it looks at the fill ring, in which there is
    /// something.
    pub(super) fn wants_wakeup(&self) -> bool {
        let fill = self.fill.lock();
        fill.needs_wakeup() && fill.pending() > 0
    }

    /// Takes back the chunks of this lot that have been sent.
    pub(super) fn reclaim(&self, lot: &Range<u64>, free: &mut Vec<u64>) {
        let Sent { ring, waiting } = &mut *self.sent.lock();
        if let Some((_, mine)) = waiting.iter_mut().find(|(range, _)| range == lot) {
            free.append(mine);
        }
        let sent = ring.available();
        for chunk in (0..sent).map(|i| ring.peek(i)) {
            if lot.contains(&chunk) {
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

    /// A pool with one chunk for receiving and these lots, and the kernel's ends of its rings.
    fn pool(lots: &[u32]) -> (Pool, Consumer<u64>, Producer<u64>) {
        let (umem, lots) = Umem::new(1, lots).unwrap();
        let ((fill, to_kernel), (from_kernel, completion)) = (both(), both());
        (Pool::new(umem, lots, fill, completion), to_kernel, from_kernel)
    }

    #[test]
    fn each_sender_gets_the_chunks_of_its_lot_back() {
        let (pool, _, mut kernel) = pool(&[2, 1]);
        let [one, other] = [(); 2].map(|()| pool.take_lot().unwrap());
        assert!(pool.take_lot().is_none());
        assert!(one.chunks().eq([4096, 8192]) && other.chunks().eq([12288]));
        // The last is of no lot.
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
