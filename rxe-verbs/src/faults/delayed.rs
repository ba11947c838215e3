//! Delayed completions.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rxe_core::queue::{Completion, CompletionQueue, Notify};
use rxe_core::types::{Qpn, Time};
use rxe_sys::spawn_thread;

use super::verbs::VerbsTally;
use crate::error::{Error, Result};
use crate::os::now;

/// Delays the completions of one queue.
#[derive(Debug)]
pub(crate) struct DelayedCq {
    by: Duration,
    tally: Arc<VerbsTally>,
    /// The next completion, while it is too early to return it.
    early: Mutex<Option<Completion>>,
    /// The times at which waiting threads must be woken.
    wakes: Sender<Time>,
}

impl DelayedCq {
    /// Creates the delay of a queue. Returns `None` if completions are not delayed. The receiver is
    /// for [`DelayedCq::start`].
    pub(crate) fn new(tally: &Arc<VerbsTally>) -> Option<(Self, Receiver<Time>)> {
        let by = tally.slow_cq()?;
        let (wakes, times) = channel();
        Some((Self { by, tally: Arc::clone(tally), early: Mutex::new(None), wakes }, times))
    }

    /// Starts a thread that notifies `notify` at these times, until the queue is dropped.
    pub(crate) fn start<N: Notify + 'static>(times: Receiver<Time>, notify: Weak<N>) -> Result<()> {
        let run = move || {
            for time in times {
                std::thread::sleep(time.since(now()));
                let Some(notify) = notify.upgrade() else { return };
                notify.notify();
            }
        };
        let started = spawn_thread("rxe-fault", run);
        started.map(drop).map_err(|e| Error::io("start a thread for a fault", e))
    }

    /// Called when the queue is armed. A completion that was not returned yet notifies again, as if
    /// it arrived now.
    pub(crate) fn armed(&self, queue: &CompletionQueue) {
        if self.early.lock().is_some() || !queue.is_empty() {
            self.notify();
        }
    }

    /// Takes the oldest completion, if its delay is over.
    pub(crate) fn poll(&self, queue: &CompletionQueue) -> Option<Completion> {
        let mut early = self.early.lock();
        let completion = match early.take() {
            Some(completion) => completion,
            None => {
                let next = queue.poll()?;
                self.tally.count_delayed();
                next
            }
        };
        if now() < completion.timestamp + self.by {
            *early = Some(completion);
            return None;
        }
        Some(completion)
    }

    /// Removes the delayed completion of a queue pair that was reset or destroyed. Those in the
    /// queue must be removed already.
    pub(crate) fn discard(&self, qpn: Qpn) {
        self.early.lock().take_if(|early| early.qpn == qpn);
    }
}

impl Notify for DelayedCq {
    /// Schedules a notification for when a completion that arrives now may be returned.
    fn notify(&self) {
        // Sending fails only if the thread does not exist.
        let _ = self.wakes.send(now() + self.by);
    }

    // `overflowed` does nothing: a device with faults has one shard, so no other engine needs a turn.
}
