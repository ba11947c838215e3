//! The analyzer's report as text of 80 columns.

use std::fmt::Write;

use rxe_lab::check::{
    Acks, Credit, DatagramSender, DatagramsTo, Direction, Finding, Report, Severity, Stats, Tally,
    Timer, Times,
};
use rxe_lab::explain::{Lang, explained};
use rxe_lab::report::Checked;
use rxe_lab::words;

use super::causes;
use crate::common::color::{Tone, paint};
use crate::common::{lines, paragraph};

/// The most destinations that are printed per sender of datagrams.
const MAX_DESTINATIONS: usize = 20;

/// Returns the text for a file.
pub(super) fn text(checked: &Checked, lang: Lang) -> String {
    let Checked { name, report, frames, .. } = checked;
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{name}: {frames} frames");
    table(&mut out, report);
    for direction in &report.directions {
        describe(&mut out, direction);
    }
    for sender in &report.datagrams {
        describe_sender(&mut out, sender);
    }
    for finding in &report.findings {
        find(&mut out, finding);
    }
    for kind in explained(report, lang) {
        causes::write(&kind, &mut out, lang);
    }
    let mut notes = Vec::new();
    if report.more_findings > 0 {
        notes.push(format!("{} of these findings are not shown one by one", report.more_findings));
    }
    if report.left_out > 0 {
        notes.push(format!("{} packets: too many connections to follow", report.left_out));
    }
    if report.overflowed > 0 {
        let n = report.overflowed;
        notes.push(format!("{n} connections had more requests outstanding than are remembered"));
    }
    if report.not_checked > 0 {
        notes.push(format!("{} packets: ICRC not checked (see decode)", report.not_checked));
    }
    for note in notes {
        let _ = writeln!(out, "  {note}");
    }
    let count = |severity| report.count(severity);
    let [errors, warnings, notes] = [Severity::Error, Severity::Warning, Severity::Note].map(count);
    let _ = writeln!(out, "  errors {errors}, warnings {warnings}, notes {notes}\n");
    out
}

/// Writes how often each kind of finding occurred, and in how many connections.
fn table(out: &mut String, report: &Report) {
    if report.kinds.is_empty() {
        return;
    }
    let names = report.kinds.iter().map(|tally| tally.kind.name().len());
    let width = names.max().unwrap_or_default();
    let _ = writeln!(out, "  {:<8} {:<width$}    count  connections", "finding", "");
    for Tally { kind, count, connections } in &report.kinds {
        let name = format!("{:<8}", kind.severity());
        let severity = paint_severity(kind.severity(), &name);
        let _ = writeln!(out, "  {severity} {:<width$} {count:>8} {connections:>12}", kind.name());
    }
}

/// Colors the name of a severity.
fn paint_severity(severity: Severity, name: &str) -> String {
    match severity {
        Severity::Error => paint(Tone::Bad, name),
        Severity::Warning => paint(Tone::Notice, name),
        Severity::Note => name.to_owned(),
    }
}

fn describe(out: &mut String, direction: &Direction) {
    let Direction { from, to, source_qp, dest_qp, service, mtu, stats } = direction;
    let source = source_qp.map_or_else(|| "?".to_owned(), |qp| format!("0x{qp:06x}"));
    let mtu = mtu.map_or_else(String::new, |mtu| format!(", path MTU {mtu}"));
    let head = format!("{from} {source} > {to} 0x{dest_qp:06x}: {service}{mtu}");
    paragraph(out, &head, lines("  ", "    "));
    let line = format!(
        "requests {}, responses {}, messages {} ({} B), sent again {} ({} B)",
        stats.requests,
        stats.responses,
        stats.messages,
        stats.bytes,
        stats.retransmitted,
        stats.retransmitted_bytes
    );
    paragraph(out, &line, lines("    ", "    "));
    let mut rates = Vec::new();
    if let Some(goodput) = stats.goodput() {
        rates.push(format!("goodput {:.3} MB/s", goodput / 1e6));
    }
    rates.extend(percentiles("round trip", &stats.round_trips));
    rates.extend(percentiles("latency", &stats.latencies));
    let timer = timer(stats.timer).into_iter().collect();
    for parts in [acknowledged(stats), congestion(stats), timer, rates] {
        if !parts.is_empty() {
            paragraph(out, &parts.join("; "), lines("    ", "    "));
        }
    }
}

/// Formats the acknowledgements of requests, and the credits in them.
fn acknowledged(stats: &Stats) -> Vec<String> {
    let Acks { count, requests, most, implied, .. } = stats.acks;
    let mut parts = Vec::new();
    if count > 0 {
        let each = if most > 1 { format!(", at most {most} each") } else { String::new() };
        parts.push(format!("ACKs {count} for {requests} requests{each}"));
    }
    if implied > 0 {
        parts.push(format!("{implied} acknowledged by later responses"));
    }
    match stats.credits {
        Credit { range: Some((least, most, last)), .. } if least < most => {
            parts.push(format!("credits {least} to {most}, last {last}"));
        }
        Credit { range: Some((one, ..)), .. } => parts.push(format!("credits {one}")),
        Credit { unlimited: 1.., .. } => parts.push("credits unlimited".to_owned()),
        Credit { .. } => {}
    }
    parts
}

/// Formats the requester's timer, as far as timeouts show it.
fn timer(timer: Timer) -> Option<String> {
    let (time, (least, most)) = (words::time(timer.time()?), timer.codes()?);
    let times = if timer.count == 1 { "timeout" } else { "timeouts" };
    let codes = match timer.of_req {
        Some(code) if (least..=most).contains(&code) => {
            format!("Local ACK Timeout {code}, as in the REQ")
        }
        Some(code) => format!("Local ACK Timeout {least} to {most}; the REQ has {code}"),
        None => format!("Local ACK Timeout {least} to {most}"),
    };
    Some(format!("timer {time} in {} {times} ({codes})", timer.count))
}

/// Formats ECN marks, congestion notification packets, and the rate after them.
fn congestion(stats: &Stats) -> Vec<String> {
    let Stats { marked, marked_responses, cnps, cnps_to_responder, slowdown, .. } = stats;
    let mut parts = Vec::new();
    if marked + cnps > 0 {
        parts.push(format!("marked CE {marked}, CNPs {cnps}"));
    }
    if marked_responses + cnps_to_responder > 0 {
        let cnps = cnps_to_responder;
        parts.push(format!("responses marked CE {marked_responses}, CNPs to the responder {cnps}"));
    }
    if let Some(percent) = slowdown.percent() {
        parts.push(format!("rate after a CNP {percent} % of that before"));
    }
    parts
}

/// Describes a queue pair that sends datagrams, with a line per destination.
fn describe_sender(out: &mut String, sender: &DatagramSender) {
    let DatagramSender { from, qp, missing, late, duplicated, cnps, destinations } = sender;
    let mut line = format!("{from} 0x{qp:06x}: UD, PSNs missing {missing}, late {late}");
    for (count, what) in [(duplicated, "duplicated"), (cnps, "CNPs")] {
        if *count > 0 {
            let _ = write!(line, ", {what} {count}");
        }
    }
    paragraph(out, &line, lines("  ", "    "));
    for way in destinations.iter().take(MAX_DESTINATIONS) {
        let DatagramsTo { to, dest_qp, is_multicast, q_key, key_changes, stats } = way;
        let mut line = format!("> {to} 0x{dest_qp:06x}");
        if *is_multicast {
            line.push_str(" (multicast)");
        }
        let _ =
            write!(line, ": datagrams {} ({} B), Q_Key 0x{q_key:08x}", stats.requests, stats.bytes);
        if way.is_controlled() {
            line.push_str(" (controlled)");
        }
        if *key_changes > 0 {
            let _ = write!(line, ", changed {key_changes} times");
        }
        if stats.marked > 0 {
            let _ = write!(line, ", marked CE {}", stats.marked);
        }
        if let Some(goodput) = stats.goodput() {
            let _ = write!(line, "; goodput {:.3} MB/s", goodput / 1e6);
        }
        paragraph(out, &line, lines("    ", "      "));
    }
    if let Some(more @ 1..) = destinations.len().checked_sub(MAX_DESTINATIONS) {
        let _ = writeln!(out, "    and {more} more destinations (--json has all)");
    }
}

fn percentiles(name: &str, times: &Times) -> Option<String> {
    let at = |percent| times.percentile(percent).map(words::time);
    let (p50, p99, max) = (at(50.0)?, at(99.0)?, at(100.0)?);
    Some(format!("{name} p50 {p50}, p99 {p99}, max {max}"))
}

fn find(out: &mut String, finding: &Finding) {
    let Finding { kind, confidence, from, to, dest_qp, psn, frames, packets, count, span, text } =
        finding;
    let list: Vec<_> = frames.iter().map(u64::to_string).collect();
    let frames = if list.len() == 1 { "frame" } else { "frames" };
    let severity = paint_severity(kind.severity(), &kind.severity().to_string());
    let mut head = format!("{severity}: {}, {confidence}; ", kind.name());
    if *count > 1 {
        let _ = write!(head, "{count} times in {}; first ", words::time(span.1 - span.0));
    }
    let _ = write!(head, "{frames} {}", list.join(", "));
    paragraph(out, &head, lines("  ", "    "));
    paragraph(
        out,
        &format!("{from} > {to} 0x{dest_qp:06x}, PSN 0x{psn:06x}"),
        lines("    ", "    "),
    );
    let again = match packets {
        0 => String::new(),
        1 => " 1 packet.".to_owned(),
        n => format!(" {n} packets."),
    };
    paragraph(out, &format!("{text}{again} [{}]", kind.rule()), lines("    ", "    "));
}
