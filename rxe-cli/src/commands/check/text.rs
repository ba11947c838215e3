//! What the analyst says, as text of 80 columns.

use std::fmt::Write;
use std::time::Duration;

use rxe_lab::check::{Direction, Finding, Severity, Times};

use super::Checked;
use crate::common::{lines, paragraph};

/// The text for a file.
pub(super) fn text(checked: &Checked) -> String {
    let Checked { name, report, frames, .. } = checked;
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{name}: {frames} frames");
    for direction in &report.directions {
        describe(&mut out, direction);
    }
    for finding in &report.findings {
        find(&mut out, finding);
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
    let mut line = format!(
        "requests {}, responses {}, messages {} ({} B), sent again {} ({} B)",
        stats.requests,
        stats.responses,
        stats.messages,
        stats.bytes,
        stats.retransmitted,
        stats.retransmitted_bytes
    );
    if stats.marked > 0 || stats.cnps > 0 {
        let _ = write!(line, "; marked CE {}, CNPs {}", stats.marked, stats.cnps);
    }
    if let Some(goodput) = stats.goodput() {
        let _ = write!(line, "; goodput {:.3} MB/s", goodput / 1e6);
    }
    for (name, times) in [("round trip", &stats.round_trips), ("latency", &stats.latencies)] {
        let _ = write!(line, "{}", percentiles(name, times));
    }
    paragraph(out, &line, lines("    ", "    "));
}

fn percentiles(name: &str, times: &Times) -> String {
    let at = |percent| times.percentile(percent).map(micros);
    let (Some(p50), Some(p99), Some(max)) = (at(50.0), at(99.0), at(100.0)) else {
        return String::new();
    };
    format!("; {name} p50 {p50} p99 {p99} max {max} us")
}

fn micros(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e6)
}

fn find(out: &mut String, finding: &Finding) {
    let Finding { kind, confidence, from, to, dest_qp, psn, frames, packets, text } = finding;
    let list: Vec<_> = frames.iter().map(u64::to_string).collect();
    let frames = if list.len() == 1 { "frame" } else { "frames" };
    let head =
        format!("{}: {}, {confidence}; {frames} {}", kind.severity(), kind.name(), list.join(", "));
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
