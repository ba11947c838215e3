//! The communication manager's state machine: the connections and SIDR queries of one device. IBTA
//! 12.9 (connections), 12.11 (service ID resolution, SIDR).
//!
//! The manager is sans-IO, like the engine. Datagrams and time go in ([`Manager::handle_mad`],
//! [`Manager::handle_timeout`]); datagrams and events come out ([`Manager::poll_transmit`],
//! [`Manager::poll_event`]). The consumer changes the states of its queue pairs itself.
//!
//! Invariants:
//! - A message is not trusted until it matches a connection: its communication IDs, its source
//!   address and, for a DREQ, its queue pair must be those of the connection. Other messages are
//!   dropped, or refused if the sender needs to know.
//! - A refusal (REJ, DREP, SIDR_REP) is never answered, so two managers cannot keep each other
//!   busy.
//! - The listeners' backlogs, [`MAX_CONNECTIONS`], [`MAX_OUTBOX`] and, for each source address,
//!   `sources` limit the memory that strangers can make the manager use.
//! - The cost of a message, and of the end of a connection or a listener, does not grow with the
//!   number of other objects: an index finds each connection, each event and the requests of each
//!   listener.
//! - Only [`keepalive`] detects that the peer of an established connection is gone.
//! - A connection has at most one entry in the timer list. After every event either the consumer or
//!   a timer causes the next state change.
//!
//! LAP and APR (alternate paths) are dropped, as kernels do on Ethernet.

mod connection;
mod consumer;
mod event;
mod held;
mod index;
mod keepalive;
mod receive;
mod sources;
#[cfg(test)]
mod tests;
mod withdrawn;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

pub use event::CmEvent;
pub use held::CLOSED_FOR;

pub use crate::bounds::{MAX_CONNECTIONS, MAX_OUTBOX};

use super::mad::{self, Message, Mra, RejReason, Subject};
use crate::keyed::KeyedQueue;
use crate::types::{Gid, Time};
pub use connection::ConnectionInfo;
use connection::{Connection, State};
use held::HeldRequests;
use index::Index;
use withdrawn::Withdrawn;

/// The identifier of a connection or SIDR query: the local communication ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// The identifier of a listener on a service ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// The addresses of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The local address.
    pub local: Gid,
    /// The peer's address.
    pub remote: Gid,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
}

/// A datagram to be sent from queue pair 1 to queue pair 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The addresses.
    pub route: Route,
    /// The management datagram.
    pub mad: Box<[u8; mad::LEN]>,
}

/// The properties of a device that its manager needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// The high 8 bits of all communication IDs of this manager. If several managers share queue
    /// pair 1, each has its own value, so that messages can be handed over to the right manager.
    pub block: u8,
    /// The GUID of the device.
    pub guid: u64,
    /// A random number from which communication and transaction IDs are derived. It must not be
    /// guessable.
    pub seed: u64,
}

/// The reason why a call failed. A failed call changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmError {
    /// The connection or listener does not exist; it may have ended meanwhile.
    Unknown,
    /// The connection is not in a state that permits the call.
    WrongState,
    /// The service ID already has a listener.
    InUse,
    /// There are too many connections.
    NoResources,
}

/// The connections and SIDR queries of one device. Its inputs are datagrams, the time and the
/// decisions of the consumer; its outputs are datagrams and events.
#[derive(Debug)]
pub struct Manager {
    config: CmConfig,
    connections: HashMap<u32, Connection>,
    /// Passive connections and queries by the peer's ID.
    peers: HashMap<PeerKey, ConnId>,
    index: Index,
    held: HeldRequests,
    withdrawn: Withdrawn,
    listeners: HashMap<u32, Listener>,
    services: HashMap<u64, ListenerId>,
    timers: BTreeSet<(Time, ConnId)>,
    outbox: VecDeque<Outgoing>,
    /// Keepalive probes that wait to be sent.
    questions: VecDeque<Outgoing>,
    events: KeyedQueue<CmEvent>,
    drawn: u64,
}

/// The peer's address, the peer's ID, and whether it is the ID of a query.
type PeerKey = (Gid, u32, bool);

#[derive(Debug)]
struct Listener {
    service_id: u64,
    backlog: usize,
    /// Requests that the consumer has not yet taken.
    waiting: BTreeSet<ConnId>,
}

impl Manager {
    /// Creates a manager without connections.
    pub fn new(config: CmConfig) -> Self {
        Self {
            config,
            connections: HashMap::new(),
            peers: HashMap::new(),
            index: Index::new(),
            held: HeldRequests::default(),
            withdrawn: Withdrawn::default(),
            listeners: HashMap::new(),
            services: HashMap::new(),
            timers: BTreeSet::new(),
            outbox: VecDeque::new(),
            questions: VecDeque::new(),
            events: KeyedQueue::default(),
            drawn: 0,
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &CmConfig {
        &self.config
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// Takes the oldest event. A request counts towards its listener's backlog until
    /// [`Manager::taken`] is called.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop()
    }

    /// Returns the time at which [`Manager::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let of_connections = self.timers.first().map(|&(at, _)| at);
        let of_peers = self.index.keepalive.deadline();
        [of_connections, self.held.deadline(), of_peers].into_iter().flatten().min()
    }

    /// Returns whether this connection or query exists.
    pub fn contains(&self, id: ConnId) -> bool {
        self.connections.contains_key(&id.0)
    }

    /// Returns up to `max` connections and queries, in no particular order.
    pub fn list(&self, max: usize) -> Vec<ConnectionInfo> {
        self.connections.values().take(max).map(Connection::info).collect()
    }

    /// Returns the service IDs that have a listener.
    pub fn services(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.services.keys().copied()
    }

    /// Returns the number of connections and queries in all states.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns whether there is no connection or query.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Records that the caller did not run for a while, until `now`. Earlier messages are granted
    /// their time for an answer again, at most once per try. The caller must first handle
    /// everything that has arrived, and call this before [`Manager::handle_timeout`].
    pub fn excuse_silence(&mut self, now: Time) {
        let ids: Vec<_> = self.timers.iter().map(|&(_, id)| id).collect();
        for id in ids {
            let connection = self.connections.get_mut(&id.0);
            if let Some(retry) = connection.and_then(|connection| connection.state.retry()) {
                retry.excuse(now);
                self.arm(id);
            }
        }
    }

    /// Handles the deadlines that have passed at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.index.keepalive.at(now);
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(connection) = self.connections.get_mut(&id.0) else { continue };
            debug_assert_eq!(connection.armed, Some(at), "the note of an entry is true");
            connection.armed = None;
            if connection.state.deadline().is_some_and(|deadline| deadline <= now) {
                self.expire(now, id);
            }
            self.arm(id);
        }
        debug_assert!(
            self.timers.first().is_none_or(|&(at, _)| at > now),
            "all that is due is done"
        );
        while let Some(waiting) = self.held.expired(now) {
            self.refuse_held(&waiting);
        }
        if self.index.keepalive.deadline().is_some_and(|at| at <= now) {
            self.ask_peers();
        }
    }

    /// Handles the deadline of a connection.
    fn expire(&mut self, now: Time, id: ConnId) {
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        let route = connection.route;
        // Until the peer has answered the REP, its address may be forged.
        let unconfirmed = matches!(connection.state, State::RepSent(_));
        let mut may_send = || !unconfirmed || self.index.sources.may_repeat(now, route.remote);
        if let Some(retry) = connection.state.retry()
            && let Some(mad) = retry.again(now)
        {
            let mad = Box::new(*mad);
            if may_send() {
                self.push(Outgoing { route, mad });
            }
            return;
        }
        match connection.state {
            State::ReqSent(_) => {
                self.send_rej(id, Subject::Req, RejReason::TIMEOUT, &[], &[]);
                self.forget_with(id, CmEvent::Unreachable { id });
            }
            State::RepSent(_) => {
                if may_send() {
                    self.send_rej(id, Subject::Rep, RejReason::TIMEOUT, &[], &[]);
                }
                self.forget_with(id, CmEvent::Unreachable { id });
            }
            State::SidrReqSent(_) => self.forget_with(id, CmEvent::Unreachable { id }),
            State::DreqSent(_) => {
                self.tell(id, CmEvent::Disconnected { id, answered: false });
                self.enter_timewait(now, id, None);
            }
            State::TimeWait { .. } => self.forget_with(id, CmEvent::TimewaitExit { id }),
            State::SidrRepSent { .. } => {
                self.forget(id);
            }
            _ => {}
        }
    }

    /// Updates the connection's entry in the timer list.
    fn arm(&mut self, id: ConnId) {
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        let deadline = connection.state.deadline();
        if connection.armed != deadline {
            if let Some(at) = connection.armed {
                let had = self.timers.remove(&(at, id));
                debug_assert!(had, "the note of an entry is true");
            }
            if let Some(at) = deadline {
                let new = self.timers.insert((at, id));
                debug_assert!(new, "a connection has one entry");
            }
            connection.armed = deadline;
        }
    }

    fn set(&mut self, id: ConnId, state: State) {
        if let Some(connection) = self.connections.get_mut(&id.0) {
            debug_assert!(
                connection.state.may_become(&state),
                "{:?} to {state:?}",
                connection.state
            );
            let old = std::mem::replace(&mut connection.state, state);
            self.index.moved(connection, &old);
            if let Some(listener) = old.waits_for() {
                self.waits_no_more(listener, id);
            }
            self.arm(id);
        }
    }

    /// Adds a new connection.
    fn insert(&mut self, connection: Connection) {
        debug_assert!(connection.armed.is_none() && !connection.orphan);
        self.index.begun(&connection);
        let old = self.connections.insert(connection.id.0, connection);
        debug_assert!(old.is_none(), "an ID names one connection");
        debug_assert!(self.connections.len() <= MAX_CONNECTIONS);
    }

    fn waits_no_more(&mut self, listener: ListenerId, id: ConnId) {
        if let Some(listener) = self.listeners.get_mut(&listener.0) {
            let waited = listener.waiting.remove(&id);
            debug_assert!(waited, "the backlog counts what waits");
        }
    }

    fn enter_timewait(&mut self, now: Time, id: ConnId, drep: Option<Box<[u8; mad::LEN]>>) {
        if let Some(connection) = self.connections.get(&id.0) {
            let until = now + connection.packet_life;
            self.set(id, State::TimeWait { until, drep });
        }
    }

    fn forget(&mut self, id: ConnId) -> Option<Connection> {
        let connection = self.connections.remove(&id.0)?;
        self.index.ended(&connection);
        if let Some(at) = connection.armed {
            let had = self.timers.remove(&(at, id));
            debug_assert!(had, "the note of an entry is true");
        }
        debug_assert!(self.timers.len() <= self.connections.len(), "one entry each");
        if let Some(listener) = connection.state.waits_for() {
            self.waits_no_more(listener, id);
        }
        let is_sidr = matches!(
            connection.state,
            State::SidrReqRcvd { .. } | State::SidrRepSent { .. } | State::SidrReqSent(_)
        );
        let key = (connection.route.remote, connection.remote_id, is_sidr);
        if self.peers.get(&key) == Some(&id) {
            self.peers.remove(&key);
        }
        debug_assert!(self.peers.len() <= self.connections.len(), "one entry each");
        Some(connection)
    }

    /// Removes a connection, and emits the event unless the consumer has destroyed the connection.
    fn forget_with(&mut self, id: ConnId, event: CmEvent) {
        if self.forget(id).is_some_and(|connection| !connection.orphan) {
            self.events.push(event);
        }
    }

    fn tell(&mut self, id: ConnId, event: CmEvent) {
        if self.connections.get(&id.0).is_some_and(|connection| !connection.orphan) {
            self.events.push(event);
        }
    }

    fn push(&mut self, outgoing: Outgoing) {
        if self.outbox.len() < MAX_OUTBOX {
            self.outbox.push_back(outgoing);
        }
        debug_assert!(self.outbox.len() <= MAX_OUTBOX, "what strangers cause is bounded");
    }

    /// Sends a message of a connection. Returns the datagram, for retransmission.
    fn send(&mut self, id: ConnId, tid: u64, message: &Message) -> Box<[u8; mad::LEN]> {
        let mad = Box::new(message.emit(tid));
        if let Some(connection) = self.connections.get(&id.0) {
            let route = connection.route;
            self.push(Outgoing { route, mad: mad.clone() });
        }
        mad
    }

    fn send_mra(&mut self, id: ConnId, subject: Subject) {
        let Some(connection) = self.connections.get(&id.0) else { return };
        let mra = Mra {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_id,
            message: subject as u8,
            service_timeout: MRA_TIMEOUT,
            ..Mra::default()
        };
        self.send(id, connection.tid, &Message::Mra(mra));
    }

    fn send_rej(
        &mut self,
        id: ConnId,
        subject: Subject,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
    ) {
        let Some(connection) = self.connections.get(&id.0) else { return };
        // The peer may not yet know both IDs. Then it finds the connection by the device GUID.
        let guid = self.config.guid.to_be_bytes();
        let ari = if reason == RejReason::TIMEOUT && ari.is_empty() { &guid[..] } else { ari };
        let rej = rej(id.0, connection.remote_id, subject, reason, ari, private_data);
        self.send(id, connection.tid, &rej);
    }

    /// Returns an unused communication ID: the high 8 bits of this manager, then 24 random bits
    /// that are not 0.
    fn draw_id(&mut self) -> Option<ConnId> {
        if self.connections.len() >= MAX_CONNECTIONS {
            return None;
        }
        loop {
            let low = u32::try_from(self.draw() & 0xff_ffff).unwrap_or_default();
            let id = u32::from(self.config.block) << 24 | low;
            if low != 0 && !self.connections.contains_key(&id) {
                debug_assert_eq!(id.to_be_bytes()[0], self.config.block);
                return Some(ConnId(id));
            }
        }
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = DefaultHasher::new();
        (self.config.seed, self.drawn, self.config.guid).hash(&mut hasher);
        hasher.finish()
    }
}

/// The code of the time that our MRAs request: 69 s, as kernels do.
const MRA_TIMEOUT: u8 = 24;

/// Creates a REJ.
fn rej(
    local_comm_id: u32,
    remote_comm_id: u32,
    subject: Subject,
    reason: RejReason,
    ari: &[u8],
    private_data: &[u8],
) -> Message {
    let mut rej = mad::Rej {
        local_comm_id,
        remote_comm_id,
        message: subject as u8,
        reason: reason.0,
        ..mad::Rej::default()
    };
    let len = ari.len().min(rej.ari.len());
    rej.ari[..len].copy_from_slice(&ari[..len]);
    rej.ari_len = u8::try_from(len).unwrap_or_default();
    fill(&mut rej.private_data, private_data);
    Message::Rej(rej)
}

/// Copies as many bytes of `from` to `to` as fit.
fn fill(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}
