//! The event queue of a simulated network, ordered by time.
//! Events of the same time happen in the order in which they were scheduled, so a run depends only
//! on its settings.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens at a point in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A packet arrives at its next node.
    Arrival(u32),
    /// A host handles the packets that have arrived.
    Turn(u32),
    /// A host's link has sent the whole batch.
    Idle(u32),
    /// A timer of a host's engine expires.
    Timer(u32),
}

/// The queue of events.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
}

impl Events {
    /// Schedules an event. `at`: nanoseconds since the start.
    pub(super) fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse((at, self.scheduled, event)));
    }

    /// Returns when the next event happens, in nanoseconds since the start.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Removes the next event and returns it with its time.
    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_happen_by_time_and_then_in_the_order_of_scheduling() {
        let mut events = Events::default();
        for (at, number) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            events.schedule(at, Event::Arrival(number));
        }
        assert_eq!(events.next_at(), Some(3));
        let order: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        let expected = [(3, 1), (3, 3), (5, 0), (5, 2)];
        assert_eq!(order, expected.map(|(at, number)| (at, Event::Arrival(number))));
    }
}
