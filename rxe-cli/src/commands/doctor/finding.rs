//! The finding of a check, as a line of text or as JSON.

use std::fmt::Display;

use serde::Serialize;
use textwrap::WordSeparator;
use textwrap::core::Word;

use crate::common::color::{Tone, paint};
use crate::common::{WIDTH, lines, paragraph};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// Programs run.
    Ok,
    /// Programs run, but slower or not everywhere.
    Note,
    /// Programs do not run.
    Problem,
}

/// The finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) status: Status,
    pub(super) check: &'static str,
    pub(super) text: String,
    /// The remedy; `None` if none is needed.
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, text: impl Display) -> Self {
        Self { status: Status::Ok, check, text: text.to_string(), remedy: None }
    }

    pub(super) fn note(check: &'static str, text: impl Display, remedy: impl Display) -> Self {
        let (text, remedy) = (text.to_string(), Some(remedy.to_string()));
        Self { status: Status::Note, check, text, remedy }
    }

    pub(super) fn problem(check: &'static str, text: impl Display, remedy: impl Display) -> Self {
        Self { status: Status::Problem, ..Self::note(check, text, remedy) }
    }

    /// Creates a problem from an error's text: what is wrong, a colon, and what to do.
    pub(super) fn error(check: &'static str, error: &impl Display) -> Self {
        let all = error.to_string();
        let (text, remedy) = all.split_once(": ").unwrap_or((&all, "see docs/en/do/install.md"));
        Self::problem(check, text, remedy)
    }

    pub(super) fn into_note(self) -> Self {
        Self { status: Status::Note, ..self }
    }

    pub(super) fn into_problem(self) -> Self {
        Self { status: Status::Problem, ..self }
    }
}

/// The column at which the text begins.
const INDENT: usize = 25;

/// Formats the findings as lines of at most 80 columns. Remedies are below their findings.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut out = String::new();
    for Finding { status, check, text, remedy } in findings {
        let (status, tone) = match status {
            Status::Ok => ("ok", Tone::Good),
            Status::Note => ("note", Tone::Notice),
            Status::Problem => ("problem", Tone::Bad),
        };
        let status = paint(tone, &format!("{status:<9}"));
        wrap(&mut out, &format!("{status}{check:<16}"), text);
        if let Some(remedy) = remedy {
            wrap(&mut out, &format!("{:INDENT$}-> ", ""), remedy);
        }
    }
    out
}

/// Appends `text` after `head`. Further lines are indented to the start of the text.
fn wrap(out: &mut String, head: &str, text: &str) {
    if text.is_empty() {
        out.push_str(head.trim_end());
        out.push('\n');
        return;
    }
    let behind = " ".repeat(textwrap::core::display_width(head));
    let words = WordSeparator::Custom(|line| Box::new(words(line)));
    paragraph(out, text.trim(), lines(head, &behind).word_separator(words));
}

/// Splits a line into unbreakable pieces.
/// These are words, and commands in backticks that fit into a line.
fn words(line: &str) -> impl Iterator<Item = Word<'_>> {
    let mut rest = line;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let command = rest.strip_prefix('`').and_then(|r| r.find('`')).map_or(0, |at| at + 2);
        let begin = if command + INDENT + 4 > WIDTH { 0 } else { command };
        let end = rest[begin..].find(' ').map_or(rest.len(), |at| begin + at);
        let spaces = rest[end..].len() - rest[end..].trim_start_matches(' ').len();
        let (word, after) = rest.split_at(end + spaces);
        rest = after;
        Some(Word::from(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_before_column_80_and_remedies_stand_below() {
        let findings = [
            Finding::ok("devices", "rxe_eth0, rxe_lo"),
            Finding::error("port 4791", &"it is in use by process 7 (socat): stop it"),
            Finding::note("library", "word ".repeat(20), "do ".repeat(30)),
            Finding::note("MTU", "", "a command is kept in one piece: `ip link set eth0 up`, then"),
        ];
        let text = text(&findings);
        let expected = "\
ok       devices         rxe_eth0, rxe_lo
problem  port 4791       it is in use by process 7 (socat)
                         -> stop it
note     library         word word word word word word word word word word word
                         word word word word word word word word word
                         -> do do do do do do do do do do do do do do do do do
                            do do do do do do do do do do do do do
note     MTU
                         -> a command is kept in one piece:
                            `ip link set eth0 up`, then
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.len() <= WIDTH));
    }
}
