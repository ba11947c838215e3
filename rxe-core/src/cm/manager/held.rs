//! Requests for a service whose listener ended recently.
//!
//! Programs replace listeners. For example, perftest's server destroys the listener of its first
//! connection and then makes another; its client connects again without knowing when that is done. A
//! kernel refuses a request that comes in between (INVALID_SERVICE_ID), so the outcome depends on the
//! scheduler. Here such a request waits for the next listener, for at most [`CLOSED_FOR`]. That
//! listener may be in another port space: perftest's first connection is always reliable, and its next
//! one may be for datagrams. If a port has had no listener for [`CLOSED_FOR`], requests are refused at
//! once.
//!
//! [`MAX_HELD`] and [`MAX_OF_SOURCE`] bound what strangers can make this keep.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::Route;
use crate::cm::mad::{Message, Req, SidrReq};
use crate::cm::service::PortSpace;
use crate::types::{Gid, Time};

/// How long after the end of a listener requests for its service are held, and how long each of them
/// waits. A server on a busy machine has made its next listener by then.
pub const CLOSED_FOR: Duration = Duration::from_secs(3);
/// The most requests that wait.
const MAX_HELD: usize = 256;
/// The most requests of one source address that wait.
const MAX_OF_SOURCE: usize = 64;
/// The most services remembered whose listener ended recently.
const MAX_CLOSED: usize = 1024;

/// Requests that wait for the next listener of their service, and the services that had one recently.
#[derive(Debug, Default)]
pub(super) struct HeldRequests {
    /// Until when requests wait, by [`PortSpace::same_port`].
    closed: HashMap<u64, Time>,
    /// In order of arrival, which is also the order of their deadlines.
    waiting: VecDeque<Waiting>,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    until: Time,
    pub(super) route: Route,
    pub(super) tid: u64,
    pub(super) request: Request,
}

/// A request for a connection or a SIDR query.
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

    /// The peer's ID, and whether it is that of a query.
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
    /// The listener of this service has ended.
    pub(super) fn closed(&mut self, now: Time, service_id: u64) {
        if self.closed.len() >= MAX_CLOSED {
            self.closed.retain(|_, until| *until > now);
        }
        if self.closed.len() < MAX_CLOSED {
            self.closed.insert(PortSpace::same_port(service_id), now + CLOSED_FOR);
        }
        debug_assert!(self.closed.len() <= MAX_CLOSED, "it remembers a bounded number");
    }

    /// The service has a listener now. Takes out the requests that waited for it.
    pub(super) fn opened(&mut self, service_id: u64) -> VecDeque<Waiting> {
        self.closed.remove(&PortSpace::same_port(service_id));
        let all = std::mem::take(&mut self.waiting);
        let (out, stay) = all.into_iter().partition(|w| w.request.service_id() == service_id);
        self.waiting = stay;
        out
    }

    /// Keeps a request for a service whose listener ended recently. A duplicate of a waiting request
    /// is not kept twice.
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

    /// Drops a waiting request that its peer has given up.
    pub(super) fn withdraw(&mut self, source: Gid, remote_id: u32) {
        let theirs =
            |w: &Waiting| w.route.remote == source && w.request.remote_id() == (remote_id, false);
        self.waiting.retain(|w| !theirs(w));
    }

    /// When the oldest request has waited long enough.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.front().map(|w| w.until)
    }

    /// Takes out a request that has waited long enough.
    pub(super) fn expired(&mut self, now: Time) -> Option<Waiting> {
        self.waiting.front().filter(|w| w.until <= now)?;
        self.waiting.pop_front()
    }

    /// Drops all waiting requests.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.closed.clear();
    }
}
