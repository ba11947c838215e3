//! Requests for a service whose listener ended recently.
//!
//! Programs replace listeners. For example, perftest's server destroys the listener of its first
//! connection and then creates another; its client connects again without knowing when that is
//! done. A kernel refuses a request that arrives in between (INVALID_SERVICE_ID), so the outcome
//! depends on the scheduler. This manager holds such a request for the next listener, for at most
//! [`CLOSED_FOR`]. That listener may be in another port space: perftest's first connection is
//! always reliable, and its next one may be for datagrams. If a port has had no listener for
//! [`CLOSED_FOR`], requests are refused immediately.
//!
//! [`MAX_HELD`] and [`MAX_OF_SOURCE`] limit the memory that strangers can make the manager use.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::Route;
use crate::cm::mad::{Message, Req, SidrReq};
use crate::cm::service::PortSpace;
use crate::types::{Gid, Time};

/// How long requests are held after the end of a listener of their service. Each request waits this
/// long at most. A server on a busy machine has created its next listener by then.
pub const CLOSED_FOR: Duration = Duration::from_secs(3);
/// The maximum number of waiting requests.
const MAX_HELD: usize = 256;
/// The maximum number of waiting requests from one source address.
const MAX_OF_SOURCE: usize = 64;
/// The maximum number of remembered services whose listener ended recently.
const MAX_CLOSED: usize = 1024;

/// The held requests, and the services whose listener ended recently.
#[derive(Debug, Default)]
pub(super) struct HeldRequests {
    /// The end of the time in which requests are held, by service whose listener ended
    /// ([`PortSpace::same_port`]).
    closed: HashMap<u64, Time>,
    /// The waiting requests in order of arrival, which is also the order of their deadlines.
    waiting: VecDeque<Waiting>,
}

/// A waiting request.
#[derive(Debug)]
pub(super) struct Waiting {
    until: Time,
    pub(super) route: Route,
    pub(super) tid: u64,
    pub(super) request: Request,
}

/// A REQ or a SIDR query.
#[derive(Debug)]
pub(super) enum Request {
    Req(Box<Req>),
    SidrReq(Box<SidrReq>),
}

impl Request {
    fn service_id(&self) -> u64 {
        match self {
            Self::Req(req) => req.service_id,
            Self::SidrReq(req) => req.service_id,
        }
    }

    /// Returns the peer's ID, and whether it is the ID of a query.
    fn remote_id(&self) -> (u32, bool) {
        match self {
            Self::Req(req) => (req.local_comm_id, false),
            Self::SidrReq(req) => (req.request_id, true),
        }
    }
}

impl From<Request> for Message {
    fn from(request: Request) -> Self {
        match request {
            Request::Req(req) => Self::Req(*req),
            Request::SidrReq(req) => Self::SidrReq(*req),
        }
    }
}

impl HeldRequests {
    /// Records that the listener of this service has ended.
    pub(super) fn closed(&mut self, now: Time, service_id: u64) {
        if self.closed.len() >= MAX_CLOSED {
            self.closed.retain(|_, until| *until > now);
        }
        if self.closed.len() < MAX_CLOSED {
            self.closed.insert(PortSpace::same_port(service_id), now + CLOSED_FOR);
        }
        debug_assert!(self.closed.len() <= MAX_CLOSED, "it remembers a bounded number");
    }

    /// Records that the service has a listener. Removes and returns the requests that waited for
    /// it.
    pub(super) fn opened(&mut self, service_id: u64) -> VecDeque<Waiting> {
        self.closed.remove(&PortSpace::same_port(service_id));
        let all = std::mem::take(&mut self.waiting);
        let (out, stay) = all.into_iter().partition(|w| w.request.service_id() == service_id);
        self.waiting = stay;
        out
    }

    /// Holds a request for a service whose listener ended recently, and returns whether it is held.
    /// A duplicate of a waiting request is not stored twice.
    pub(super) fn hold(
        &mut self,
        now: Time,
        route: Route,
        tid: u64,
        request: impl FnOnce() -> Request,
        service_id: u64,
    ) -> bool {
        let port = PortSpace::same_port(service_id);
        match self.closed.get(&port) {
            None => return false,
            Some(until) if *until <= now => {
                self.closed.remove(&port);
                return false;
            }
            Some(_) => {}
        }
        let request = request();
        let id = request.remote_id();
        let mut of_source = 0;
        for waiting in self.waiting.iter().filter(|w| w.route.remote == route.remote) {
            if waiting.request.remote_id() == id {
                return true;
            }
            of_source += 1;
        }
        let room = self.waiting.len() < MAX_HELD && of_source < MAX_OF_SOURCE;
        if room {
            self.waiting.push_back(Waiting { until: now + CLOSED_FOR, route, tid, request });
        }
        debug_assert!(self.waiting.len() <= MAX_HELD, "what strangers cause is bounded");
        room
    }

    /// Drops a waiting request that its peer has withdrawn.
    pub(super) fn withdraw(&mut self, source: Gid, remote_id: u32) {
        let theirs =
            |w: &Waiting| w.route.remote == source && w.request.remote_id() == (remote_id, false);
        self.waiting.retain(|w| !theirs(w));
    }

    /// Returns the deadline of the oldest waiting request.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.front().map(|w| w.until)
    }

    /// Removes and returns a request whose deadline has passed.
    pub(super) fn expired(&mut self, now: Time) -> Option<Waiting> {
        self.waiting.front().filter(|w| w.until <= now)?;
        self.waiting.pop_front()
    }

    /// Drops all waiting requests, and forgets which listeners ended.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.closed.clear();
    }
}
