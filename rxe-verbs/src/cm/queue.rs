//! Events on their way from the driver to the program. A channel has an event queue; each identifier has one
//! too, which passes its events on to that of its channel, whichever that is at the time.
//!
//! Whoever turns a shard appends to them, under the shard's lock. Nothing here knows what an identifier
//! (`Id`) is.
//!
//! Locks are taken in this order: the shard's, that of a listener's event queue, that of an identifier's, that
//! of a channel's. Nothing that is dropped under the shard's lock takes it: no queue owns an identifier or a
//! device.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rxe_core::cm::{self, ConnId};
use rxe_core::keyed::{Keyed, KeyedQueue};
use rxe_sys::EventFd;

use super::event::{CmEventKind, CmParam};
use crate::device::WeakDevice;
use crate::error::Result;

/// The events of one channel. What they mean is worked out by the program's thread.
#[derive(Debug)]
pub(super) struct EventQueue<Id> {
    inner: Mutex<Inner<Id>>,
    /// Readable while there is an event.
    pub(super) fd: EventFd,
}

#[derive(Debug)]
struct Inner<Id> {
    events: KeyedQueue<PendingEvent<Id>>,
    closed: bool,
}

/// An event that no program's thread has looked at.
#[derive(Debug)]
pub(super) struct PendingEvent<Id> {
    /// For which identifier.
    pub(super) to: Arc<IdQueue<Id>>,
    pub(super) message: CmMessage<Id>,
}

/// What has happened to an identifier.
#[derive(Debug)]
pub(super) enum CmMessage<Id> {
    /// The connection manager of a device tells it. A request comes with the event queue of its listener.
    Manager { device: WeakDevice, event: Box<cm::CmEvent>, listener: Option<Arc<IdQueue<Id>>> },
    /// A call of the program itself has caused it.
    Local { kind: CmEventKind, status: i32, param: CmParam },
}

/// A request that nobody has taken.
#[derive(Debug)]
pub(super) struct Request<Id> {
    pub(super) device: WeakDevice,
    pub(super) conn: ConnId,
    pub(super) id_queue: Arc<IdQueue<Id>>,
}

/// The keys are the addresses of event queues: the identifier's, and its listener's.
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
    /// The request for a connection that nobody has taken.
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
            // A thread that sleeps in a read of the descriptor has cleared it by waking.
            self.fd.set();
        }
        pending
    }

    /// Closes the channel. Returns the requests that nobody took.
    pub(super) fn close(&self) -> Vec<Request<Id>> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        std::mem::take(&mut inner.events).iter().filter_map(PendingEvent::request).collect()
    }

    /// Takes out the events of one identifier, and the requests to it.
    fn withdraw(&self, id_queue: &Arc<IdQueue<Id>>) -> Vec<PendingEvent<Id>> {
        self.withdraw_if(id_queue, |_| true)
    }

    /// Of these, takes out the ones that `which` is true of.
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

/// Where the events of one identifier go.
#[derive(Debug)]
pub(super) struct IdQueue<Id> {
    queue: Mutex<Arc<EventQueue<Id>>>,
    /// The identifier, once there is one.
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

    /// Events go to another channel from now on; those that wait too. So do the requests to it that
    /// nobody has taken, with all that happens to them.
    pub(super) fn migrate(self: &Arc<Self>, to: &Arc<EventQueue<Id>>) {
        self.migrate_behind(None, to);
    }

    /// As [`IdQueue::migrate`]. `first`, which the old channel has no more, comes before the rest.
    fn migrate_behind(self: &Arc<Self>, first: Option<PendingEvent<Id>>, to: &Arc<EventQueue<Id>>) {
        let mut queue = self.queue.lock();
        let waiting = queue.withdraw(self);
        *queue = Arc::clone(to);
        for pending in first.into_iter().chain(waiting) {
            if Arc::ptr_eq(&pending.to, self) {
                // The new channel is there: its owner calls this.
                let _ = to.push(pending);
            } else {
                Arc::clone(&pending.to).migrate_behind(Some(pending), to);
            }
        }
    }

    /// Takes back events that calls of the program itself have made, where `which` is true of their kind and
    /// parameter.
    pub(super) fn take_back(self: &Arc<Self>, which: impl Fn(CmEventKind, &CmParam) -> bool) {
        self.queue.lock().withdraw_if(self, |pending| match &pending.message {
            CmMessage::Local { kind, param, .. } => which(*kind, param),
            CmMessage::Manager { .. } => false,
        });
    }

    /// No events any more. Returns the requests to it that nobody took.
    pub(super) fn withdraw(self: &Arc<Self>) -> Vec<Request<Id>> {
        self.queue.lock().withdraw(self).iter().filter_map(PendingEvent::request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If each identifier looked at all events that wait, this would take many minutes.
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
