//! The run as JSON.

use serde::Serialize;

use super::super::case::Case;
use super::Report;

#[derive(Serialize)]
struct Run<'a> {
    peer: String,
    own: String,
    device: &'a str,
    active_mtu: u32,
    cases: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    about: About<'a>,
    verdict: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<&'a str>,
    log: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<String>,
}

#[derive(Serialize)]
struct About<'a> {
    group: &'a str,
    name: &'a str,
    rule: &'a str,
    sends: &'a str,
    allows: &'a str,
}

impl<'a> About<'a> {
    fn of(group: &'a str, case: &'a Case) -> Self {
        let Case { name, rule, sends, allows, .. } = case;
        Self { group, name, rule, sends, allows }
    }
}

/// Returns the run as one JSON object.
pub(in super::super) fn report(report: &Report) -> String {
    let cases = report.played.iter().map(|played| Row {
        about: About::of(&played.group, played.case),
        verdict: played.verdict.name(),
        found: played.verdict.why(),
        log: &played.log,
        capture: played.capture.as_ref().map(|path| path.display().to_string()),
    });
    text(&Run {
        peer: report.peer.to_string(),
        own: report.own.to_string(),
        device: &report.device,
        active_mtu: report.active_mtu,
        cases: cases.collect(),
    })
}

/// Returns the cases as a JSON array.
pub(in super::super) fn list(cases: &[(&str, &Case)]) -> String {
    text(&cases.iter().map(|(group, case)| About::of(group, case)).collect::<Vec<_>>())
}

/// Encodes a value of strings and numbers, which cannot fail.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
