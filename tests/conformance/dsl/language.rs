//! The words of the catalogue in Chinese. `chinese.json` has whole texts, by what they are, and terms.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The language of a document.
pub(crate) struct Language {
    /// The texts by group and by what they are in English. Nothing of that is English.
    words: Option<Map<String, Value>>,
    /// What was looked up: group and text.
    used: RefCell<BTreeSet<(String, String)>>,
}

impl Language {
    pub(crate) fn english() -> Self {
        Self { words: None, used: RefCell::default() }
    }

    pub(crate) fn chinese() -> Self {
        let words = serde_json::from_str(include_str!("chinese.json")).expect("an object");
        Self { words: Some(words), used: RefCell::default() }
    }

    pub(crate) fn is_english(&self) -> bool {
        self.words.is_none()
    }

    /// What was asked for and is not there, then what is there and was not asked for.
    pub(crate) fn differences(&self) -> [Vec<String>; 2] {
        let groups = self.words.iter().flatten();
        let there: BTreeSet<_> = groups
            .flat_map(|(group, texts)| {
                let texts = texts.as_object().into_iter().flat_map(Map::keys);
                texts.map(|text| (group.clone(), text.clone()))
            })
            .collect();
        let used = self.used.borrow();
        let named = |texts: Vec<&(String, String)>| {
            texts.into_iter().map(|(group, text)| format!("{group}: {text}")).collect()
        };
        [named(used.difference(&there).collect()), named(there.difference(&used).collect())]
    }

    /// A whole text.
    pub(crate) fn text(&self, group: &str, english: &str) -> String {
        match &self.words {
            Some(words) if !english.is_empty() => {
                self.used.borrow_mut().insert((group.to_owned(), english.to_owned()));
                words[group][english].as_str().unwrap_or(english).to_owned()
            }
            _ => english.to_owned(),
        }
    }

    /// A cell that is made of terms: `SEND ONLY +0, 8 B, pad count 1<br>SEND ONLY +1; at once: …`.
    pub(crate) fn terms(&self, cell: &str) -> String {
        if self.is_english() {
            return cell.to_owned();
        }
        let parts = |text: &str, between: &str, by: &str, each: &dyn Fn(&str) -> String| {
            text.split(between).map(each).collect::<Vec<_>>().join(by)
        };
        parts(cell, "<br>", "<br>", &|line| {
            parts(line, "; ", "；", &|part| parts(part, ", ", "，", &|term| self.term(term)))
        })
    }

    /// A term. What is no word stands as `#` in the file: `pad count #`.
    fn term(&self, term: &str) -> String {
        let term = term.trim();
        if let Some((head, rest)) = term.split_once(": ") {
            return format!("{}：{}", self.term(head), self.term(rest));
        }
        let there = |term: &str| {
            self.words.as_ref().is_some_and(|words| words["terms"].get(term).is_some())
        };
        if there(term) {
            return self.text("terms", term);
        }
        let (mut pattern, mut values) = (Vec::new(), Vec::<String>::new());
        for word in term.split(' ') {
            match (is_word(word), pattern.last()) {
                (true, _) => pattern.push(word),
                (false, Some(&"#")) => {
                    let value = values.last_mut().expect("there is one for each #");
                    *value = format!("{value} {word}");
                }
                (false, _) => {
                    pattern.push("#");
                    values.push(word.to_owned());
                }
            }
        }
        let pattern = pattern.join(" ");
        if pattern == "#" {
            return term.to_owned();
        }
        let chinese = self.text("terms", &pattern);
        let mut parts = chinese.split('#');
        let first = parts.next().unwrap_or_default().to_owned();
        let values = values.into_iter().chain(std::iter::repeat(String::new()));
        parts.zip(values).fold(first, |all, (part, value)| all + &value.replace("'s", " 的") + part)
    }
}

/// Whether this is a word of English, and no number, name or abbreviation.
fn is_word(word: &str) -> bool {
    let name = word.contains(|c: char| c.is_ascii_digit() || "_`".contains(c));
    let abbreviation = word.strip_suffix("'s").unwrap_or(word);
    !name && abbreviation.contains(|c: char| c.is_ascii_lowercase())
}
