//! The protocol analyst: follows each connection and reports what went wrong.
//! IBTA 9.7 (RC, XRC), 9.8 (UC, UD).
//!
//! A direction is identified by its addresses and the destination QP. The two directions of a
//! connection are paired by CM messages, or by responses that fit requests: immediately if there is
//! no other candidate, after [`EVIDENCE`] responses if there is one. Without a pair, only requests
//! are checked. The same rules apply to two queue pairs of one address.
//!
//! A false alarm is worse than silence: anything with an innocent explanation is not reported, or
//! reported as [`Confidence::Possible`].
//!
//! Memory is bounded by [`MAX_DIRECTIONS`] directions, a few thousand requests per direction and
//! about [`MAX_REMEMBERED`] in total, [`MAX_FINDINGS`] findings per severity, and the addresses of
//! [`MAX_REMEMBERED`] connections per kind of finding.

mod credits;
mod cut;
mod damage;
mod datagrams;
mod finding;
mod fold;
mod gaps;
mod history;
mod latency;
mod msn;
mod pace;
mod pairs;
mod requests;
mod responses;
mod summary;
mod text;
mod trips;
mod twice;
mod unready;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::{Bth, OpInfo, Service};

use crate::frame::{Address, Content, Frame, Icrc, Transport};
use crate::point::{Point, TakenFrom};
use cut::CutFrames;
use damage::Damage;
use datagrams::Datagrams;
pub use finding::{Confidence, Finding, Kind, MAX_FRAMES, Severity, Span};
use fold::Findings;
pub use fold::Tally;
use pace::Pace;
pub use pairs::EVIDENCE;
use requests::Requests;
use responses::Responses;
pub use summary::{
    Acks, Credit, DatagramSender, DatagramsTo, Direction, Slowdown, Stats, Timer, Times,
};
use twice::Twice;

/// The most directions that are followed.
pub const MAX_DIRECTIONS: usize = 4096;

/// The most findings kept per severity, so that many warnings do not hide an error.
pub const MAX_FINDINGS: usize = 10_000;

/// The number of requests to remember in all directions together, and of the connections to
/// remember per kind of finding. At most about four times as many requests are remembered, because a
/// direction gives up its excess only when it adds a request.
pub const MAX_REMEMBERED: usize = 1 << 18;

/// The first three bits of UD opcodes. IBTA 9.2.1.
const UD: u8 = 3;

/// A captured packet with its metadata.
struct Seen<'a> {
    number: u64,
    /// The interface of the capture. Times of different interfaces are not compared.
    interface: u32,
    /// The time since the first frame.
    at: Duration,
    packet: &'a Transport<'a>,
    /// The ICRC, which identifies a packet in comparisons; 0 if it was not captured.
    icrc: u32,
}

/// The findings and statistics of a direction.
#[derive(Debug)]
struct Found {
    from: Address,
    to: Address,
    dest_qp: u32,
    stats: Stats,
    findings: Vec<Finding>,
    /// Whether the queue pair was reset, so that earlier PSNs no longer count.
    restarted: bool,
    cut: CutFrames,
}

/// A direction: the packets from one host to a queue pair of another.
#[derive(Debug)]
struct Flow {
    taken_from: TakenFrom,
    twice: Twice,
    /// Whether there are responses in this direction.
    answers: bool,
    service: Service,
    /// The starting PSN in the REP, which distinguishes connections of the same queue pairs.
    start: Option<Psn>,
    requests: Requests,
    /// The responses in this direction, which answer the requests of `peer`.
    responses: Responses,
    found: Found,
    /// The other direction of the connection, if it is known.
    peer: Option<usize>,
    /// The direction whose requests the responses have fitted so far, and how many fitted.
    candidate: Option<(usize, u32)>,
    damage: Damage,
    /// The rate of all packets, requests and responses.
    pace: Pace,
}

/// Follows all connections of a capture.
#[derive(Debug, Default)]
pub struct Checker {
    keys: HashMap<(Address, Address, u32), usize>,
    /// The directions between two hosts, in the order of their first packets.
    hosts: HashMap<(Address, Address), Vec<usize>>,
    flows: Vec<Flow>,
    /// The queue pair and the Local ACK Timeout in each REQ, by the sender and its communication ID.
    /// `None` if programs that share an address used one ID for several queue pairs.
    reqs: HashMap<(Address, u32), Option<(u32, u8)>>,
    datagrams: Datagrams,
    /// Congestion notifications, by the direction in which they travel.
    cnps: HashMap<(Address, Address, u32), u64>,
    findings: Findings,
    /// The time of the last packet.
    end: Duration,
    left_out: u64,
    not_checked: u64,
    /// Whether two hosts have too many queue pairs to match their responses to requests.
    is_crowded: bool,
    /// Whether the second copy of a packet is ignored.
    ignores_copies: bool,
}

/// The result of the analysis.
#[derive(Debug)]
pub struct Report {
    /// The findings, in the order of their first frames.
    pub findings: Vec<Finding>,
    /// How often each kind of finding occurred, the most severe first.
    pub kinds: Vec<Tally>,
    /// The number of occurrences of which no finding is kept, because of [`MAX_FINDINGS`].
    pub more_findings: u64,
    /// The frames that [`Checker::collect_frames_of`] asked for.
    pub frames: HashSet<u64>,
    /// Whether nearly every packet comes twice. Without [`Report::once_more`], little is known then.
    pub is_of_two_places: bool,
    /// The directions of connections in which requests were sent.
    pub directions: Vec<Direction>,
    /// The queue pairs that sent datagrams.
    pub datagrams: Vec<DatagramSender>,
    /// The number of packets that were ignored because there are too many directions.
    pub left_out: u64,
    /// The number of packets whose ICRC could not be checked.
    pub not_checked: u64,
    /// The number of directions with more outstanding requests than are remembered.
    pub overflowed: usize,
}

impl Report {
    /// Returns how often findings of this severity occurred.
    pub fn count(&self, severity: Severity) -> u64 {
        let kinds = self.kinds.iter().filter(|tally| tally.kind.severity() == severity);
        kinds.map(|tally| tally.count).sum()
    }
}

impl Checker {
    /// Analyses the next frame. `since` is the time since the first frame.
    pub fn add(&mut self, number: u64, interface: u32, since: Duration, frame: &Frame<'_>) {
        let (Content::Rdma(packets), Some(ends)) = (&frame.content, frame.ends) else { return };
        self.end = since;
        let point = Point::of(interface, frame);
        for packet in packets {
            let to = packet.at + packet.len;
            let icrc = frame.bytes.get(to.saturating_sub(4)..to).and_then(<[u8]>::first_chunk);
            let icrc = icrc.map_or(0, |b| u32::from_le_bytes(*b));
            let seen = Seen { number, interface, at: since, packet, icrc };
            let Some(info) = packet.info else {
                self.without_meaning(ends, &seen);
                continue;
            };
            match info.service {
                Service::Rc | Service::Xrc | Service::Uc => {
                    let ce = frame.congestion_experienced;
                    self.connected(ends, point, &seen, info, ce);
                }
                Service::Cnp => self.notified(ends, packet.bth.dest_qp.value(), since),
                Service::Ud => self.datagram(ends, point, &seen, frame.congestion_experienced),
            }
        }
    }

    /// Ends the analysis at the end of the capture.
    pub fn finish(mut self) -> Report {
        self.count_notifications();
        for at in 0..self.flows.len() {
            self.end(at);
            self.keep(at);
        }
        let mut new = Vec::new();
        let datagrams = std::mem::take(&mut self.datagrams);
        new.extend(cut::report(datagrams.found().chain(self.flows.iter().map(|flow| &flow.found))));
        let mut datagrams = datagrams.finish(|found| new.append(&mut found.findings));
        self.keep_findings(new);
        let two_places = self.two_places();
        let is_of_two_places = two_places.is_some();
        if is_of_two_places && !self.ignores_copies {
            self.leave_out_copies();
            // Their numbers would be wrong.
            self.flows.iter_mut().for_each(|flow| flow.found.stats = Stats::default());
            datagrams.clear();
        }
        self.keep_findings(two_places.into_iter().collect());
        let more_findings = self.findings.more;
        let (findings, kinds, frames) = self.take_findings();
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
        let Self { left_out, not_checked, .. } = self;
        Report {
            findings,
            kinds,
            more_findings,
            frames,
            is_of_two_places,
            directions,
            datagrams,
            left_out,
            not_checked,
            overflowed,
        }
    }

    /// Analyses a packet of a connected service (RC, XRC, UC).
    fn connected(
        &mut self,
        (src, dst): (Address, Address),
        point: Point,
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
        if flow.taken_from.is_copy(point) {
            if info.is_response()
                && let Some(peer) = flow.peer
            {
                let Flow { requests, found, .. } = &mut self.flows[peer];
                requests.copied(seen, found);
            }
            return;
        }
        if self.is_ignored(at, seen, info) {
            return;
        }
        let flow = &mut self.flows[at];
        match packet.icrc {
            Icrc::Wrong => {
                if !info.is_response() {
                    flow.requests.flaws.add_damaged(packet.bth.psn);
                }
                return flow.damage.add(seen);
            }
            Icrc::Unchecked(_) => self.not_checked += 1,
            Icrc::Right => {}
        }
        flow.damage.add_sound();
        if let Some(why) = packet.wrong {
            return flow.found.add_malformed(seen, why.explain());
        }
        flow.pace.sends(seen.at, packet.payload_len);
        if !info.is_response() {
            let stats = &mut flow.found.stats;
            stats.marked += u64::from(marked);
            stats.requests += 1;
            stats.span = Some((stats.span.map_or(seen.at, |(first, _)| first), seen.at));
            flow.service = info.service;
            flow.requests.history.limit(remembered);
            flow.requests.doubtful |= self.is_crowded && flow.peer.is_none();
            flow.requests.take(seen, info, &mut flow.found);
            if std::mem::take(&mut flow.found.restarted)
                && let Some(peer) = flow.peer
            {
                self.flows[peer].responses = Responses::default();
            }
            return self.keep(at);
        }
        let Some(peer) = self.flows[at].peer.or_else(|| self.pair(at, seen, info)) else { return };
        // Responses travel against the direction of the requests that they answer.
        if peer == at {
            return;
        }
        let Ok([responder, requester]) = self.flows.get_disjoint_mut([at, peer]) else { return };
        let found = &mut requester.found;
        found.stats.responses += 1;
        found.stats.marked_responses += u64::from(marked);
        if requester.requests.is_at_point(seen)
            && let Some((_, last)) = &mut found.stats.span
        {
            *last = seen.at;
        }
        responder.responses.take(seen, info, &mut requester.requests, found);
        self.keep(peer);
    }

    /// Analyses a datagram.
    fn datagram(&mut self, ends: (Address, Address), point: Point, seen: &Seen<'_>, marked: bool) {
        let packet = seen.packet;
        let dest_qp = packet.bth.dest_qp.value();
        if dest_qp <= 1 {
            if packet.icrc != Icrc::Wrong
                && let Some(message) = packet.cm_message()
            {
                self.managed(ends, &message);
            }
            return;
        }
        if let Some(why) = packet.wrong.filter(|_| packet.icrc != Icrc::Wrong) {
            let mut found = Found::new(ends.0, ends.1, dest_qp);
            found.add_malformed(seen, why.explain());
            return self.keep_findings(found.findings);
        }
        self.not_checked += u64::from(matches!(packet.icrc, Icrc::Unchecked(_)));
        let Some(deth) = packet.ext.deth else { return };
        let Some(found) = self.datagrams.take(ends, point, seen, deth, marked) else {
            self.left_out += 1;
            return;
        };
        let new = std::mem::take(&mut found.findings);
        self.keep_findings(new);
    }

    /// Analyses a packet with an unknown opcode.
    fn without_meaning(&mut self, ends: (Address, Address), seen: &Seen<'_>) {
        let Bth { opcode, dest_qp, .. } = seen.packet.bth;
        // Only UD opcodes can be judged: RD and vendor-defined services have opcodes that are not
        // known here.
        if opcode.0 >> 5 == UD && seen.packet.icrc == Icrc::Right {
            let mut found = Found::new(ends.0, ends.1, dest_qp.value());
            let why = "The opcode does not exist: a message of UD has one packet, SEND ONLY.";
            found.add_malformed(seen, why);
            self.keep_findings(found.findings);
        }
    }

    /// Returns the index of the direction with this key; `None` if there are too many.
    fn flow(&mut self, key: (Address, Address, u32), service: Service) -> Option<usize> {
        if let Some(at) = self.keys.get(&key) {
            return Some(*at);
        }
        if self.flows.len() == MAX_DIRECTIONS {
            return None;
        }
        let (from, to, dest_qp) = key;
        let found = Found::new(from, to, dest_qp);
        let at = self.flows.len();
        self.flows.push(Flow {
            taken_from: TakenFrom::default(),
            twice: Twice::default(),
            answers: false,
            service,
            start: None,
            requests: Requests::default(),
            responses: Responses::default(),
            found,
            peer: None,
            candidate: None,
            damage: Damage::default(),
            pace: Pace::default(),
        });
        self.keys.insert(key, at);
        self.hosts.entry((from, to)).or_default().push(at);
        Some(at)
    }

    /// Moves the findings of a direction to the report.
    fn keep(&mut self, at: usize) {
        let new = std::mem::take(&mut self.flows[at].found.findings);
        self.keep_findings(new);
    }

    /// Adds findings to the report.
    fn keep_findings(&mut self, new: Vec<Finding>) {
        new.into_iter().for_each(|finding| self.findings.add(finding));
    }

    /// Reports what the end of the capture shows of a direction.
    fn end(&mut self, at: usize) {
        let end = self.end;
        let flow = &mut self.flows[at];
        let unanswered = flow.requests.unanswered();
        flow.requests.close(&mut flow.found);
        let found = &mut flow.found;
        flow.damage.report(found);
        if let Some(sent) = unanswered {
            let text = format!(
                "It was sent {} times and never answered. The request ends with \
                 RETRY_EXC_ERR.",
                sent.times
            );
            let (span, frames) = ((sent.began, sent.last_at), vec![sent.frame, sent.last_frame]);
            found.push(Kind::Unanswered, Confidence::Likely, (sent.psn, span), frames, text);
        }
        flow.requests.report_refused(found);
        flow.requests.report_lost(found);
        flow.requests.unready.report(Some(end), found);
        flow.requests.credits.report(found);
        if flow.peer.is_none() {
            return;
        }
        let gaps = &flow.requests.gaps;
        let missing = gaps.missing();
        let reliable = flow.service != Service::Uc;
        let oldest = flow.requests.history.oldest().map(|sent| sent.psn);
        let answered = gaps.first().filter(|gap| oldest.is_none_or(|psn| psn.after(gap.first)));
        let first = answered.map(|gap| (gap.first, gap.at, gap.frame));
        let found = &mut flow.found;
        if reliable && let Some((psn, at, frame)) = first {
            let text = format!(
                "{missing} requests were answered that the capture does not have: the host that \
                 captured was too slow, or they went another way."
            );
            let place = (psn, (at, at));
            found.push(Kind::NotCaptured, Confidence::Likely, place, vec![frame], text);
        }
    }
}

impl Found {
    fn new(from: Address, to: Address, dest_qp: u32) -> Self {
        let (stats, cut) = (Stats::default(), CutFrames::default());
        Self { from, to, dest_qp, stats, findings: Vec::new(), restarted: false, cut }
    }

    /// Reports that the structure of a packet is wrong.
    fn add_malformed(&mut self, seen: &Seen<'_>, why: &str) {
        let text = format!("{why} Receivers drop it.");
        self.add(seen, Kind::Malformed, Confidence::Certain, vec![seen.number], text);
    }

    /// Adds a finding about a packet.
    fn add(
        &mut self,
        seen: &Seen<'_>,
        kind: Kind,
        confidence: Confidence,
        frames: Vec<u64>,
        text: String,
    ) {
        let place = (seen.packet.bth.psn, (seen.at, seen.at));
        self.push(kind, confidence, place, frames, text);
    }

    /// Adds a finding with the PSN of its first packet and its times.
    /// Returns it, so that the caller can add counts.
    fn push(
        &mut self,
        kind: Kind,
        confidence: Confidence,
        (psn, span): (Psn, Span),
        frames: Vec<u64>,
        text: String,
    ) -> &mut Finding {
        let (from, to, dest_qp, psn) = (self.from, self.to, self.dest_qp, psn.value());
        let (packets, count, at) = (0, 1, self.findings.len());
        self.findings.push(Finding {
            kind,
            confidence,
            from,
            to,
            dest_qp,
            psn,
            frames,
            packets,
            count,
            span,
            text,
        });
        &mut self.findings[at]
    }
}

#[cfg(test)]
mod tests;
