//! Delays the destruction of an object until all its events are acknowledged. IBTA 11.6.3.

use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::explain;

/// The events of an object that the program has received and not yet acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    events: Mutex<Events>,
    fewer: Condvar,
}

/// The numbers of events of an object since its creation.
#[derive(Debug, Default)]
struct Events {
    delivered: u64,
    acknowledged: u64,
}

impl Unacknowledged {
    /// Counts an event that the program has received.
    pub(crate) fn delivered(&self) {
        self.events.lock().delivered += 1;
    }

    /// Counts `count` events as acknowledged, but no more than were delivered.
    pub(crate) fn acknowledged(&self, count: u32) {
        let mut events = self.events.lock();
        events.acknowledged = (events.acknowledged + u64::from(count)).min(events.delivered);
        self.fewer.notify_all();
    }

    /// Returns the number of unacknowledged events.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        let events = self.events.lock();
        events.delivered - events.acknowledged
    }

    /// Returns the number of events delivered until now, for [`Unacknowledged::wait_for`].
    pub(crate) fn so_far(&self) -> u64 {
        self.events.lock().delivered
    }

    /// Waits until all events are acknowledged, as verbs that destroy objects must.
    pub(crate) fn wait(&self, verb: &'static str) {
        self.wait_for(verb, u64::MAX);
    }

    /// Waits until `wanted` events, or all that were delivered, are acknowledged.
    pub(crate) fn wait_for(&self, verb: &'static str, wanted: u64) {
        rxe_sys::may_block("waiting for acknowledgements");
        let mut events = self.events.lock();
        loop {
            let left = events.delivered.min(wanted).saturating_sub(events.acknowledged);
            if left == 0 {
                return;
            }
            if self.fewer.wait_for(&mut events, Duration::from_secs(2)).timed_out() {
                let why = format!(
                    "waits for the acknowledgement of {left} events (ibv_ack_cq_events, \
                     ibv_ack_async_event, rdma_ack_cm_event)"
                );
                MutexGuard::unlocked(&mut events, || explain::once(verb, &why));
            }
        }
    }
}
