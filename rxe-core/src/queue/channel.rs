//! The event queue of a completion channel: each event names a completion queue that received a
//! completion it was armed for. IBTA 11.2.6.
//!
//! The queues of a channel may belong to several engines, which complete concurrently while the
//! program takes events.
//!
//! Invariants: each arming causes at most one event; the signal is set whenever an event waits, so
//! it is changed under the lock of the events.

use std::collections::VecDeque;
use std::fmt;

use crate::sync::{AtomicBool, Mutex, Ordering};

/// The object that a program sleeps on, such as an eventfd.
pub trait Signal: Send + Sync + fmt::Debug {
    /// Wakes all sleeping threads, now and until the signal is cleared.
    fn set(&self);

    /// Stops waking threads.
    fn clear(&self);
}

/// The events of a channel that wait to be taken. `Q` identifies a completion queue.
#[derive(Debug)]
pub struct ChannelEvents<Q, S> {
    events: Mutex<VecDeque<Q>>,
    /// The signal, which is set while there are events.
    signal: S,
}

/// Whether the next notification of a completion queue causes an event on its channel.
#[derive(Debug)]
pub struct Arming(AtomicBool);

impl<Q, S: Signal> ChannelEvents<Q, S> {
    /// Creates an event queue without events.
    pub fn new(signal: S) -> Self {
        Self { events: Mutex::new(VecDeque::new()), signal }
    }

    /// Returns the signal, which is set while there are events.
    pub fn signal(&self) -> &S {
        &self.signal
    }

    /// Appends an event for a completion queue, if the program has armed it. The caller has put a
    /// completion into the queue.
    pub fn notify(&self, arming: &Arming, queue: impl FnOnce() -> Q) {
        if arming.0.swap(false, Ordering::SeqCst) {
            let mut events = self.events.lock();
            events.push_back(queue());
            self.signal.set();
        }
    }

    /// Takes the oldest event that `is_there` accepts, and drops the events before it.
    ///
    /// If other events wait, the signal is set again: a thread that slept in a read of the signal
    /// has cleared it by waking.
    pub fn take<R>(&self, is_there: impl FnMut(Q) -> Option<R>) -> Option<R> {
        let mut events = self.events.lock();
        let found = std::iter::from_fn(|| events.pop_front()).find_map(is_there);
        if events.is_empty() {
            self.signal.clear();
        } else {
            self.signal.set();
        }
        found
    }

    /// Drops the events that `stays` rejects, for completion queues that are destroyed.
    pub fn retain(&self, stays: impl FnMut(&Q) -> bool) {
        let mut events = self.events.lock();
        events.retain(stays);
        if events.is_empty() {
            self.signal.clear();
        }
    }
}

impl Arming {
    /// Creates an arming that is not armed.
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Arms the completion queue. The caller must do this before [`super::CompletionQueue::arm`]: a
    /// completion after that call must find the arming set.
    pub fn arm(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns whether the next completion causes an event.
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Default for Arming {
    fn default() -> Self {
        Self::new()
    }
}
