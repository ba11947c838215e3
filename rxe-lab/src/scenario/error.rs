//! What is wrong with a description, and where.

use std::fmt;
use std::ops::Range;

use toml::Spanned;

/// A mistake in a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// The line, counted from 1.
    pub line: usize,
    /// The character of the line, counted from 1.
    pub column: usize,
    /// What is wrong, and what to do.
    pub text: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.text)
    }
}

impl std::error::Error for ScenarioError {}

/// A mistake at these bytes of the text.
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

    /// At a value.
    pub(super) fn at<T>(value: &Spanned<T>, text: impl Into<String>) -> Self {
        Self::new(value.span(), text)
    }

    /// The same mistake so many characters further on in a string of one line.
    pub(super) fn beyond(mut self, characters: usize) -> Self {
        self.span.start += characters;
        self
    }

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

impl From<toml::de::Error> for Mistake {
    fn from(e: toml::de::Error) -> Self {
        let words: Vec<_> = e.message().split_whitespace().collect();
        Self::new(e.span().unwrap_or_default(), words.join(" "))
    }
}
