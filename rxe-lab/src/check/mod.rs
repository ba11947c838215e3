//! The protocol analyst: follows each connection in both directions and says what went wrong.
//! IBTA 9.7 (RC, XRC), 9.8 (UC).
//!
//! A direction is told by its addresses and the destination QP. The two directions of a connection
//! are paired by messages of the communication manager, or by responses that fit requests: at once if
//! there is no other choice, after [`EVIDENCE`] responses if there is one. Without a pair, only
//! requests are checked. This also holds for two queue pairs of one address. A false alarm is worse than silence: what has an innocent explanation is not
//! reported, or reported as [`Confidence::Possible`].
//!
//! Memory is bounded: [`MAX_DIRECTIONS`] directions, a few thousand requests of each and
//! [`MAX_REMEMBERED`] of all, and [`MAX_FINDINGS`] findings.

mod finding;
mod gaps;
mod history;
mod requests;
mod responses;
mod summary;
mod text;

use std::collections::HashMap;
use std::time::Duration;

use rxe_core::cm::mad::Message;
use rxe_core::types::Psn;
use rxe_core::wire::{OpInfo, OpKind, Service};

use crate::frame::{Address, Content, Frame, Icrc, Transport};
pub use finding::{Confidence, Finding, Kind, Severity};
use requests::Requests;
use responses::Responses;
pub use summary::{Direction, Stats, Times};

/// The most directions of connections that are followed.
pub const MAX_DIRECTIONS: usize = 4096;

/// The most findings that are kept.
pub const MAX_FINDINGS: usize = 10_000;

/// Requests that are remembered of all directions, at most about four times as many.
pub const MAX_REMEMBERED: usize = 1 << 18;

/// The most messages of the communication manager that wait for their answer.
const MAX_REQS: usize = 4096;

/// Responses that must fit one direction and no other before the two are taken as a pair.
pub const EVIDENCE: u32 = 8;

/// Damaged packets of one direction that are remembered.
const MAX_DAMAGED: usize = 32;

/// A packet, and what is known of it.
struct Seen<'a> {
    number: u64,
    /// The time since the first frame.
    at: Duration,
    packet: &'a Transport<'a>,
    /// The bytes of its ICRC, which tell packets apart; 0 if they were not captured.
    icrc: u32,
}

/// What the packets of a direction have shown.
#[derive(Debug)]
struct Found {
    from: Address,
    to: Address,
    dest_qp: u32,
    stats: Stats,
    findings: Vec<Finding>,
    /// The queue pair has begun anew.
    restarted: bool,
}

/// Packets from one host to a queue pair of another.
#[derive(Debug)]
struct Flow {
    /// Where they were captured; copies from elsewhere are not looked at.
    place: Option<u64>,
    service: Service,
    /// A PSN that the communication manager has told, which tells connections apart.
    start: Option<Psn>,
    requests: Requests,
    /// Responses to the requests of `peer`.
    responses: Responses,
    found: Found,
    peer: Option<usize>,
    /// The direction whose requests its responses fit, and how many did.
    candidate: Option<(usize, u32)>,
    damaged: Vec<(u64, u32)>,
    damaged_count: u64,
    /// Packets that are not damaged.
    sound_count: u64,
}

/// Follows all connections of a capture.
#[derive(Debug, Default)]
pub struct Checker {
    keys: HashMap<(Address, Address, u32), usize>,
    /// Directions between two hosts, in this order.
    hosts: HashMap<(Address, Address), Vec<usize>>,
    flows: Vec<Flow>,
    /// REQs: who asked with which communication ID, its queue pair; `None` if programs that share
    /// an address have asked with one ID for several.
    reqs: HashMap<(Address, u32), Option<u32>>,
    findings: Vec<Finding>,
    more_findings: u64,
    left_out: u64,
    not_checked: u64,
}

/// What the analyst says at the end.
#[derive(Debug)]
pub struct Report {
    /// The findings, in the order of their first frames.
    pub findings: Vec<Finding>,
    /// Findings beyond [`MAX_FINDINGS`].
    pub more_findings: u64,
    /// The directions in which requests were sent.
    pub directions: Vec<Direction>,
    /// Packets that were not followed because there are too many directions.
    pub left_out: u64,
    /// Packets whose ICRC could not be checked.
    pub not_checked: u64,
    /// Directions in which more requests were outstanding than are remembered.
    pub overflowed: usize,
}

impl Report {
    /// How many findings weigh so much.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|f| f.kind.severity() == severity).count()
    }
}

impl Checker {
    /// Looks at the next frame. `since` is the time since the first one.
    pub fn add(&mut self, number: u64, interface: u32, since: Duration, frame: &Frame<'_>) {
        let (Content::Rdma(packets), Some(ends)) = (&frame.content, frame.ends) else { return };
        let place = u64::from(interface) << 32 | u64::from(frame.place);
        for packet in packets {
            let Some(info) = packet.info else { continue };
            let to = packet.at + packet.len;
            let icrc = frame.bytes.get(to.saturating_sub(4)..to).and_then(<[u8]>::first_chunk);
            let icrc = icrc.map_or(0, |b| u32::from_le_bytes(*b));
            let seen = Seen { number, at: since, packet, icrc };
            match info.service {
                Service::Rc | Service::Xrc | Service::Uc => {
                    let ce = frame.congestion_experienced;
                    self.connected(ends, place, &seen, info, ce);
                }
                Service::Cnp => self.notified(ends, packet.bth.dest_qp.value()),
                Service::Ud => {
                    if packet.icrc != Icrc::Wrong
                        && let Some(message) = packet.cm_message()
                    {
                        self.managed(ends, &message);
                    }
                }
            }
        }
    }

    /// The end of the capture.
    pub fn finish(mut self) -> Report {
        for at in 0..self.flows.len() {
            self.end(at);
            self.keep(at);
        }
        let mut findings = std::mem::take(&mut self.findings);
        let mut directions = Vec::new();
        let mut overflowed = 0;
        let source_qps: Vec<_> = (self.flows.iter())
            .map(|flow| flow.peer.map(|peer| self.flows[peer].found.dest_qp))
            .collect();
        for (flow, source_qp) in std::mem::take(&mut self.flows).into_iter().zip(source_qps) {
            overflowed += usize::from(flow.requests.history.overflowed);
            if flow.found.stats.requests == 0 {
                continue;
            }
            directions.push(Direction {
                from: flow.found.from,
                to: flow.found.to,
                source_qp,
                dest_qp: flow.found.dest_qp,
                service: match flow.service {
                    Service::Uc => "UC",
                    Service::Xrc => "XRC",
                    _ => "RC",
                },
                mtu: flow.requests.mtu,
                stats: flow.found.stats,
            });
        }
        for finding in &mut findings {
            finding.frames.sort_unstable();
            finding.frames.dedup();
        }
        findings.sort_by(|a, b| a.frames.cmp(&b.frames));
        let Self { more_findings, left_out, not_checked, .. } = self;
        Report { findings, more_findings, directions, left_out, not_checked, overflowed }
    }

    /// A packet of a connected service.
    fn connected(
        &mut self,
        (src, dst): (Address, Address),
        place: u64,
        seen: &Seen<'_>,
        info: &'static OpInfo,
        marked: bool,
    ) {
        let packet = seen.packet;
        let dest_qp = packet.bth.dest_qp.value();
        let Some(at) = self.flow((src, dst, dest_qp), info.service) else {
            self.left_out += 1;
            return;
        };
        let remembered = MAX_REMEMBERED / self.flows.len();
        let flow = &mut self.flows[at];
        if *flow.place.get_or_insert(place) != place {
            return;
        }
        match packet.icrc {
            Icrc::Wrong => {
                flow.damaged_count += 1;
                if flow.damaged.len() < MAX_DAMAGED {
                    flow.damaged.push((seen.number, packet.bth.psn.value()));
                }
                return;
            }
            Icrc::Unchecked(_) => self.not_checked += 1,
            Icrc::Right => {}
        }
        flow.sound_count += 1;
        if let Some(why) = packet.wrong {
            let text = format!("{} Receivers drop it.", why.explain());
            let frames = vec![seen.number];
            return flow.found.add(seen, Kind::Malformed, Confidence::Certain, frames, text);
        }
        let stats = &mut flow.found.stats;
        stats.marked += u64::from(marked);
        if !info.is_response() {
            stats.requests += 1;
            stats.span = Some((stats.span.map_or(seen.at, |(first, _)| first), seen.at));
            flow.service = info.service;
            flow.requests.history.limit(remembered);
            flow.requests.take(seen, info, &mut flow.found);
            if std::mem::take(&mut flow.found.restarted)
                && let Some(peer) = flow.peer
            {
                self.flows[peer].responses = Responses::default();
            }
            return self.keep(at);
        }
        let Some(peer) = self.flows[at].peer.or_else(|| self.pair(at, seen, info)) else { return };
        // A response goes the other way than the requests that it answers.
        if peer == at {
            return;
        }
        let Ok([responder, requester]) = self.flows.get_disjoint_mut([at, peer]) else { return };
        let found = &mut requester.found;
        found.stats.responses += 1;
        if let Some((_, last)) = &mut found.stats.span {
            *last = seen.at;
        }
        responder.responses.take(seen, info, &mut requester.requests, found);
        self.keep(peer);
    }

    /// The queue pair that sends from `from` to this queue pair of `to`, as far as it is known.
    pub fn source_qp(&self, from: Address, to: Address, dest_qp: u32) -> Option<u32> {
        let peer = self.flows[*self.keys.get(&(from, to, dest_qp))?].peer?;
        Some(self.flows[peer].found.dest_qp)
    }

    /// The direction with this key. `None` if there are too many.
    fn flow(&mut self, key: (Address, Address, u32), service: Service) -> Option<usize> {
        if let Some(at) = self.keys.get(&key) {
            return Some(*at);
        }
        if self.flows.len() == MAX_DIRECTIONS {
            return None;
        }
        let (from, to, dest_qp) = key;
        let found = Found {
            from,
            to,
            dest_qp,
            stats: Stats::default(),
            findings: Vec::new(),
            restarted: false,
        };
        let at = self.flows.len();
        self.flows.push(Flow {
            place: None,
            service,
            start: None,
            requests: Requests::default(),
            responses: Responses::default(),
            found,
            peer: None,
            candidate: None,
            damaged: Vec::new(),
            damaged_count: 0,
            sound_count: 0,
        });
        self.keys.insert(key, at);
        self.hosts.entry((from, to)).or_default().push(at);
        Some(at)
    }

    /// Finds the direction whose requests the responses of this one answer.
    fn pair(&mut self, at: usize, seen: &Seen<'_>, info: &OpInfo) -> Option<usize> {
        /// Hosts with more queue pairs are paired by the communication manager alone.
        const MAX_CHOICE: usize = 256;
        let (from, to) = (self.flows[at].found.from, self.flows[at].found.to);
        let others = self.hosts.get(&(to, from))?.clone();
        if others.len() > MAX_CHOICE {
            return None;
        }
        let alone = if from == to {
            // Both directions are in one list. Those that have a peer are no choice.
            others.iter().filter(|&&other| self.flows[other].peer.is_none()).count() == 2
        } else {
            others.len() == 1 && self.hosts.get(&(from, to))?.len() == 1
        };
        let psn = seen.packet.bth.psn;
        let mut fitting = others.into_iter().filter(|&other| {
            let flow = &mut self.flows[other];
            if other == at || flow.peer.is_some() || flow.service != info.service {
                return false;
            }
            let answered = flow.requests.history.is_answered(psn);
            if info.kind == OpKind::Acknowledge && flow.requests.gaps.contains(psn) {
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
        let (Some(other), None) = (fitting.next(), fitting.next()) else { return None };
        let count = match self.flows[at].candidate {
            Some((before, count)) if before == other => count + 1,
            _ => 1,
        };
        self.flows[at].candidate = Some((other, count));
        (alone || count >= EVIDENCE).then(|| self.join(at, other))
    }

    /// Makes two directions a connection. Returns the second.
    fn join(&mut self, a: usize, b: usize) -> usize {
        for (one, other) in [(a, b), (b, a)] {
            self.flows[one].peer = Some(other);
            self.flows[one].responses = Responses::default();
        }
        b
    }

    /// A congestion notification to a queue pair.
    fn notified(&mut self, (src, dst): (Address, Address), dest_qp: u32) {
        let Some(&at) = self.keys.get(&(src, dst, dest_qp)) else { return };
        if let Some(peer) = self.flows[at].peer {
            self.flows[peer].found.stats.cnps += 1;
        }
    }

    /// A message of the communication manager: who talks to whom.
    fn managed(&mut self, (src, dst): (Address, Address), message: &Message) {
        match message {
            Message::Req(req) => {
                let key = (src, req.local_comm_id);
                if self.reqs.len() < MAX_REQS || self.reqs.contains_key(&key) {
                    let qp = Some(req.local_qpn.value());
                    let before = self.reqs.insert(key, qp);
                    if src == dst && before.is_some_and(|before| before != qp) {
                        self.reqs.insert(key, None);
                    }
                }
            }
            Message::Rep(rep) => {
                let active = self.reqs.remove(&(dst, rep.remote_comm_id)).flatten();
                let Some(active) = active else { return };
                let ends = [(src, dst, active), (dst, src, rep.local_qpn.value())];
                let Some(a) = self.flow(ends[0], Service::Rc) else { return };
                let Some(b) = self.flow(ends[1], Service::Rc) else { return };
                let start = Some(rep.starting_psn);
                if self.flows[a].peer == Some(b) && self.flows[a].start == start {
                    // The REP was sent again.
                    return;
                }
                self.flows[a].start = start;
                for at in [a, b] {
                    if let Some(peer) = self.flows[at].peer.take() {
                        self.flows[peer].peer = None;
                    }
                    let Flow { requests, found, .. } = &mut self.flows[at];
                    requests.restart(found);
                    found.restarted = false;
                    self.keep(at);
                }
                self.join(a, b);
            }
            _ => {}
        }
    }

    /// Takes the findings of a direction, as far as there is room.
    fn keep(&mut self, at: usize) {
        let new = &mut self.flows[at].found.findings;
        let room = MAX_FINDINGS.saturating_sub(self.findings.len()).min(new.len());
        self.more_findings += (new.len() - room) as u64;
        self.findings.extend(new.drain(..).take(room));
    }

    /// What the end of the capture shows of a direction.
    fn end(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        let damaged = flow.damaged_count;
        let all = damaged > 1 && flow.sound_count == 0;
        let unanswered = flow.requests.unanswered();
        flow.requests.close(&mut flow.found);
        let found = &mut flow.found;
        if all {
            let frames = flow.damaged.iter().map(|(number, _)| *number).take(8).collect();
            let text = format!(
                "All {damaged} packets have a wrong ICRC: they were probably captured before the \
                 sender's device computed it. They are not followed."
            );
            let psn = Psn::new(flow.damaged.first().map_or(0, |(_, psn)| *psn));
            found.push(Kind::IcrcArtefact, Confidence::Likely, psn, frames, 0, text);
        } else {
            for (number, psn) in std::mem::take(&mut flow.damaged) {
                let text = "The ICRC is wrong: the packet was damaged on its way where no checksum \
                            of the link saw it, or a device changed what the ICRC covers. The \
                            receiver drops it.";
                let psn = Psn::new(psn);
                let frames = vec![number];
                found.push(Kind::Icrc, Confidence::Certain, psn, frames, 0, text.to_owned());
            }
        }
        if let Some(sent) = unanswered {
            let text = format!(
                "It was sent {} times and never answered: the peer is gone, or its packets do not \
                 arrive. The request ends with RETRY_EXC_ERR.",
                sent.times
            );
            let (psn, frames) = (sent.psn, vec![sent.frame, sent.last_frame]);
            found.push(Kind::Unanswered, Confidence::Likely, psn, frames, 0, text);
        }
        flow.requests.report_lost(found);
        if flow.peer.is_none() {
            return;
        }
        let gaps = &flow.requests.gaps;
        let missing = gaps.missing();
        let reliable = flow.service != Service::Uc;
        let oldest = flow.requests.history.oldest().map(|sent| sent.psn);
        let answered = gaps.first().filter(|gap| oldest.is_none_or(|psn| psn.after(gap.first)));
        let first = answered.map(|gap| (gap.first, gap.frame));
        let found = &mut flow.found;
        if reliable && let Some((psn, frame)) = first {
            let text = format!(
                "{missing} requests were answered that the capture does not have: the host that \
                 captured was too slow, or they went another way."
            );
            found.push(Kind::NotCaptured, Confidence::Likely, psn, vec![frame], 0, text);
        }
    }
}

impl Found {
    /// Adds a finding about a packet.
    fn add(
        &mut self,
        seen: &Seen<'_>,
        kind: Kind,
        confidence: Confidence,
        frames: Vec<u64>,
        text: String,
    ) {
        self.push(kind, confidence, seen.packet.bth.psn, frames, 0, text);
    }

    fn push(
        &mut self,
        kind: Kind,
        confidence: Confidence,
        psn: Psn,
        frames: Vec<u64>,
        packets: u64,
        text: String,
    ) {
        let (from, to, dest_qp, psn) = (self.from, self.to, self.dest_qp, psn.value());
        self.findings.push(Finding {
            kind,
            confidence,
            from,
            to,
            dest_qp,
            psn,
            frames,
            packets,
            text,
        });
    }
}

#[cfg(test)]
mod tests;
