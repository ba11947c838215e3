//! The usual causes of findings, from the catalogue of `rxe explain`.

use std::collections::BTreeSet;

use rxe_lab::check::{Kind, Report};
use rxe_words::Text;
use serde::Serialize;

use super::super::explain::{Lang, of_finding, paragraph};

/// The catalogue's explanation of a kind of finding.
#[derive(Serialize)]
pub(super) struct Explained {
    kind: &'static str,
    title: &'static str,
    causes: Vec<&'static str>,
    remedies: Vec<&'static str>,
    /// The command that explains more.
    more: String,
}

impl Explained {
    pub(super) fn of(kind: Kind, lang: Lang) -> Option<Self> {
        let entry = of_finding(kind.name())?;
        let topic = if entry.is_named(kind.name()) { kind.name() } else { &entry.id };
        let all = |texts: &'static [Text]| texts.iter().map(|text| lang.of(text)).collect();
        Some(Self {
            kind: kind.name(),
            title: lang.of(&entry.title),
            causes: all(&entry.causes),
            remedies: all(&entry.remedies),
            more: format!("rxe explain {topic}"),
        })
    }

    /// Formats the causes as one line.
    pub(super) fn line(&self, lang: Lang) -> String {
        match lang {
            Lang::En => format!("Usual causes: {} ({})", self.causes.join(" "), self.more),
            Lang::Zh => format!("常见原因：{}（{}）", self.causes.join(""), self.more),
        }
    }

    /// Appends the causes to a page as a paragraph.
    pub(super) fn write(&self, page: &mut String, lang: Lang) {
        let head = match lang {
            Lang::En => format!("{}: usual causes ({})", self.kind, self.more),
            Lang::Zh => format!("{}：常见原因（{}）", self.kind, self.more),
        };
        paragraph(page, "  ", "    ", &head);
        for cause in &self.causes {
            paragraph(page, "    - ", "      ", cause);
        }
    }
}

/// Returns the explanations of the report's kinds of finding, the most severe first.
pub(super) fn explained(report: &Report, lang: Lang) -> Vec<Explained> {
    let kinds: BTreeSet<_> = report.findings.iter().map(|finding| finding.kind).collect();
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.severity()));
    kinds.into_iter().filter_map(|kind| Explained::of(kind, lang)).collect()
}
