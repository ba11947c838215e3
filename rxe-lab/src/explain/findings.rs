//! The usual causes of findings, from the catalogue of `rxe explain`.

use rxe_words::Text;
use serde::Serialize;

use super::{Lang, of_finding};
use crate::check::{Kind, Report};

/// The catalogue's explanation of a kind of finding.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// The name of the kind.
    pub kind: &'static str,
    /// The heading.
    pub title: &'static str,
    /// The usual causes.
    pub causes: Vec<&'static str>,
    /// What to do.
    pub remedies: Vec<&'static str>,
    /// The command that explains more.
    pub more: String,
}

impl Explained {
    /// Returns the explanation of a kind; `None` if the catalogue has none.
    pub fn of(kind: Kind, lang: Lang) -> Option<Self> {
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
}

/// Returns the explanations of the report's kinds of finding, the most severe first.
pub fn explained(report: &Report, lang: Lang) -> Vec<Explained> {
    report.kinds.iter().filter_map(|tally| Explained::of(tally.kind, lang)).collect()
}
