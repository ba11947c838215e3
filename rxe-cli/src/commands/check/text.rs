//! The analyzer's report as text of 80 columns.

use std::fmt::Write;
use std::time::Duration;

use rxe_lab::check::{
    Acks, Credit, DatagramSender, DatagramsTo, Direction, Finding, Severity, Stats, Times,
};
use rxe_lab::explain::{Lang, explained};
use rxe_lab::report::Checked;

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
        notes.push(format!("{} more findings are not shown", report.more_findings));
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
    let [faults, warnings, notes] = [Severity::Fault, Severity::Warning, Severity::Note].map(count);
    let _ = writeln!(out, "  faults {faults}, warnings {warnings}, notes {notes}\n");
    out
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
    for parts in [acknowledged(stats), congestion(stats), rates] {
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
    let at = |percent| times.percentile(percent).map(micros);
    let (p50, p99, max) = (at(50.0)?, at(99.0)?, at(100.0)?);
    Some(format!("{name} p50 {p50} p99 {p99} max {max} us"))
}

fn micros(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e6)
}

fn find(out: &mut String, finding: &Finding) {
    let Finding { kind, confidence, from, to, dest_qp, psn, frames, packets, text } = finding;
    let list: Vec<_> = frames.iter().map(u64::to_string).collect();
    let frames = if list.len() == 1 { "frame" } else { "frames" };
    let name = kind.severity().to_string();
    let severity = match kind.severity() {
        Severity::Fault => paint(Tone::Bad, &name),
        Severity::Warning => paint(Tone::Notice, &name),
        Severity::Note => name,
    };
    let head = format!("{severity}: {}, {confidence}; {frames} {}", kind.name(), list.join(", "));
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
