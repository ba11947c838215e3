//! The events of a completion channel: which of its completion queues got what they were armed for.
//! IBTA 11.2.6.
//!
//! The queues of a channel may be of several engines, which complete at the same time; the program takes
//! events meanwhile.
//!
//! Invariants: each arming gives at most one event; the signal is set whenever an event waits, so it is
//! changed under the same lock as the events.

use std::collections::VecDeque;
use std::fmt;

use crate::sync::{AtomicBool, Mutex, Ordering};

/// What a program sleeps on.
pub trait Signal: Send + Sync + fmt::Debug {
    /// Wakes who sleeps, now and until it is cleared.
    fn set(&self);

    /// Nobody need wake.
    fn clear(&self);
}

/// The events that wait to be taken, each for a completion queue that `Q` stands for.
#[derive(Debug)]
pub struct ChannelEvents<Q, S> {
    events: Mutex<VecDeque<Q>>,
    /// Set while there are events.
    signal: S,
}

/// Whether a completion queue is to give an event on its channel.
#[derive(Debug)]
pub struct Arming(AtomicBool);

impl<Q, S: Signal> ChannelEvents<Q, S> {
    /// Without events.
    pub fn new(signal: S) -> Self {
        Self { events: Mutex::new(VecDeque::new()), signal }
    }

    /// What is set while there are events.
    pub fn signal(&self) -> &S {
        &self.signal
    }

    /// A completion queue has got what it was armed for: gives an event, if the program has asked for one.
    pub fn notify(&self, arming: &Arming, queue: impl FnOnce() -> Q) {
        if arming.0.swap(false, Ordering::SeqCst) {
            let mut events = self.events.lock();
            events.push_back(queue());
            self.signal.set();
        }
    }

    /// Takes the oldest event that `is_there` accepts. Those before it are dropped.
    ///
    /// If others wait, the signal is set anew: a thread that sleeps in a read of it has cleared it by waking.
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

    /// Drops the events that `stays` refuses: those of queues that are gone.
    pub fn retain(&self, stays: impl FnMut(&Q) -> bool) {
        let mut events = self.events.lock();
        events.retain(stays);
        if events.is_empty() {
            self.signal.clear();
        }
    }
}

impl Arming {
    /// Not armed.
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The program wants an event. To be called before [`super::CompletionQueue::arm`]: what comes after that
    /// must find it.
    pub fn arm(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether the next completion gives an event.
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Default for Arming {
    fn default() -> Self {
        Self::new()
    }
}
