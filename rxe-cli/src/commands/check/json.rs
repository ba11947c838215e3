//! What the analyst says, as JSON.

use rxe_lab::check::{Direction, Finding, Times};
use serde::Serialize;

use super::Checked;

/// A file.
#[derive(Serialize)]
pub(super) struct File<'a> {
    file: &'a str,
    frames: u64,
    error: Option<String>,
    findings: Vec<Found<'a>>,
    more_findings: u64,
    directions: Vec<Way>,
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
    text: &'a str,
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
    seconds: f64,
    goodput_bytes_per_second: Option<f64>,
    round_trip_us: Percentiles,
    latency_us: Percentiles,
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
    pub(super) fn of(checked: &'a Checked) -> Self {
        let Checked { name, report, frames, error } = checked;
        Self {
            file: name,
            frames: *frames,
            error: error.as_ref().map(ToString::to_string),
            findings: report.findings.iter().map(Found::of).collect(),
            more_findings: report.more_findings,
            directions: report.directions.iter().map(Way::of).collect(),
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
            text: &finding.text,
        }
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
            seconds: stats.duration().as_secs_f64(),
            goodput_bytes_per_second: stats.goodput(),
            round_trip_us: Percentiles::of(&stats.round_trips),
            latency_us: Percentiles::of(&stats.latencies),
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
