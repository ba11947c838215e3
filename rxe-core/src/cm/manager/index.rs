//! An index of connections by their queue pairs. With it, the cost of a message does not depend on
//! the number of connections.

use std::collections::HashMap;
use std::hash::Hash;

use super::ConnId;
use super::connection::{Connection, State};
use super::keepalive::Keepalive;
use super::sources::Sources;
use crate::types::{Gid, Qpn};

/// A queue pair of a peer: the peer's address, the GUID of the peer's device and the QPN.
type RemoteQp = (Gid, u64, Qpn);

/// Tables derived from the states of all connections. Every state change updates them.
#[derive(Debug)]
pub(super) struct Index {
    /// Established connections by remote queue pair.
    established: HashMap<RemoteQp, ConnId>,
    /// Connections whose REP is not yet answered, by local queue pair.
    unanswered: HashMap<Qpn, ConnId>,
    pub(super) sources: Sources,
    pub(super) keepalive: Keepalive,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            established: HashMap::new(),
            unanswered: HashMap::new(),
            sources: Sources::new(),
            keepalive: Keepalive::default(),
        }
    }

    /// Returns the established connection with a peer's queue pair.
    pub(super) fn established(&self, remote: Gid, guid: u64, qpn: Qpn) -> Option<ConnId> {
        self.established.get(&(remote, guid, qpn)).copied()
    }

    /// Returns the connection of a local queue pair, if its REP is not yet answered.
    pub(super) fn unanswered(&self, qpn: Qpn) -> Option<ConnId> {
        self.unanswered.get(&qpn).copied()
    }

    /// Adds a new connection in its current state.
    pub(super) fn begun(&mut self, connection: &Connection) {
        self.enter(connection);
        self.sources.changed(connection.route.remote, None, connection.state.cost());
    }

    /// Updates the tables after a connection has left the state `from`.
    pub(super) fn moved(&mut self, connection: &Connection, from: &State) {
        self.leave(connection, from);
        self.enter(connection);
        self.sources.changed(connection.route.remote, from.cost(), connection.state.cost());
    }

    /// Removes a connection.
    pub(super) fn ended(&mut self, connection: &Connection) {
        self.leave(connection, &connection.state);
        self.sources.changed(connection.route.remote, connection.state.cost(), None);
    }

    fn enter(&mut self, connection: &Connection) {
        self.keepalive.enter(connection, &connection.state);
        match connection.state {
            State::Established { .. } => {
                self.established.insert(remote_qp(connection), connection.id);
            }
            State::RepSent(_) => {
                self.unanswered.insert(connection.local_qpn, connection.id);
                debug_assert!(connection.remote_id != 0, "a REP answers a REQ");
            }
            _ => {}
        }
    }

    fn leave(&mut self, connection: &Connection, state: &State) {
        self.keepalive.leave(connection, state);
        match state {
            State::Established { .. } => {
                remove(&mut self.established, &remote_qp(connection), connection.id);
            }
            State::RepSent(_) => {
                remove(&mut self.unanswered, &connection.local_qpn, connection.id);
            }
            _ => {}
        }
    }

    /// Returns whether all tables are empty.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.established.is_empty()
            && self.unanswered.is_empty()
            && self.sources.is_empty()
            && self.keepalive.is_empty()
    }
}

fn remote_qp(connection: &Connection) -> RemoteQp {
    (connection.route.remote, connection.remote_guid, connection.remote_qpn)
}

/// Removes a key, unless it now belongs to another connection.
fn remove<K: Hash + Eq>(map: &mut HashMap<K, ConnId>, key: &K, id: ConnId) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}
