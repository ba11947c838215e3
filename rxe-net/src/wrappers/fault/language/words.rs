//! Splits a description into clauses at `;` and words at white space. Each word knows its column.

use std::fmt;

/// An error in a description: what is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultError {
    column: usize,
    word: String,
    problem: String,
}

impl FaultError {
    /// Creates an error at this word.
    pub fn new(word: Word<'_>, problem: impl Into<String>) -> Self {
        Self { column: word.column, word: word.text.to_owned(), problem: problem.into() }
    }

    /// Creates an error at a word that is none of `names`. `what` says that, and `list` describes what
    /// is allowed. If the word resembles a name, the error suggests it.
    pub(super) fn unknown<'n>(
        word: Word<'_>,
        what: &str,
        list: &str,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Self {
        let problem = match nearest(word.text, names) {
            Some(name) => format!("{what}: did you mean `{name}`? Otherwise write {list}"),
            None => format!("{what}: write {list}"),
        };
        Self::new(word, problem)
    }

    /// Returns this error, or one about the comma in `text` that caused it, if it stands where `;`
    /// belongs.
    pub(super) fn or_comma(self, text: &str) -> Self {
        let chars: Vec<_> = text.chars().collect();
        let is = |at: Option<usize>, what: fn(&char) -> bool| {
            at.and_then(|at| chars.get(at)).is_some_and(what)
        };
        let is_comma = |at: &usize| is(Some(*at), |c| *c == ',');
        let digit = |at| is(at, char::is_ascii_digit);
        let word = self.column - 1;
        // A comma after `=` may separate the values of a list.
        let key = self.word.split('=').next().unwrap_or_default();
        // `0,5%` is a decimal comma.
        let within = (word..word + key.chars().count())
            .filter(is_comma)
            .find(|at| !(digit(at.checked_sub(1)) && digit(Some(at + 1))));
        // A list that ends with a comma has an empty last value.
        let before = word.checked_sub(1).filter(|at| self.word.is_empty() && is_comma(at));
        let (at, problem) = match (within, before) {
            (Some(at), _) => (at, "faults are separated by `;`"),
            (None, Some(at)) => (at, "faults are separated by `;`, and a list has no spaces"),
            (None, None) => return self,
        };
        Self { column: at + 1, word: ",".into(), problem: problem.into() }
    }

    /// Returns the column of the word's first character, counted from 1.
    pub fn column(&self) -> usize {
        self.column
    }

    /// Returns the wrong word. Empty if a word is missing.
    pub fn word(&self) -> &str {
        &self.word
    }
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { column, word, problem } = self;
        if word.is_empty() {
            return write!(f, "column {column}: {problem}");
        }
        write!(f, "column {column}: `{}`: {problem}", word.escape_debug())
    }
}

impl std::error::Error for FaultError {}

/// Returns the name that a word resembles most, if it resembles one at all. Case does not count, nor
/// does a value after `=`.
fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    /// The least likeness: misspelt words have more.
    const LIKELY: f64 = 0.75;
    let word = word.split_once('=').map_or_else(|| word.into(), |(key, _)| format!("{key}="));
    let word = word.to_lowercase();
    let likeness = |name: &str| strsim::jaro_winkler(&word, &name.to_lowercase());
    let likely = names.into_iter().map(|name| (likeness(name), name));
    let likely = likely.filter(|(likeness, _)| *likeness >= LIKELY);
    likely.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// A word and its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'t> {
    /// The text of the word.
    pub text: &'t str,
    /// The column of the first character, counted from 1.
    pub column: usize,
}

impl<'t> Word<'t> {
    /// Returns the bytes from `from` to `to` of this word. Both must be character boundaries.
    pub fn part(self, from: usize, to: usize) -> Self {
        let before = self.text.get(..from).map_or(0, |before| before.chars().count());
        let text = self.text.get(from..to).unwrap_or_default();
        Word { text, column: self.column + before }
    }

    /// Returns the parts before and after the first occurrence of `separator`.
    pub fn split_once(self, separator: &str) -> Option<(Self, Self)> {
        let at = self.text.find(separator)?;
        Some((self.part(0, at), self.part(at + separator.len(), self.text.len())))
    }

    /// Returns the parts between commas.
    pub fn list(self) -> impl Iterator<Item = Self> {
        let mut from = 0;
        self.text.split(',').map(move |text| {
            let part = self.part(from, from + text.len());
            from += text.len() + 1;
            part
        })
    }
}

/// A clause, whose words are read one by one.
#[derive(Clone, Debug)]
pub struct Clause<'t> {
    words: Vec<Word<'t>>,
    read: usize,
    /// An empty word at the end of the clause, for errors about missing words.
    end: Word<'t>,
}

impl<'t> Clause<'t> {
    /// Returns the next word without reading it.
    pub fn peek(&self) -> Option<Word<'t>> {
        self.words.get(self.read).copied()
    }

    /// Reads the next word, if there is one.
    #[expect(clippy::should_implement_trait, reason = "a clause is read by peeking")]
    pub fn next(&mut self) -> Option<Word<'t>> {
        let word = self.peek()?;
        self.read += 1;
        Some(word)
    }

    /// Reads the next word if it is `text`. Returns whether it was.
    pub(super) fn take(&mut self, text: &str) -> bool {
        let is_it = self.peek().is_some_and(|word| word.text == text);
        self.read += usize::from(is_it);
        is_it
    }

    /// Inserts a word before the unread words.
    pub(super) fn put_back(&mut self, word: Word<'t>) {
        self.words.insert(self.read, word);
    }

    /// Reads the next word. `what` names it in the error.
    ///
    /// # Errors
    /// Fails if the clause has no further word.
    pub fn expect(&mut self, what: &str) -> Result<Word<'t>, FaultError> {
        self.next().ok_or_else(|| FaultError::new(self.end, format!("{what} is missing")))
    }
}

/// Splits a description into its clauses; empty ones are left out.
pub(super) fn clauses(text: &str) -> Vec<Clause<'_>> {
    let whole = Word { text, column: 1 };
    let mut clauses = Vec::new();
    let mut from = 0;
    for clause in text.split(';') {
        let clause = whole.part(from, from + clause.len());
        from += clause.text.len() + 1;
        let words = words(clause);
        if !words.is_empty() {
            let end = clause.part(clause.text.trim_end().len(), 0);
            clauses.push(Clause { words, read: 0, end });
        }
    }
    clauses
}

fn words(clause: Word<'_>) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut begin = None;
    let ends = [(clause.text.len(), ' ')];
    for (at, c) in clause.text.char_indices().chain(ends) {
        match (c.is_whitespace(), begin) {
            (false, None) => begin = Some(at),
            (true, Some(from)) => {
                words.push(clause.part(from, at));
                begin = None;
            }
            _ => {}
        }
    }
    words
}
