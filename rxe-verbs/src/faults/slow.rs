//! Completions that are held back.

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

/// Holds back the completions of one queue.
#[derive(Debug)]
pub(crate) struct SlowCq {
    by: Duration,
    tally: Arc<VerbsTally>,
    /// The next completion, while it is too early for it.
    early: Mutex<Option<Completion>>,
    /// When somebody is to be woken.
    wakes: Sender<Time>,
}

impl SlowCq {
    /// `None` if completions are not held back. With it comes what [`SlowCq::start`] needs.
    pub(crate) fn new(tally: &Arc<VerbsTally>) -> Option<(Self, Receiver<Time>)> {
        let by = tally.slow_cq()?;
        let (wakes, times) = channel();
        Some((Self { by, tally: Arc::clone(tally), early: Mutex::new(None), wakes }, times))
    }

    /// Wakes through `notify` at these times, until the queue is dropped.
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

    /// The queue was armed. What is in it and was not given yet counts as not yet there.
    pub(crate) fn armed(&self, queue: &CompletionQueue) {
        if self.early.lock().is_some() || !queue.is_empty() {
            self.notify();
        }
    }

    /// The oldest completion, if it is time for it.
    pub(crate) fn poll(&self, queue: &CompletionQueue) -> Option<Completion> {
        let mut early = self.early.lock();
        let completion = match early.take() {
            Some(completion) => completion,
            None => {
                let next = queue.poll()?;
                self.tally.held_back();
                next
            }
        };
        if now() < completion.timestamp + self.by {
            *early = Some(completion);
            return None;
        }
        Some(completion)
    }

    /// Removes the completion of a queue pair that was reset or destroyed. Its completions in the queue
    /// are removed already.
    pub(crate) fn discard(&self, qpn: Qpn) {
        self.early.lock().take_if(|early| early.qpn == qpn);
    }
}

impl Notify for SlowCq {
    /// Has somebody woken when a completion of now is given.
    fn notify(&self) {
        // It fails only if there is no thread.
        let _ = self.wakes.send(now() + self.by);
    }

    // A device with faults has one shard.
}
