//! The analyzer's report as JUnit XML.
//! Each file is a suite, each kind of finding a test case.

use std::fmt::Write;

use rxe_lab::check::{Kind, Severity};
use rxe_lab::explain::{Explained, Lang};
use rxe_lab::report::Checked;

use super::causes;
use crate::common::escape;

/// Returns the report.
pub(super) fn xml(all: &[Checked], strict: bool, lang: Lang) -> String {
    let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n".to_owned();
    for checked in all {
        suite(&mut out, checked, strict, lang);
    }
    out + "</testsuites>\n"
}

fn suite(out: &mut String, checked: &Checked, strict: bool, lang: Lang) {
    let least = if strict { Severity::Warning } else { Severity::Error };
    let findings = &checked.report.findings;
    let fails = |kind: Kind| kind.severity() >= least && findings.iter().any(|f| f.kind == kind);
    let name = escape(&checked.name);
    let tests = Kind::ALL.len() + 1;
    let failures = Kind::ALL.iter().filter(|kind| fails(**kind)).count();
    let errors = usize::from(checked.error.is_some());
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\">"
    );
    case(out, &name, "readable", checked.error.as_ref().map(|e| ("error", e.clone())));
    for kind in Kind::ALL {
        let texts: Vec<_> = (findings.iter().filter(|f| f.kind == *kind))
            .map(|f| {
                let times =
                    if f.count == 1 { String::new() } else { format!("{} times; ", f.count) };
                format!("{times}frames {:?}, PSN 0x{:06x}: {}", f.frames, f.psn, f.text)
            })
            .collect();
        let tag = if fails(*kind) { "failure" } else { "system-out" };
        let said = (!texts.is_empty()).then(|| {
            let causes = Explained::of(*kind, lang).map(|explained| causes::line(&explained, lang));
            let lines: Vec<_> = texts.into_iter().chain(causes).collect();
            (tag, lines.join("\n"))
        });
        case(out, &name, kind.name(), said);
    }
    out.push_str("  </testsuite>\n");
}

/// Writes a test case. `said` is a tag and its text.
fn case(out: &mut String, class: &str, name: &str, said: Option<(&str, String)>) {
    let _ = match said {
        None => writeln!(out, "    <testcase classname=\"{class}\" name=\"{name}\"/>"),
        Some((tag, text)) => writeln!(
            out,
            "    <testcase classname=\"{class}\" name=\"{name}\"><{tag}>{}</{tag}></testcase>",
            escape(&text)
        ),
    };
}
