//! How threads tell an engine which queue pairs have something for it, without its lock.

use crate::sync::{Ordering, SegQueue, fence};
use crate::types::Qpn;

/// The QPs that an engine must look at. The engine and the handles of its QPs share it.
///
/// A push has two steps: it claims a slot, then fills it. If a poster is preempted between the two,
/// whoever takes that doorbell waits, with the engine's lock held: crossbeam's queue spins for some
/// microseconds and then yields the processor until the slot is filled. The step is a few instructions
/// long, so that is rare, and short where the poster may run. It may not run where the waiting thread
/// has real-time priority and both are bound to one processor: such threads need the same priority, as
/// with any lock that spins. A queue behind a mutex would hold up posters too, and for longer.
#[derive(Debug, Default)]
pub struct Doorbells {
    rung: SegQueue<Qpn>,
}

impl Doorbells {
    /// Stands for all queue pairs behind a completion queue that has overflowed. No queue pair has
    /// this number.
    pub(crate) const OVERFLOW: Qpn = Qpn::SMI;

    /// Whether nothing was posted since the engine last looked.
    pub fn is_empty(&self) -> bool {
        self.rung.is_empty()
    }

    /// Makes sure that this thread or another starts everything that is posted.
    ///
    /// `turn` turns the engine if its lock is free, and returns whether it was. A thread calls this
    /// after it has posted, and after it has released the engine's lock. No request is stranded:
    /// the poster writes the doorbell (1), then reads the lock (2); the holder releases the lock
    /// (3), then reads the doorbells (4). A sequentially consistent fence stands between the two
    /// steps of each, and one of the two fences comes first. If it is the poster's, (4) sees (1)
    /// and the holder serves the request. If it is the holder's, (2) sees (3) or something later:
    /// either the lock is free and the poster takes it, or a later holder has it, for whom the same
    /// holds.
    pub fn drain(&self, mut turn: impl FnMut() -> bool) {
        loop {
            fence(Ordering::SeqCst);
            if self.is_empty() || !turn() {
                return;
            }
        }
    }

    pub(crate) fn ring(&self, qpn: Qpn) {
        debug_assert_ne!(qpn, Self::OVERFLOW, "that number stands for all queue pairs");
        self.rung.push(qpn);
    }

    /// A completion queue of this engine's queue pairs has overflowed, perhaps by another engine.
    pub(crate) fn ring_overflow(&self) {
        self.rung.push(Self::OVERFLOW);
    }

    /// Takes a queue pair that was posted to, or [`Doorbells::OVERFLOW`].
    pub(crate) fn take(&self) -> Option<Qpn> {
        // To find the queue empty costs `pop` a fence; what is missed here, `drain` finds.
        if self.is_empty() { None } else { self.rung.pop() }
    }
}
