//! `rxe explain`: the meaning of a code, a term or a message, its causes and remedies.

mod text;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rxe_lab::explain::{Lang, find, list, nearest};

pub(in crate::commands) use self::text::paragraph;

use crate::common::{Error, locale_of, print, print_json};

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
    #[arg(long, value_parser = lang())]
    lang: Option<Lang>,
    /// Print JSON: id, title, what, causes, remedies, transitions, see_also
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let lang = self.lang.unwrap_or_else(lang_of_environment);
        if self.topic.is_empty() {
            return if self.json { print_json(&list(lang)) } else { print(&text::list(lang)) };
        }
        let topic = self.topic.join(" ");
        let found = find(&topic, lang).ok_or_else(|| unknown(&topic))?;
        if self.json { print_json(&found) } else { print(&text::explanation(&found, lang)) }
    }
}

fn unknown(topic: &str) -> Error {
    let what = format!("there is no topic \"{topic}\"");
    let nearest = nearest(topic);
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

/// Returns the parser of `--lang`.
pub(in crate::commands) fn lang() -> impl TypedValueParser<Value = Lang> {
    let of = |name, what| PossibleValue::new(name).help(what);
    PossibleValuesParser::new([of("en", "English"), of("zh", "Chinese")])
        .map(|name| if name == "zh" { Lang::Zh } else { Lang::En })
}

/// Returns the language of the user's locale.
pub(in crate::commands) fn lang_of_environment() -> Lang {
    of_locale(locale_of("LC_MESSAGES").as_deref())
}

fn of_locale(locale: Option<&str>) -> Lang {
    if locale.is_some_and(|locale| locale.starts_with("zh")) { Lang::Zh } else { Lang::En }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
