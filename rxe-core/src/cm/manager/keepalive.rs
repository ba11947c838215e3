//! Finds out that the peer of a connection is gone without a word, because it was killed.
//!
//! A kernel ends the connections of a process that is killed. The engine of such a process dies with it,
//! so its peers have to ask. The question is a DREQ with the connection's communication IDs and the number
//! of a queue pair that the connection does not have. IBTA 12.9.8 and all managers that we know treat it
//! in two ways:
//!
//! - A manager that knows the connection drops the message: it does not fit. The peer lives, and says
//!   nothing.
//! - A manager that does not know the connection answers with a DREP, as it answers every DREQ for a
//!   connection that it does not know. With several processes on one address, the one that reads the
//!   question answers, if no process has the block of the communication ID.
//!
//! A host on which no process has the address answers with an ICMP message, which the caller reports
//! ([`Manager::unreachable`]). Silence proves nothing and changes nothing.
//!
//! An answer must carry the transaction ID of the newest question, 32 bits of which cannot be guessed.
//! It counts when the next question gets the same answer: a process that is about to share its address
//! again, after the interface had lost it, must not lose its connections.
//!
//! All connections to one peer process end together, so one of them is asked about: those with the same
//! peer address and the same high 8 bits of the communication ID (the process's block). After a first
//! DREP, all of them are.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use super::connection::{Connection, State};
use super::{CmEvent, ConnId, Manager, Outgoing};
use crate::cm::mad::{Dreq, Mad, Message};
use crate::types::{Gid, Qpn, Time};

/// Between two questions to one peer. A peer that dies is heard of after two questions and
/// [`CONFIRM`] (5 s) at most, and within 10 s if two of them are lost.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);
/// Between a question that was answered and the one that confirms it. Longer than a process takes to share
/// an address that has come back to its interface.
pub(super) const CONFIRM: Duration = Duration::from_secs(1);
/// The most questions in one round after a DREP. The peer's host reads them from one socket buffer.
const MAX_BURST: usize = 1024;

/// A process of a peer, as far as its messages tell.
type Process = (Gid, u8);

/// What is asked about the peers of established connections.
#[derive(Debug, Default)]
pub(super) struct Keepalive {
    on: bool,
    /// The established connections, by process.
    watched: BTreeSet<(Gid, u8, u32)>,
    /// When the next questions leave.
    next: Option<Time>,
    /// The newest time that the manager was told.
    now: Time,
    /// What was asked last, by communication ID.
    asked: HashMap<u32, Asked>,
    /// Processes that do not know one of their connections.
    suspected: HashSet<Process>,
    /// Addresses whose hosts answered the last question with "port unreachable": no process receives there.
    unreachable: HashSet<Gid>,
    /// The same of the questions before.
    was_unreachable: HashSet<Gid>,
}

/// A question.
#[derive(Clone, Copy, Debug)]
struct Asked {
    tid: u64,
    /// It got a DREP.
    refused: bool,
    /// So did the question before it.
    doubted: bool,
}

impl Keepalive {
    /// Notes the time.
    pub(super) fn at(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// When [`Manager::ask_peers`] is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.next
    }

    /// Notes that a connection is in `state` now.
    pub(super) fn enter(&mut self, connection: &Connection, state: &State) {
        if self.on && matches!(state, State::Established { .. }) {
            let new = self.watched.insert(key(connection));
            debug_assert!(new, "a connection is established once");
            self.next.get_or_insert(self.now + INTERVAL);
        }
    }

    /// Notes that a connection is no longer in `state`.
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

    /// The connections to ask about now: one for each process, and all of a suspected one.
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

    /// Whether nothing is kept.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.watched.is_empty() && self.asked.is_empty()
    }
}

fn key(connection: &Connection) -> (Gid, u8, u32) {
    let [block, ..] = connection.remote_id.to_be_bytes();
    (connection.route.remote, block, connection.id.0)
}

/// A queue pair that the peer's end of the connection does not have: all bits differ.
fn other_than(qpn: Qpn) -> Qpn {
    Qpn::from_wire(!qpn.value() & 0xff_ffff)
}

impl Manager {
    /// From now on, asks whether the peers of connections are still there, or does not. For connections
    /// that are established later.
    pub fn set_keepalive(&mut self, on: bool) {
        self.index.keepalive.on = on;
    }

    /// The next question whether a peer is still there. If it is sent so that the sender learns of an ICMP
    /// message about it, [`Manager::unreachable`] is called for that.
    pub fn poll_question(&mut self) -> Option<Outgoing> {
        self.questions.pop_front()
    }

    /// The host of `remote` has said that nobody receives at its address, and quoted the datagram that it
    /// says this of. Returns whether it is one of the last questions.
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

    /// Something has come from this address, so somebody has it.
    pub(super) fn heard_from(&mut self, remote: Gid) {
        let keepalive = &mut self.index.keepalive;
        keepalive.unreachable.remove(&remote);
        keepalive.was_unreachable.remove(&remote);
    }

    /// A peer does not know the connection: [`State::Established`], with its IDs.
    pub(super) fn peer_forgot(&mut self, id: ConnId, tid: u64) -> Option<()> {
        let connection = self.connections.get(&id.0)?;
        let (gid, block, _) = key(connection);
        let keepalive = &mut self.index.keepalive;
        let asked = keepalive.asked.get_mut(&id.0);
        // The answer may come twice.
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

    /// The peer would have disconnected, if it could. What follows is as if it had.
    fn peer_is_gone(&mut self, id: ConnId) {
        let tid = self.draw_tid(id);
        self.set(id, State::DreqRcvd { tid });
        self.tell(id, CmEvent::DisconnectRequest { id });
    }

    /// Ends the connections to addresses that were unreachable twice, and asks about the others.
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
