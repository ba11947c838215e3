//! Wrapped paragraphs of text.

use textwrap::{Options, WordSeparator, WordSplitter};

/// The columns of a page.
pub(crate) const WIDTH: usize = 80;

/// Returns the options that wrap a paragraph into lines of [`WIDTH`] columns. The first line begins
/// with `first`, the others with `behind`. Lines break between words; a word longer than a line
/// stays whole.
pub(crate) fn lines<'a>(first: &'a str, behind: &'a str) -> Options<'a> {
    Options::new(WIDTH)
        .initial_indent(first)
        .subsequent_indent(behind)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .break_words(false)
}

/// Appends a paragraph to a page.
pub(crate) fn paragraph(page: &mut String, text: &str, lines: Options<'_>) {
    for line in textwrap::wrap(text, lines) {
        page.push_str(&line);
        page.push('\n');
    }
}
