//! What will happen in a network, by time. Events of the same time happen in the order in which they
//! were scheduled, so that a run depends on nothing but its settings.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A packet arrives where it is on its way to.
    Arrival(u32),
    /// A host handles what has arrived.
    Turn(u32),
    /// A host's link has sent everything that it was given.
    Idle(u32),
    /// Something is due in a host's engine.
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

    /// When the next event happens.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the next event, with its time.
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
