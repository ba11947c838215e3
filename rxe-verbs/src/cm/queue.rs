//! How events come from the driver to the programs: queues that whoever turns a shard may append to,
//! under the shard's lock.
//!
//! Nothing here knows what an identifier (`Id`) is.
//!
//! Locks: the shard's before a mailbox's before a queue's; a listener's mailbox before a request's.
//! Nothing that is dropped under the shard's lock takes it: a queue and a mailbox own no identifier and
//! no device.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rxe_core::cm::{self, ConnId};
use rxe_core::keyed::{Keyed, KeyedQueue};
use rxe_sys::EventFd;

use super::event::{CmEventKind, CmParam};
use crate::device::WeakDevice;
use crate::error::Result;

/// The events of one channel, raw: what they mean is worked out by the program's thread.
#[derive(Debug)]
pub(super) struct EventQueue<Id> {
    inner: Mutex<Inner<Id>>,
    /// Readable while there is an event.
    pub(super) fd: EventFd,
}

#[derive(Debug)]
struct Inner<Id> {
    raw: KeyedQueue<Raw<Id>>,
    closed: bool,
}

/// An event that no program's thread has looked at.
#[derive(Debug)]
pub(super) struct Raw<Id> {
    /// For which identifier.
    pub(super) to: Arc<Mailbox<Id>>,
    pub(super) what: What<Id>,
}

#[derive(Debug)]
pub(super) enum What<Id> {
    /// Of the connection manager of a device. A request comes with the mailbox of who listens.
    Manager { device: WeakDevice, event: Box<cm::CmEvent>, listener: Option<Arc<Mailbox<Id>>> },
    /// Made by a call of the program itself.
    Local { kind: CmEventKind, status: i32, param: CmParam },
}

/// A request that nobody has taken.
#[derive(Debug)]
pub(super) struct Request<Id> {
    pub(super) device: WeakDevice,
    pub(super) conn: ConnId,
    pub(super) mailbox: Arc<Mailbox<Id>>,
}

/// By the addresses of the mailboxes: that of the identifier, and that of who listens.
impl<Id> Keyed for Raw<Id> {
    type Key = usize;

    fn keys(&self) -> [Option<usize>; 2] {
        let listener = match &self.what {
            What::Manager { listener, .. } => listener.as_ref(),
            What::Local { .. } => None,
        };
        [Some(key(&self.to)), listener.map(key)]
    }
}

fn key<Id>(mailbox: &Arc<Mailbox<Id>>) -> usize {
    Arc::as_ptr(mailbox).addr()
}

impl<Id> Raw<Id> {
    /// The request for a connection that nobody has taken.
    fn request(&self) -> Option<Request<Id>> {
        match &self.what {
            What::Manager { device, event, listener: Some(_) } => Some(Request {
                device: device.clone(),
                conn: event.id(),
                mailbox: Arc::clone(&self.to),
            }),
            _ => None,
        }
    }
}

impl<Id> EventQueue<Id> {
    pub(super) fn new(fd: EventFd) -> Arc<Self> {
        let inner = Inner { raw: KeyedQueue::default(), closed: false };
        Arc::new(Self { inner: Mutex::new(inner), fd })
    }

    /// Appends an event. Returns it if the channel is closed.
    pub(super) fn push(&self, raw: Raw<Id>) -> Result<(), Raw<Id>> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(raw);
        }
        inner.raw.push(raw);
        self.fd.set();
        Ok(())
    }

    pub(super) fn take(&self) -> Option<Raw<Id>> {
        let mut inner = self.inner.lock();
        let raw = inner.raw.pop();
        if inner.raw.is_empty() {
            self.fd.clear();
        } else {
            // A thread that sleeps in a read of the descriptor has cleared it by waking.
            self.fd.set();
        }
        raw
    }

    /// Closes the channel. Returns the requests that nobody took.
    pub(super) fn close(&self) -> Vec<Request<Id>> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        std::mem::take(&mut inner.raw).iter().filter_map(Raw::request).collect()
    }

    /// Takes out the events of one identifier, and the requests to it.
    fn withdraw(&self, mailbox: &Arc<Mailbox<Id>>) -> Vec<Raw<Id>> {
        self.withdraw_if(mailbox, |_| true)
    }

    /// Of these, takes out the ones that `which` is true of.
    fn withdraw_if(
        &self,
        mailbox: &Arc<Mailbox<Id>>,
        which: impl Fn(&Raw<Id>) -> bool,
    ) -> Vec<Raw<Id>> {
        let mut inner = self.inner.lock();
        let out = inner.raw.remove_if(key(mailbox), which);
        if inner.raw.is_empty() {
            self.fd.clear();
        }
        out
    }
}

/// Where the events of one identifier go.
#[derive(Debug)]
pub(super) struct Mailbox<Id> {
    queue: Mutex<Arc<EventQueue<Id>>>,
    /// The identifier, once there is one.
    id: Mutex<Weak<Id>>,
}

impl<Id> Mailbox<Id> {
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

    pub(super) fn push(self: &Arc<Self>, what: What<Id>) -> Result<(), Raw<Id>> {
        let queue = self.queue.lock();
        queue.push(Raw { to: Arc::clone(self), what })
    }

    /// Events go to another channel from now on; those that wait too. So do the requests to it that
    /// nobody has taken, with all that happens to them.
    pub(super) fn migrate(self: &Arc<Self>, to: &Arc<EventQueue<Id>>) {
        self.migrate_behind(None, to);
    }

    /// As [`Mailbox::migrate`]. `first`, which the old channel has no more, comes before the rest.
    fn migrate_behind(self: &Arc<Self>, first: Option<Raw<Id>>, to: &Arc<EventQueue<Id>>) {
        let mut queue = self.queue.lock();
        let waiting = queue.withdraw(self);
        *queue = Arc::clone(to);
        for raw in first.into_iter().chain(waiting) {
            if Arc::ptr_eq(&raw.to, self) {
                // The new channel is there: its owner calls this.
                let _ = to.push(raw);
            } else {
                Arc::clone(&raw.to).migrate_behind(Some(raw), to);
            }
        }
    }

    /// Takes back events that calls of the program itself have made, where `which` is true of their kind and
    /// parameter.
    pub(super) fn take_back(self: &Arc<Self>, which: impl Fn(CmEventKind, &CmParam) -> bool) {
        self.queue.lock().withdraw_if(self, |raw| match &raw.what {
            What::Local { kind, param, .. } => which(*kind, param),
            What::Manager { .. } => false,
        });
    }

    /// No events any more. Returns the requests to it that nobody took.
    pub(super) fn withdraw(self: &Arc<Self>) -> Vec<Request<Id>> {
        self.queue.lock().withdraw(self).iter().filter_map(Raw::request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If each identifier looked at all events that wait, this would take many minutes.
    #[test]
    fn the_end_of_an_identifier_costs_the_same_however_many_events_wait() {
        let queue = EventQueue::new(EventFd::new().unwrap());
        let mailboxes: Vec<Arc<Mailbox<()>>> =
            (0..300_000).map(|_| Mailbox::new(Arc::clone(&queue))).collect();
        for mailbox in &mailboxes {
            let (kind, status, param) = (CmEventKind::User, 0, CmParam::None);
            mailbox.push(What::Local { kind, status, param }).unwrap();
        }
        for mailbox in mailboxes.iter().rev() {
            assert!(mailbox.withdraw().is_empty(), "no request");
        }
        assert!(queue.take().is_none());
    }
}
