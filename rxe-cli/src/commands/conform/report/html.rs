//! The run as one self-contained HTML page. Each case opens to its log.

use std::fmt::Write;

use super::Report;
use crate::common::escape;

/// Returns the page.
pub(in super::super) fn page(report: &Report) -> String {
    let mut out = HEAD.to_owned();
    let Report { device, peer, own, active_mtu, .. } = report;
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<h1>RoCEv2 conformance of {}</h1>\n<p>Peer {peer}, active MTU {active_mtu}; own address {own}. {}.</p>\n",
        escape(device),
        report.counts()
    );
    for all in report.played.chunk_by(|a, b| a.group == b.group) {
        let group = all.first().map_or("", |played| played.group.as_str());
        let _ = writeln!(out, "<h2>{group}</h2>");
        for played in all {
            let (case, verdict) = (played.case, played.verdict.name());
            let class = verdict.replace(' ', "-");
            let open = if verdict == "deviates" { " open" } else { "" };
            let _ = write!(
                out,
                "<details{open}><summary><b class=\"{class}\">{verdict}</b> {}</summary><dl>",
                case.name
            );
            let found = played.verdict.why().unwrap_or("what is allowed");
            for (name, text) in [
                ("sent", case.sends),
                ("rule", case.rule),
                ("allowed", case.allows),
                ("found", found),
            ] {
                let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", escape(text));
            }
            let _ = write!(out, "</dl><pre>{}</pre>", escape(&played.log.join("\n")));
            if let Some(path) = &played.capture {
                let _ = write!(out, "<p>capture: {}</p>", escape(&path.display().to_string()));
            }
            out.push_str("</details>\n");
        }
    }
    out + "</body></html>\n"
}

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>RoCEv2 conformance</title>
<style>
body{font-family:sans-serif;max-width:60em;margin:1em auto;padding:0 1em}
summary{cursor:pointer;padding:2px 0}
summary b{display:inline-block;width:7.5em}
.conforms{color:#186a3b}.deviates{color:#b00020}.not-testable{color:#666}
dl{display:grid;grid-template-columns:5em 1fr;margin:.3em 0 .3em 2em}
dt{color:#666}dd{margin:0}
pre{background:#f4f4f4;margin:.3em 0 1em 2em;padding:.5em;overflow-x:auto}
</style></head><body>
"#;
