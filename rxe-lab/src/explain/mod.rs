//! Explains codes, terms, messages and findings, with the catalogue of `rxe-words` and the values
//! that the engine computes.

mod computed;
mod find;
mod findings;

use rxe_words::{Text, entries};
use serde::{Deserialize, Serialize};

pub use find::{find, nearest, of_finding};
pub use findings::{Explained, explained};

/// The languages of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lang {
    /// English.
    En,
    /// Chinese.
    Zh,
}

impl Lang {
    /// Returns the text in this language.
    pub fn of(self, text: &Text) -> &str {
        match self {
            Self::En => &text.en,
            Self::Zh => &text.zh,
        }
    }
}

/// The explanation of a topic.
#[derive(Debug, Default, Serialize)]
pub struct Explanation {
    /// The name of the topic.
    pub id: String,
    /// The heading.
    pub title: String,
    /// What the value or message means.
    pub what: String,
    /// The usual causes.
    pub causes: Vec<String>,
    /// What to do.
    pub remedies: Vec<String>,
    /// The transitions to the state of a queue pair that is explained.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Step>,
    /// Other topics that the same number or message names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub see_also: Vec<String>,
}

/// The attributes that a transition of a queue pair's state requires and allows.
#[derive(Debug, Serialize)]
pub struct Step {
    /// The state before.
    pub from: &'static str,
    /// The state after.
    pub to: &'static str,
    /// The services whose queue pairs have this transition.
    pub services: Vec<&'static str>,
    /// The names of the required attributes.
    pub required: Vec<String>,
    /// The names of the optional attributes.
    pub optional: Vec<String>,
}

/// The name and the heading of a topic.
#[derive(Debug, Serialize)]
pub struct Topic {
    /// The name.
    pub id: &'static str,
    /// The heading.
    pub title: &'static str,
}

/// Returns all topics of the catalogue.
pub fn list(lang: Lang) -> Vec<Topic> {
    entries().map(|entry| Topic { id: &entry.id, title: lang.of(&entry.title) }).collect()
}
