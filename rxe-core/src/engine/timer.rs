//! When QPs next want to be called: a heap whose entries may be out of date. A deadline that moves
//! back, as with every acknowledgement, costs nothing; the old entry is looked at when it is due and
//! replaced then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::types::{Qpn, Time};

#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Time, Qpn)>>,
}

impl Timers {
    pub(super) fn push(&mut self, at: Time, qpn: Qpn) {
        self.heap.push(Reverse((at, qpn)));
    }

    /// The next QP whose entry is due.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Qpn> {
        let &Reverse((at, _)) = self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, qpn))| qpn)
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|&Reverse((at, _))| at)
    }
}
