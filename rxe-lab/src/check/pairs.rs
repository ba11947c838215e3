//! Finds the two directions of each connection.

use rxe_core::cm::mad::Message;
use rxe_core::wire::{OpInfo, OpKind, Service};

use super::responses::Responses;
use super::{Checker, Flow, Seen};
use crate::frame::Address;

/// The most REQs that wait for their REP.
const MAX_REQS: usize = 4096;

/// The greatest distance in PSNs of a response before the first request that was captured: requests
/// may have been on the way when the capture began.
const MAX_BEFORE: i32 = 1 << 10;

/// The number of responses that must fit a direction, and no other, to pair the two.
pub const EVIDENCE: u32 = 8;

impl Checker {
    /// Returns the queue pair of `from` that sends to this one of `to`, if it is known.
    pub fn source_qp(&self, from: Address, to: Address, dest_qp: u32) -> Option<u32> {
        let peer = self.flows[*self.keys.get(&(from, to, dest_qp))?].peer?;
        Some(self.flows[peer].found.dest_qp)
    }

    /// Finds the direction whose requests the responses of direction `at` answer.
    pub(super) fn pair(&mut self, at: usize, seen: &Seen<'_>, info: &OpInfo) -> Option<usize> {
        /// Hosts with more queue pairs are paired by CM messages only.
        const MAX_CHOICE: usize = 256;
        let (from, to) = (self.flows[at].found.from, self.flows[at].found.to);
        let others = self.hosts.get(&(to, from))?;
        if others.len() > MAX_CHOICE {
            self.is_crowded = true;
            return None;
        }
        let others = others.clone();
        let alone = if from == to {
            // With one address, both directions are in one list. Directions with a peer are no
            // candidates.
            others.iter().filter(|&&other| self.flows[other].peer.is_none()).count() == 2
        } else {
            others.len() == 1 && self.hosts.get(&(from, to))?.len() == 1
        };
        let psn = seen.packet.bth.psn;
        let fitting = others.iter().copied().filter(|&other| {
            let flow = &mut self.flows[other];
            if other == at || flow.peer.is_some() || flow.service != info.service {
                return false;
            }
            let answered = flow.requests.history.is_answered(psn);
            if info.kind == OpKind::Acknowledge && flow.requests.gaps.contains(psn) {
                return true;
            }
            let first = flow.requests.history.first();
            if first.is_some_and(|first| (1..=MAX_BEFORE).contains(&first.psn.diff(psn))) {
                return true;
            }
            if info.kind == OpKind::Acknowledge && flow.requests.may_be_unseen(psn) {
                return true;
            }
            flow.requests.history.get(psn).is_some_and(|sent| {
                !answered
                    && match info.kind {
                        OpKind::ReadResponse => sent.info.kind == OpKind::ReadRequest,
                        OpKind::AtomicAcknowledge => sent.info.is_atomic(),
                        _ => true,
                    }
            })
        });
        let fitting: Vec<_> = fitting.collect();
        if let [other] = fitting[..] {
            let count = match self.flows[at].candidate {
                Some((before, count)) if before == other => count + 1,
                _ => 1,
            };
            self.flows[at].candidate = Some((other, count));
            if alone || count >= EVIDENCE {
                return Some(self.join(at, other));
            }
        }
        // A response that fits no request answers one from before the capture, in any direction.
        let doubtful = if fitting.is_empty() { others } else { fitting };
        for other in doubtful {
            let flow = &mut self.flows[other];
            flow.requests.doubtful |= other != at && flow.peer.is_none();
        }
        None
    }

    /// Pairs two directions. Returns the second.
    fn join(&mut self, a: usize, b: usize) -> usize {
        for (one, other) in [(a, b), (b, a)] {
            self.flows[one].peer = Some(other);
            self.flows[one].responses = Responses::default();
            self.flows[one].requests.end_doubt();
        }
        b
    }

    /// Handles a CM message, which tells the queue pairs of a connection.
    pub(super) fn managed(&mut self, (src, dst): (Address, Address), message: &Message) {
        match message {
            Message::Req(req) => {
                let key = (src, req.local_comm_id);
                if self.reqs.len() < MAX_REQS || self.reqs.contains_key(&key) {
                    let qp = Some((req.local_qpn.value(), req.primary.local_ack_timeout));
                    let before = self.reqs.insert(key, qp);
                    if src == dst && before.is_some_and(|before| before != qp) {
                        self.reqs.insert(key, None);
                    }
                }
            }
            Message::Rep(rep) => {
                let active = self.reqs.remove(&(dst, rep.remote_comm_id)).flatten();
                let Some((active, timeout)) = active else { return };
                let ends = [(src, dst, active), (dst, src, rep.local_qpn.value())];
                let Some(a) = self.flow(ends[0], Service::Rc) else { return };
                let Some(b) = self.flow(ends[1], Service::Rc) else { return };
                let start = Some(rep.starting_psn);
                if self.flows[a].peer == Some(b) && self.flows[a].start == start {
                    // The REP is a retransmission.
                    return;
                }
                self.flows[a].start = start;
                for at in [a, b] {
                    if let Some(peer) = self.flows[at].peer.take() {
                        self.flows[peer].peer = None;
                    }
                    let Flow { requests, found, .. } = &mut self.flows[at];
                    requests.restart(found);
                    requests.is_whole = true;
                    found.restarted = false;
                    self.keep(at);
                }
                self.flows[b].found.stats.timer.of_req = Some(timeout);
                self.join(a, b);
            }
            _ => {}
        }
    }
}
