//! The rule that an object goes only when its events are acknowledged. IBTA 11.6.3.

use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::explain;

/// The number of an object's events that the program has got and not yet acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    fewer: Condvar,
}

impl Unacknowledged {
    pub(crate) fn delivered(&self) {
        *self.count.lock() += 1;
    }

    pub(crate) fn acknowledged(&self, count: u32) {
        let mut left = self.count.lock();
        *left = left.saturating_sub(count);
        self.fewer.notify_all();
    }

    /// How many are not.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u32 {
        *self.count.lock()
    }

    /// Waits until all are acknowledged, as verbs that destroy objects must.
    pub(crate) fn wait(&self, verb: &'static str) {
        rxe_net::may_block("waiting for acknowledgements");
        let mut left = self.count.lock();
        while *left > 0 {
            let long = self.fewer.wait_for(&mut left, Duration::from_secs(2)).timed_out();
            if long && *left > 0 {
                let why = format!(
                    "waits for the acknowledgement of {left} events (ibv_ack_cq_events, \
                     ibv_ack_async_event)"
                );
                MutexGuard::unlocked(&mut left, || explain::once(verb, &why));
            }
        }
    }
}
