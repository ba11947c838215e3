//! Queues of events from the driver to the program. A channel has an event queue. Each identifier
//! has a queue that passes its events on to the event queue of its present channel.
//!
//! The thread that turns a shard appends events, under the shard's lock. This module does not
//! depend on the type of an identifier (`Id`).
//!
//! Locks are taken in this order: the shard's, that of a listener's queue, that of an identifier's
//! queue, that of a channel's event queue. A value that is dropped under the shard's lock must not
//! take that lock, so no queue owns an identifier or a device.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rxe_core::cm::{self, ConnId};
use rxe_core::keyed::{Keyed, KeyedQueue};
use rxe_sys::EventFd;

use super::event::{CmEventKind, CmParam};
use crate::device::WeakDevice;
use crate::error::Result;

/// The events of one channel. The program's thread processes them when it takes them.
#[derive(Debug)]
pub(super) struct EventQueue<Id> {
    inner: Mutex<Inner<Id>>,
    /// Readable while an event waits.
    pub(super) fd: EventFd,
}

#[derive(Debug)]
struct Inner<Id> {
    events: KeyedQueue<PendingEvent<Id>>,
    closed: bool,
}

/// An event that no thread of the program has processed yet.
#[derive(Debug)]
pub(super) struct PendingEvent<Id> {
    /// The queue of the identifier that it is for.
    pub(super) to: Arc<IdQueue<Id>>,
    pub(super) message: CmMessage<Id>,
}

/// The cause of an identifier's event.
#[derive(Debug)]
pub(super) enum CmMessage<Id> {
    /// An event of a device's connection manager. A request comes with the queue of its listener.
    Manager { device: WeakDevice, event: Box<cm::CmEvent>, listener: Option<Arc<IdQueue<Id>>> },
    /// An event that a call of the program has caused.
    Local { kind: CmEventKind, status: i32, param: CmParam },
}

/// A request that the program has not taken.
#[derive(Debug)]
pub(super) struct Request<Id> {
    pub(super) device: WeakDevice,
    pub(super) conn: ConnId,
    pub(super) id_queue: Arc<IdQueue<Id>>,
}

/// The keys are the addresses of the queues of the identifier and its listener.
impl<Id> Keyed for PendingEvent<Id> {
    type Key = usize;

    fn keys(&self) -> [Option<usize>; 2] {
        let listener = match &self.message {
            CmMessage::Manager { listener, .. } => listener.as_ref(),
            CmMessage::Local { .. } => None,
        };
        [Some(key(&self.to)), listener.map(key)]
    }
}

fn key<Id>(id_queue: &Arc<IdQueue<Id>>) -> usize {
    Arc::as_ptr(id_queue).addr()
}

impl<Id> PendingEvent<Id> {
    /// Returns the request, if the event is one.
    fn request(&self) -> Option<Request<Id>> {
        match &self.message {
            CmMessage::Manager { device, event, listener: Some(_) } => Some(Request {
                device: device.clone(),
                conn: event.id(),
                id_queue: Arc::clone(&self.to),
            }),
            _ => None,
        }
    }
}

impl<Id> EventQueue<Id> {
    pub(super) fn new(fd: EventFd) -> Arc<Self> {
        let inner = Inner { events: KeyedQueue::default(), closed: false };
        Arc::new(Self { inner: Mutex::new(inner), fd })
    }

    /// Appends an event. Returns it if the channel is closed.
    pub(super) fn push(&self, pending: PendingEvent<Id>) -> Result<(), PendingEvent<Id>> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(pending);
        }
        inner.events.push(pending);
        self.fd.set();
        Ok(())
    }

    pub(super) fn take(&self) -> Option<PendingEvent<Id>> {
        let mut inner = self.inner.lock();
        let pending = inner.events.pop();
        if inner.events.is_empty() {
            self.fd.clear();
        } else {
            // A thread that slept in a read of the descriptor has cleared it by waking.
            self.fd.set();
        }
        pending
    }

    /// Closes the channel. Returns the requests that the program did not take.
    pub(super) fn close(&self) -> Vec<Request<Id>> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        std::mem::take(&mut inner.events).iter().filter_map(PendingEvent::request).collect()
    }

    /// Removes and returns the events of one identifier, and the requests to it.
    fn withdraw(&self, id_queue: &Arc<IdQueue<Id>>) -> Vec<PendingEvent<Id>> {
        self.withdraw_if(id_queue, |_| true)
    }

    /// Like [`EventQueue::withdraw`], but only for events of which `which` is true.
    fn withdraw_if(
        &self,
        id_queue: &Arc<IdQueue<Id>>,
        which: impl Fn(&PendingEvent<Id>) -> bool,
    ) -> Vec<PendingEvent<Id>> {
        let mut inner = self.inner.lock();
        let out = inner.events.remove_if(key(id_queue), which);
        if inner.events.is_empty() {
            self.fd.clear();
        }
        out
    }
}

/// The queue that passes on the events of one identifier.
#[derive(Debug)]
pub(super) struct IdQueue<Id> {
    queue: Mutex<Arc<EventQueue<Id>>>,
    /// The identifier, once it exists.
    id: Mutex<Weak<Id>>,
}

impl<Id> IdQueue<Id> {
    pub(super) fn new(queue: Arc<EventQueue<Id>>) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new(queue), id: Mutex::new(Weak::new()) })
    }

    pub(super) fn set_id(&self, id: Weak<Id>) {
        *self.id.lock() = id;
    }

    pub(super) fn id(&self) -> Option<Arc<Id>> {
        self.id.lock().upgrade()
    }

    pub(super) fn queue(&self) -> Arc<EventQueue<Id>> {
        Arc::clone(&self.queue.lock())
    }

    pub(super) fn push(self: &Arc<Self>, message: CmMessage<Id>) -> Result<(), PendingEvent<Id>> {
        let queue = self.queue.lock();
        queue.push(PendingEvent { to: Arc::clone(self), message })
    }

    /// Moves the identifier's events to another channel, the waiting ones too. Requests to the
    /// identifier that the program has not taken move with their own events.
    pub(super) fn migrate(self: &Arc<Self>, to: &Arc<EventQueue<Id>>) {
        self.migrate_behind(None, to);
    }

    /// Like [`IdQueue::migrate`]. `first`, which is already removed from the old channel, precedes
    /// the waiting events.
    fn migrate_behind(self: &Arc<Self>, first: Option<PendingEvent<Id>>, to: &Arc<EventQueue<Id>>) {
        let mut queue = self.queue.lock();
        let waiting = queue.withdraw(self);
        *queue = Arc::clone(to);
        for pending in first.into_iter().chain(waiting) {
            if Arc::ptr_eq(&pending.to, self) {
                // The new channel is open: its owner calls this.
                let _ = to.push(pending);
            } else {
                Arc::clone(&pending.to).migrate_behind(Some(pending), to);
            }
        }
    }

    /// Removes events that calls of the program have caused. `which` selects them by kind and
    /// parameter.
    pub(super) fn take_back(self: &Arc<Self>, which: impl Fn(CmEventKind, &CmParam) -> bool) {
        self.queue.lock().withdraw_if(self, |pending| match &pending.message {
            CmMessage::Local { kind, param, .. } => which(*kind, param),
            CmMessage::Manager { .. } => false,
        });
    }

    /// Removes all events of the identifier. Returns the requests to it that the program did not
    /// take.
    pub(super) fn withdraw(self: &Arc<Self>) -> Vec<Request<Id>> {
        self.queue.lock().withdraw(self).iter().filter_map(PendingEvent::request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If each identifier searched all waiting events, this would take many minutes.
    #[test]
    fn the_end_of_an_identifier_costs_the_same_however_many_events_wait() {
        let queue = EventQueue::new(EventFd::new().unwrap());
        let id_queues: Vec<Arc<IdQueue<()>>> =
            (0..300_000).map(|_| IdQueue::new(Arc::clone(&queue))).collect();
        for id_queue in &id_queues {
            let (kind, status, param) = (CmEventKind::User, 0, CmParam::None);
            id_queue.push(CmMessage::Local { kind, status, param }).unwrap();
        }
        for id_queue in id_queues.iter().rev() {
            assert!(id_queue.withdraw().is_empty(), "no request");
        }
        assert!(queue.take().is_none());
    }
}
