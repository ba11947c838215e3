//! The analyzer's report as JSON.

use serde::Serialize;

use super::Checked;
use crate::check::{
    Acks, Credit, DatagramSender, DatagramsTo, Direction, Finding, Tally, Timer, Times,
};
use crate::explain::{Explained, Lang, explained};

/// The report on a file.
#[derive(Serialize)]
pub(super) struct File<'a> {
    file: &'a str,
    frames: u64,
    error: Option<&'a str>,
    findings: Vec<Found<'a>>,
    /// How often each kind of finding occurred.
    kinds: Vec<Kinds>,
    more_findings: u64,
    /// The catalogue's explanation of each kind of finding in the file.
    explained: Vec<Explained>,
    directions: Vec<Way>,
    datagrams: Vec<Sender>,
    packets_left_out: u64,
    icrc_not_checked: u64,
    directions_overflowed: usize,
}

#[derive(Serialize)]
struct Found<'a> {
    kind: &'a str,
    severity: String,
    confidence: String,
    rule: &'a str,
    from: String,
    to: String,
    dest_qp: u32,
    psn: u32,
    frames: &'a [u64],
    packets: u64,
    count: u64,
    first_seconds: f64,
    last_seconds: f64,
    text: &'a str,
}

#[derive(Serialize)]
struct Kinds {
    kind: &'static str,
    severity: String,
    count: u64,
    connections: usize,
}

#[derive(Serialize)]
struct Way {
    from: String,
    to: String,
    source_qp: Option<u32>,
    dest_qp: u32,
    service: &'static str,
    path_mtu: Option<u32>,
    requests: u64,
    responses: u64,
    messages: u64,
    bytes: u64,
    retransmitted: u64,
    retransmitted_bytes: u64,
    marked: u64,
    cnps: u64,
    responses_marked: u64,
    cnps_to_responder: u64,
    /// `None` if no CNP arrived while something was sent.
    rate_after_cnps_percent: Option<u64>,
    acks: Acknowledged,
    credits: Credits,
    timer: Timeouts,
    seconds: f64,
    goodput_bytes_per_second: Option<f64>,
    round_trip_us: Percentiles,
    latency_us: Percentiles,
}

/// A queue pair that sends datagrams.
#[derive(Serialize)]
struct Sender {
    from: String,
    source_qp: u32,
    psns_missing: u64,
    late: u64,
    duplicated: u64,
    cnps: u64,
    destinations: Vec<Datagrams>,
}

#[derive(Serialize)]
struct Datagrams {
    to: String,
    dest_qp: u32,
    multicast: bool,
    q_key: u32,
    q_key_controlled: bool,
    q_key_changes: u64,
    datagrams: u64,
    bytes: u64,
    marked: u64,
    seconds: f64,
    goodput_bytes_per_second: Option<f64>,
}

#[derive(Serialize)]
struct Acknowledged {
    count: u64,
    new: u64,
    requests: u64,
    messages: u64,
    most_requests: u64,
    requests_acknowledged_otherwise: u64,
}

#[derive(Serialize)]
struct Credits {
    least: Option<u32>,
    most: Option<u32>,
    last: Option<u32>,
    unlimited: u64,
}

/// The requester's timer, as far as timeouts show it.
#[derive(Serialize)]
struct Timeouts {
    timeouts: u64,
    us: Option<f64>,
    /// The least and the greatest Local ACK Timeout with this time.
    local_ack_timeout: Option<(u8, u8)>,
    local_ack_timeout_of_req: Option<u8>,
}

#[derive(Serialize)]
struct Percentiles {
    count: u64,
    p50: Option<f64>,
    p90: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

impl<'a> File<'a> {
    pub(super) fn of(checked: &'a Checked, lang: Lang) -> Self {
        let Checked { name, report, frames, error } = checked;
        Self {
            file: name,
            frames: *frames,
            error: error.as_deref(),
            findings: report.findings.iter().map(Found::of).collect(),
            kinds: report.kinds.iter().map(Kinds::of).collect(),
            more_findings: report.more_findings,
            explained: explained(report, lang),
            directions: report.directions.iter().map(Way::of).collect(),
            datagrams: report.datagrams.iter().map(Sender::of).collect(),
            packets_left_out: report.left_out,
            icrc_not_checked: report.not_checked,
            directions_overflowed: report.overflowed,
        }
    }
}

impl<'a> Found<'a> {
    fn of(finding: &'a Finding) -> Self {
        Self {
            kind: finding.kind.name(),
            severity: finding.kind.severity().to_string(),
            confidence: finding.confidence.to_string(),
            rule: finding.kind.rule(),
            from: finding.from.to_string(),
            to: finding.to.to_string(),
            dest_qp: finding.dest_qp,
            psn: finding.psn,
            frames: &finding.frames,
            packets: finding.packets,
            count: finding.count,
            first_seconds: finding.span.0.as_secs_f64(),
            last_seconds: finding.span.1.as_secs_f64(),
            text: &finding.text,
        }
    }
}

impl Kinds {
    fn of(tally: &Tally) -> Self {
        let Tally { kind, count, connections } = *tally;
        let (kind, severity) = (kind.name(), kind.severity().to_string());
        Self { kind, severity, count, connections }
    }
}

impl Way {
    fn of(direction: &Direction) -> Self {
        let stats = &direction.stats;
        Self {
            from: direction.from.to_string(),
            to: direction.to.to_string(),
            source_qp: direction.source_qp,
            dest_qp: direction.dest_qp,
            service: direction.service,
            path_mtu: direction.mtu,
            requests: stats.requests,
            responses: stats.responses,
            messages: stats.messages,
            bytes: stats.bytes,
            retransmitted: stats.retransmitted,
            retransmitted_bytes: stats.retransmitted_bytes,
            marked: stats.marked,
            cnps: stats.cnps,
            responses_marked: stats.marked_responses,
            cnps_to_responder: stats.cnps_to_responder,
            rate_after_cnps_percent: stats.slowdown.percent(),
            acks: Acknowledged::of(stats.acks),
            credits: Credits::of(stats.credits),
            timer: Timeouts::of(stats.timer),
            seconds: stats.duration().as_secs_f64(),
            goodput_bytes_per_second: stats.goodput(),
            round_trip_us: Percentiles::of(&stats.round_trips),
            latency_us: Percentiles::of(&stats.latencies),
        }
    }
}

impl Sender {
    fn of(sender: &DatagramSender) -> Self {
        let DatagramSender { from, qp, missing, late, duplicated, cnps, destinations } = sender;
        Self {
            from: from.to_string(),
            source_qp: *qp,
            psns_missing: *missing,
            late: *late,
            duplicated: *duplicated,
            cnps: *cnps,
            destinations: destinations.iter().map(Datagrams::of).collect(),
        }
    }
}

impl Datagrams {
    fn of(to: &DatagramsTo) -> Self {
        Self {
            to: to.to.to_string(),
            dest_qp: to.dest_qp,
            multicast: to.is_multicast,
            q_key: to.q_key,
            q_key_controlled: to.is_controlled(),
            q_key_changes: to.key_changes,
            datagrams: to.stats.requests,
            bytes: to.stats.bytes,
            marked: to.stats.marked,
            seconds: to.stats.duration().as_secs_f64(),
            goodput_bytes_per_second: to.stats.goodput(),
        }
    }
}

impl Acknowledged {
    fn of(acks: Acks) -> Self {
        let Acks { count, new, requests, messages, most, implied } = acks;
        let (most_requests, requests_acknowledged_otherwise) = (most, implied);
        Self { count, new, requests, messages, most_requests, requests_acknowledged_otherwise }
    }
}

impl Credits {
    fn of(credits: Credit) -> Self {
        let Credit { range, unlimited } = credits;
        let of = |pick: fn((u32, u32, u32)) -> u32| range.map(pick);
        Self { least: of(|r| r.0), most: of(|r| r.1), last: of(|r| r.2), unlimited }
    }
}

impl Timeouts {
    fn of(timer: Timer) -> Self {
        Self {
            timeouts: timer.count,
            us: timer.time().map(|time| time.as_secs_f64() * 1e6),
            local_ack_timeout: timer.codes(),
            local_ack_timeout_of_req: timer.of_req,
        }
    }
}

impl Percentiles {
    fn of(times: &Times) -> Self {
        let at = |percent| times.percentile(percent).map(|t| t.as_secs_f64() * 1e6);
        let (p50, p90, p99, max) = (at(50.0), at(90.0), at(99.0), at(100.0));
        Self { count: times.count(), p50, p90, p99, max }
    }
}
