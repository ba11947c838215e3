//! Detects that the peer of a connection is gone without a message, because its process was killed.
//!
//! A kernel ends the connections of a killed process. The engine of a process dies with it, so its
//! peers must probe. The probe is a DREQ with the connection's communication IDs and a QPN that the
//! connection does not have. IBTA 12.9.8 and all managers that we know handle it in one of two
//! ways:
//!
//! - A manager that knows the connection drops the message, because the QPN does not match. The
//!   peer lives, and does not answer.
//! - A manager that does not know the connection answers with a DREP, as it answers every DREQ for
//!   an unknown connection. With several processes on one address, the process that reads the probe
//!   answers, if no process owns the high 8 bits of the communication ID.
//!
//! If no process uses the address, the host answers with an ICMP message, which the caller reports
//! ([`Manager::unreachable`]). Silence proves nothing and changes nothing.
//!
//! An answer must carry the transaction ID of the newest probe, 32 bits of which cannot be guessed.
//! It counts only when the next probe is answered in the same way: a process that is about to share
//! its address again, after the interface had lost it, must not lose its connections.
//!
//! All connections to one peer process end together, so only one of them is probed: a process is
//! identified by the peer's address and the high 8 bits of the communication ID. After a first
//! DREP, all connections to the process are probed.
//! DREP, all of them are.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use super::connection::{Connection, State};
use super::{CmEvent, ConnId, Manager, Outgoing};
use crate::cm::mad::{Dreq, Mad, Message};
use crate::types::{Gid, Qpn, Time};

/// The time between two probes of one peer. The death of a peer is detected after two probes and
/// [`CONFIRM`] (5 s) at most, and within 10 s if two probes are lost.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);
/// The time between an answered probe and the one that confirms the answer. Longer than a process
/// takes to share an address that has come back to its interface.
pub(super) const CONFIRM: Duration = Duration::from_secs(1);
/// The maximum number of probes in one round after a DREP. The peer's host reads them from one
/// socket buffer.
const MAX_BURST: usize = 1024;

/// A process of a peer: its address, and the high 8 bits of its communication IDs.
type Process = (Gid, u8);

/// The keepalive state of the peers of established connections.
#[derive(Debug, Default)]
pub(super) struct Keepalive {
    on: bool,
    /// The established connections, by process.
    watched: BTreeSet<(Gid, u8, u32)>,
    /// The time of the next probes.
    next: Option<Time>,
    /// The latest time passed to the manager.
    now: Time,
    /// The last probe of each connection, by communication ID.
    asked: HashMap<u32, Asked>,
    /// Processes that do not know one of their connections.
    suspected: HashSet<Process>,
    /// Addresses whose hosts answered the last probe with "port unreachable": no process receives
    /// there.
    unreachable: HashSet<Gid>,
    /// Addresses whose hosts answered the probe before the last with "port unreachable".
    was_unreachable: HashSet<Gid>,
}

/// A probe.
#[derive(Clone, Copy, Debug)]
struct Asked {
    tid: u64,
    /// Whether the probe was answered with a DREP.
    refused: bool,
    /// Whether the previous probe was answered with a DREP.
    doubted: bool,
}

impl Keepalive {
    /// Records the current time.
    pub(super) fn at(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Returns the time at which [`Manager::ask_peers`] is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.next
    }

    /// Records that a connection has entered `state`.
    pub(super) fn enter(&mut self, connection: &Connection, state: &State) {
        if self.on && matches!(state, State::Established { .. }) {
            let new = self.watched.insert(key(connection));
            debug_assert!(new, "a connection is established once");
            self.next.get_or_insert(self.now + INTERVAL);
        }
    }

    /// Records that a connection has left `state`.
    pub(super) fn leave(&mut self, connection: &Connection, state: &State) {
        if matches!(state, State::Established { .. }) && self.watched.remove(&key(connection)) {
            self.asked.remove(&connection.id.0);
            if self.watched.is_empty() {
                self.next = None;
            }
        }
    }

    /// Moves the next round forward, to confirm an answer.
    fn hasten(&mut self) {
        let soon = self.now + CONFIRM;
        self.next = self.next.map(|next| next.min(soon));
    }

    /// Returns the connections to probe now: one for each process, and all of a suspected one.
    fn choose(&mut self) -> Vec<u32> {
        let suspected = std::mem::take(&mut self.suspected);
        let mut chosen = Vec::new();
        let mut burst = 0;
        let mut last: Option<(Gid, u8, u32)> = None;
        loop {
            let from = last.map_or(Unbounded, Excluded);
            let Some(&(gid, block, id)) = self.watched.range((from, Unbounded)).next() else {
                break;
            };
            chosen.push(id);
            burst += 1;
            debug_assert!(last.is_none_or(|last| last < (gid, block, id)), "each is passed once");
            let whole = suspected.contains(&(gid, block)) && burst < MAX_BURST;
            last = Some((gid, block, if whole { id } else { u32::MAX }));
        }
        chosen
    }

    /// Returns whether no connection is watched.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.watched.is_empty() && self.asked.is_empty()
    }
}

fn key(connection: &Connection) -> (Gid, u8, u32) {
    let [block, ..] = connection.remote_id.to_be_bytes();
    (connection.route.remote, block, connection.id.0)
}

/// Returns a QPN that the peer's end of the connection does not have: all bits differ.
fn other_than(qpn: Qpn) -> Qpn {
    Qpn::from_wire(!qpn.value() & 0xff_ffff)
}

impl Manager {
    /// Switches keepalive on or off for connections that are established later.
    pub fn set_keepalive(&mut self, on: bool) {
        self.index.keepalive.on = on;
    }

    /// Returns the next keepalive probe. If the caller sends it so that it receives ICMP messages
    /// about it, it must report them to [`Manager::unreachable`].
    pub fn poll_question(&mut self) -> Option<Outgoing> {
        self.questions.pop_front()
    }

    /// Handles a "port unreachable" message of the host of `remote`. The message quotes the
    /// datagram `mad`. Returns whether `mad` is one of the last probes.
    pub fn unreachable(&mut self, remote: Gid, mad: &Mad<'_>) -> bool {
        let Some(Message::Dreq(dreq)) = mad.message() else { return false };
        let keepalive = &mut self.index.keepalive;
        let asked = keepalive.asked.get(&dreq.local_comm_id);
        let of_remote = self.connections.get(&dreq.local_comm_id).map(|c| c.route.remote);
        let is_last = asked.is_some_and(|asked| asked.tid == mad.header().tid);
        let counts = is_last && of_remote == Some(remote);
        if counts {
            keepalive.unreachable.insert(remote);
        }
        counts
    }

    /// Records that a datagram came from this address, so the address is in use.
    pub(super) fn heard_from(&mut self, remote: Gid) {
        let keepalive = &mut self.index.keepalive;
        keepalive.unreachable.remove(&remote);
        keepalive.was_unreachable.remove(&remote);
    }

    /// Handles a DREP for an established connection: the peer does not know the connection.
    pub(super) fn peer_forgot(&mut self, id: ConnId, tid: u64) -> Option<()> {
        let connection = self.connections.get(&id.0)?;
        let (gid, block, _) = key(connection);
        let keepalive = &mut self.index.keepalive;
        let asked = keepalive.asked.get_mut(&id.0);
        // The answer may be duplicated.
        let asked = asked.filter(|asked| asked.tid == tid && !asked.refused)?;
        asked.refused = true;
        if asked.doubted {
            self.peer_is_gone(id);
        } else {
            keepalive.suspected.insert((gid, block));
            keepalive.hasten();
        }
        Some(())
    }

    /// Continues as if the peer had sent a DREQ, as it would have done if it could.
    fn peer_is_gone(&mut self, id: ConnId) {
        let tid = self.draw_tid(id);
        self.set(id, State::DreqRcvd { tid });
        self.tell(id, CmEvent::DisconnectRequest { id });
    }

    /// Ends the connections to addresses that were unreachable twice, and probes the other peers.
    pub(super) fn ask_peers(&mut self) {
        let keepalive = &mut self.index.keepalive;
        let unreachable = std::mem::take(&mut keepalive.unreachable);
        let before = std::mem::replace(&mut keepalive.was_unreachable, unreachable.clone());
        for gid in unreachable.intersection(&before) {
            let from = (*gid, 0, 0);
            let all = self.index.keepalive.watched.range(from..=(*gid, u8::MAX, u32::MAX));
            let all: Vec<_> = all.map(|&(_, _, id)| ConnId(id)).collect();
            all.into_iter().for_each(|id| self.peer_is_gone(id));
        }
        let keepalive = &mut self.index.keepalive;
        let confirms = !(keepalive.suspected.is_empty() && unreachable.is_empty());
        let chosen = keepalive.choose();
        let before = std::mem::take(&mut keepalive.asked);
        keepalive.next = (!chosen.is_empty())
            .then_some(keepalive.now + if confirms { CONFIRM } else { INTERVAL });
        for id in chosen {
            self.ask(ConnId(id), before.get(&id).is_some_and(|asked| asked.refused));
        }
    }

    fn ask(&mut self, id: ConnId, doubted: bool) {
        let tid = self.draw_tid(id);
        let Some(connection) = self.connections.get(&id.0) else { return };
        let dreq = Dreq {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_id,
            remote_qpn: other_than(connection.remote_qpn),
            ..Dreq::default()
        };
        let route = connection.route;
        self.questions.push_back(Outgoing { route, mad: Box::new(Message::Dreq(dreq).emit(tid)) });
        self.index.keepalive.asked.insert(id.0, Asked { tid, refused: false, doubted });
    }
}
