//! Doorbells: how threads tell an engine, without taking its lock, which queue pairs have work.

use crate::sync::{Ordering, SegQueue, fence};
use crate::types::Qpn;

/// The QPs with work for an engine. The engine and the handles of its QPs share this object.
///
/// A push has two steps: it claims a slot, then fills it. If a poster is preempted between the two,
/// the thread that takes that doorbell waits, with the engine's lock held: crossbeam's queue spins
/// for some microseconds and then yields the processor until the slot is filled. The step takes a
/// few instructions, so the wait is rare, and short if the poster can run. The poster cannot run if
/// the waiting thread has real-time priority and both are bound to one processor: such threads need
/// equal priority, as with any spinlock. A queue behind a mutex would delay posters too, and for
/// longer.
#[derive(Debug, Default)]
pub struct Doorbells {
    rung: SegQueue<Qpn>,
}

impl Doorbells {
    /// In place of a QPN: a completion queue has overflowed. No queue pair has this number.
    pub(crate) const CQ_OVERFLOW: Qpn = Qpn::SMI;

    /// Returns whether no doorbell is pending.
    pub fn is_empty(&self) -> bool {
        self.rung.is_empty()
    }

    /// Ensures that this thread or another one starts all posted requests.
    ///
    /// `turn` runs the engine if its lock is free, and returns whether it was. A thread calls
    /// `drain` after it has posted, and after it has released the engine's lock. No request is
    /// stranded: the poster writes the doorbell (1), then reads the lock (2); the holder releases
    /// the lock (3), then reads the doorbells (4). A sequentially consistent fence is between the
    /// two steps of each, and one of the two fences comes first. If it is the poster's, (4) sees
    /// (1) and the holder serves the request. If it is the holder's, (2) sees (3) or something
    /// later: either the lock is free and the poster takes it, or a later holder has it, for which
    /// the same argument holds.
    pub fn drain(&self, mut turn: impl FnMut() -> bool) {
        loop {
            fence(Ordering::SeqCst);
            if self.is_empty() || !turn() {
                return;
            }
        }
    }

    pub(crate) fn ring(&self, qpn: Qpn) {
        debug_assert_ne!(qpn, Self::CQ_OVERFLOW, "that number stands for all queue pairs");
        self.rung.push(qpn);
    }

    /// Reports the overflow of a completion queue of this engine's queue pairs. Another engine may
    /// have caused it.
    pub(crate) fn ring_overflow(&self) {
        self.rung.push(Self::CQ_OVERFLOW);
    }

    /// Takes the number of a queue pair with work, or [`Doorbells::CQ_OVERFLOW`].
    pub(crate) fn take(&self) -> Option<Qpn> {
        // `pop` executes a fence when the queue is empty; `is_empty` avoids it. `drain` finds a
        // doorbell missed here.
        if self.is_empty() { None } else { self.rung.pop() }
    }
}
