//! The run as text of 80 columns.

use std::fmt::Write;

use super::super::case::Case;
use super::super::verdict::Verdict;
use super::{Played, Report};
use crate::common::color::{Tone, paint};
use crate::common::{lines, paragraph};

/// Returns the first line of the report.
pub(in super::super) fn head(report: &Report) -> String {
    let Report { device, peer, own, active_mtu, .. } = report;
    format!("peer {peer}: device {device}, active MTU {active_mtu}; own address {own}\n")
}

/// Returns the lines of a case. The first case of a group has the group's name in front.
pub(in super::super) fn row(before: &Report, played: &Played) -> String {
    let mut out = String::new();
    if before.played.last().is_none_or(|last| last.group != played.group) {
        // Writing to a string does not fail.
        let _ = writeln!(out, "\n{}", played.group);
    }
    let case = played.case;
    let verdict = played.verdict.name();
    let tone = match played.verdict {
        Verdict::Conforms => Tone::Good,
        Verdict::Deviates(_) => Tone::Bad,
        Verdict::NotTestable(_) => Tone::Notice,
    };
    let _ = writeln!(out, "  {}  {}", paint(tone, &format!("{verdict:<12}")), case.name);
    if let Some(why) = played.verdict.why() {
        let indent = || lines("      ", "        ");
        if matches!(played.verdict, Verdict::Deviates(_)) {
            paragraph(&mut out, &format!("sent: {} [{}]", case.sends, case.rule), indent());
            paragraph(&mut out, &format!("allowed: {}", case.allows), indent());
        }
        paragraph(&mut out, &format!("found: {why}"), indent());
    }
    out
}

/// Returns the last line of the report.
pub(in super::super) fn sum(report: &Report) -> String {
    format!("\n{}\n", report.counts())
}

/// Returns a list of the cases.
pub(in super::super) fn list(cases: &[(&str, &Case)]) -> String {
    let mut out = String::new();
    let mut last = "";
    for (group, case) in cases {
        if *group != last {
            let gap = if last.is_empty() { "" } else { "\n" };
            let _ = writeln!(out, "{gap}{group}");
            last = group;
        }
        let _ = writeln!(out, "  {} [{}]", case.name, case.rule);
        paragraph(&mut out, case.sends, lines("      ", "      "));
        paragraph(&mut out, &format!("allowed: {}", case.allows), lines("      ", "      "));
    }
    out
}
