//! Mistakes in a scenario, and their places.

use std::fmt;
use std::ops::Range;

use rxe_core::VerbsError;
use toml::Spanned;

/// A mistake in a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// What is wrong, and how to correct it.
    pub text: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.text)
    }
}

impl std::error::Error for ScenarioError {}

/// A mistake, and its range of bytes in the scenario's text.
#[derive(Debug)]
pub(super) struct Mistake {
    span: Range<usize>,
    text: String,
}

pub(super) type Result<T> = std::result::Result<T, Mistake>;

impl Mistake {
    pub(super) fn new(span: Range<usize>, text: impl Into<String>) -> Self {
        Self { span, text: text.into() }
    }

    /// Creates a mistake at a value.
    pub(super) fn at<T>(value: &Spanned<T>, text: impl Into<String>) -> Self {
        Self::new(value.span(), text)
    }

    /// Converts an error of the TOML parser.
    pub(super) fn of_toml(e: &toml::de::Error, text: &str) -> Self {
        let span = e.span().unwrap_or_default();
        let words: Vec<_> = e.message().split_whitespace().collect();
        let message = words.join(" ");
        if message.starts_with("wanted exactly 1 element") {
            return Self::new(
                span,
                "a step has one name: write `{ send = { … } }, { wait = \"\" }`",
            );
        }
        let wrong = text.get(span.clone()).and_then(|written| number(&message, written));
        Self::new(span, wrong.unwrap_or(message))
    }

    /// Converts the error of posting the work request described at `span`.
    pub(super) fn of_post(e: &VerbsError, span: &Range<usize>) -> Self {
        let text = match e {
            VerbsError::QueueFull { queue, depth } => format!(
                "the {queue} queue is full: it has room for {depth} requests, so let some complete in between: \
                 {{ wait = \"\" }}"
            ),
            e => format!("it cannot be posted: {e}"),
        };
        Self::new(span.clone(), text)
    }

    /// Moves the mistake to the right by this many characters of a string of one line.
    pub(super) fn beyond(mut self, characters: usize) -> Self {
        self.span.start += characters;
        self
    }

    /// Converts the byte range to a line and a column of `text`.
    pub(super) fn locate(self, text: &str) -> ScenarioError {
        let mut start = self.span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ScenarioError { line, column, text: self.text }
    }
}

/// Describes a number that does not fit, as it is written.
/// The message of serde cannot be used: it prints 1e300 with 301 digits.
fn number(message: &str, written: &str) -> Option<String> {
    let (what, rest) = message.split_once('`')?;
    let (_, expected) = rest.split_once("`, expected ")?;
    if !what.ends_with("floating point ") && !what.ends_with("integer ") {
        return None;
    }
    let most = match expected {
        "u8" => u8::MAX.into(),
        "u16" => u16::MAX.into(),
        "u32" => u32::MAX.into(),
        "u64" | "usize" => u64::MAX,
        _ => return Some(format!("{what}`{written}`, expected {expected}")),
    };
    Some(format!("`{written}` does not fit here: write a whole number from 0 to {most}"))
}
