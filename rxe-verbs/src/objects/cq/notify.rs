//! Notifies waiting threads and completion channels of completions.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rxe_core::queue::{self, Arming, Notify, Signal};
use rxe_sys::EventFd;

use super::{CompletionQueue, CqInner};
use crate::device::ShardSet;
use crate::observe::{Counted, UseCounters, Used};
use crate::progress::{Shard, WakeAll, Waker};

/// Called by the engine when a completion arrives in an armed queue.
#[derive(Debug)]
pub(super) struct Notifier {
    owner: Weak<CqInner>,
    /// The waiting threads.
    waiters: Mutex<Vec<Arc<Waker>>>,
    pub(super) channel: Option<Used<Arc<ChannelEvents>>>,
    /// Whether the program wants an event on the channel.
    pub(super) arming: Arming,
}

impl Notifier {
    pub(super) fn new(owner: &Weak<CqInner>, channel: Option<Used<Arc<ChannelEvents>>>) -> Self {
        let owner = Weak::clone(owner);
        Self { owner, waiters: Mutex::default(), channel, arming: Arming::new() }
    }

    /// Adds `waker` to the threads to wake, until the returned place is dropped.
    pub(super) fn wait_with(&self, waker: Arc<Waker>) -> WaitersPlace<'_> {
        self.waiters.lock().push(Arc::clone(&waker));
        WaitersPlace { notifier: self, waker }
    }
}

impl WakeAll for Notifier {
    fn wake_all(&self) {
        self.arming.arm();
        self.notify();
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        for waker in &*self.waiters.lock() {
            waker.wake();
        }
        if let Some(channel) = &self.channel {
            channel.events.notify(&self.arming, || Weak::clone(&self.owner));
        }
    }

    fn overflowed(&self) {
        let Some(owner) = self.owner.upgrade() else { return };
        owner.device.shards_among(owner.shards.bits()).for_each(Shard::wake_driver);
    }
}

/// A waiting thread's place in the list.
pub(super) struct WaitersPlace<'n> {
    notifier: &'n Notifier,
    waker: Arc<Waker>,
}

impl Drop for WaitersPlace<'_> {
    fn drop(&mut self) {
        let mut waiters = self.notifier.waiters.lock();
        if let Some(at) = waiters.iter().position(|w| Arc::ptr_eq(w, &self.waker)) {
            waiters.swap_remove(at);
        }
    }
}

/// The pending events of a completion channel.
#[derive(Debug)]
pub(crate) struct ChannelEvents {
    /// The descriptor is readable while there are events.
    events: queue::ChannelEvents<Weak<CqInner>, Readable>,
    /// The shards of the channel's completion queues.
    shards: ShardSet,
    uses: UseCounters,
}

impl Counted for Arc<ChannelEvents> {
    fn use_counters(&self) -> &UseCounters {
        &self.uses
    }
}

impl ChannelEvents {
    pub(crate) fn new(fd: EventFd) -> Self {
        Self {
            events: queue::ChannelEvents::new(Readable(fd)),
            shards: ShardSet::default(),
            uses: UseCounters::default(),
        }
    }

    /// Takes the first event whose queue still exists, and returns the queue.
    pub(crate) fn take(&self) -> Option<CompletionQueue> {
        self.events.take(|cq| cq.upgrade()).map(|inner| CompletionQueue { inner })
    }

    /// Drops the events of destroyed queues, so that no thread wakes for them.
    pub(super) fn forget_gone(&self) {
        self.events.retain(|cq| cq.strong_count() > 0);
    }

    /// Returns the shards of the channel's completion queues.
    pub(crate) fn shards(&self) -> &ShardSet {
        &self.shards
    }

    /// Returns the descriptor that is readable while events are pending.
    pub(crate) fn fd(&self) -> &EventFd {
        &self.events.signal().0
    }
}

/// The descriptor that a program sleeps on.
#[derive(Debug)]
struct Readable(EventFd);

impl Signal for Readable {
    fn set(&self) {
        self.0.set();
    }

    fn clear(&self) {
        self.0.clear();
    }
}
