//! `rxe explain`: the meaning of a code, a term or a message, its causes and remedies.

mod computed;
mod find;
mod text;

use std::env;

use clap::ValueEnum;
use rxe_words::{Text, entries};
use serde::Serialize;

pub(in crate::commands) use self::find::of_finding;
pub(in crate::commands) use self::text::paragraph;

use crate::common::{Error, print, print_json};

/// Explain a completion status, a code, a term or an error message
///
/// Without a topic it lists all. A topic is a name (RETRY_EXC, IBV_WC_RETRY_EXC_ERR, RTR, gid-index),
/// a kind with its number ("wc 12", "nak 2", "syndrome 0x62", "rnr 12", "timeout 14", "errno 22"), or
/// a whole message of a program in quotes ("Failed to modify QP to RTR"). A number alone is a
/// completion status; a hexadecimal one is an AETH syndrome.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A name, a code or a message
    #[arg(value_name = "TOPIC|CODE")]
    topic: Vec<String>,
    /// The language; otherwise what LC_ALL, LC_MESSAGES or LANG asks for
    #[arg(long, value_enum)]
    lang: Option<Lang>,
    /// Print JSON: id, title, what, causes, remedies, transitions, see_also
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let lang = self.lang.unwrap_or_else(Lang::of_environment);
        if self.topic.is_empty() {
            return if self.json { print_json(&list(lang)) } else { print(&text::list(lang)) };
        }
        let topic = self.topic.join(" ");
        let found = find::find(&topic, lang).ok_or_else(|| unknown(&topic))?;
        if self.json { print_json(&found) } else { print(&text::explanation(&found, lang)) }
    }
}

fn unknown(topic: &str) -> Error {
    let what = format!("there is no topic \"{topic}\"");
    let nearest = find::nearest(topic);
    match nearest.split_last() {
        None => Error::new(what, "`rxe explain` lists all"),
        Some((last, [])) => {
            Error::new(what, format!("did you mean {last}? `rxe explain` lists all"))
        }
        Some((last, others)) => {
            let others = others.join(", ");
            Error::new(what, format!("did you mean {others} or {last}? `rxe explain` lists all"))
        }
    }
}

/// The languages of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::commands) enum Lang {
    /// English
    En,
    /// Chinese
    Zh,
}

impl Lang {
    /// Returns the language of the user's locale.
    pub(in crate::commands) fn of_environment() -> Self {
        Self::of_locale(|name| env::var(name).ok())
    }

    /// Returns the language of the first variable that is set and not empty, as in POSIX.
    fn of_locale(variable: impl Fn(&str) -> Option<String>) -> Self {
        let names = ["LC_ALL", "LC_MESSAGES", "LANG"];
        let mut set = names.into_iter().filter_map(variable).filter(|value| !value.is_empty());
        if set.next().is_some_and(|value| value.starts_with("zh")) { Self::Zh } else { Self::En }
    }

    /// Returns the text in this language.
    pub(in crate::commands) fn of(self, text: &Text) -> &str {
        match self {
            Self::En => &text.en,
            Self::Zh => &text.zh,
        }
    }
}

/// The explanation of a topic.
#[derive(Debug, Default, Serialize)]
struct Explanation {
    id: String,
    title: String,
    what: String,
    causes: Vec<String>,
    remedies: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    transitions: Vec<Step>,
    /// Other topics that the same number or message names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    see_also: Vec<String>,
}

/// The attributes that a transition of a queue pair's state requires and allows.
#[derive(Debug, Serialize)]
struct Step {
    from: &'static str,
    to: &'static str,
    services: Vec<&'static str>,
    required: Vec<String>,
    optional: Vec<String>,
}

#[derive(Serialize)]
struct Topic {
    id: &'static str,
    title: &'static str,
}

fn list(lang: Lang) -> Vec<Topic> {
    entries().map(|entry| Topic { id: &entry.id, title: lang.of(&entry.title) }).collect()
}

#[cfg(test)]
mod tests;
