//! The run as JUnit XML: each group is a suite, each case a test case.

use std::fmt::Write;

use super::super::verdict::Verdict;
use super::{Played, Report};
use crate::common::escape;

/// Returns the report.
pub(in super::super) fn xml(report: &Report) -> String {
    let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n".to_owned();
    for played in report.played.chunk_by(|a, b| a.group == b.group) {
        suite(&mut out, played);
    }
    out + "</testsuites>\n"
}

fn suite(out: &mut String, all: &[Played]) {
    let count = |name| all.iter().filter(|played| played.verdict.name() == name).count();
    let group = all.first().map_or("", |played| played.group.as_str());
    let (failures, skipped) = (count("deviates"), count("not testable"));
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "  <testsuite name=\"{group}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\">",
        all.len()
    );
    for played in all {
        let case = played.case;
        let _ = write!(out, "    <testcase classname=\"{group}\" name=\"{}\">", case.name);
        let rule = format!("{} [{}] allowed: {}", case.sends, case.rule, case.allows);
        let _ = match &played.verdict {
            Verdict::Conforms => write!(out, "<system-out>{}</system-out>", escape(&rule)),
            Verdict::Deviates(why) => write!(
                out,
                "<failure message=\"{}\">{}\n{}</failure>",
                escape(why),
                escape(&rule),
                escape(&played.log.join("\n"))
            ),
            Verdict::NotTestable(why) => write!(out, "<skipped message=\"{}\"/>", escape(why)),
        };
        out.push_str("</testcase>\n");
    }
    out.push_str("  </testsuite>\n");
}
