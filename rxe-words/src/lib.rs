//! The catalogue of explanations for users, in English and Chinese.
//!
//! An entry says what a value of the protocol or a message of a program means, its usual causes, and what
//! to do. `rxe explain` and `rxe check` print entries, and pages of the book are generated from them.
//!
//! The texts are in `en.toml` and `zh.toml`, with the same entries in the same order. Names, codes
//! and phrases are in `en.toml` only. An entry is added to both files; tests report what is missing.

use std::sync::LazyLock;

use serde::Deserialize;

/// A text in each language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// English.
    pub en: String,
    /// Chinese, in simplified characters.
    pub zh: String,
}

/// The explanation of one value or message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// A unique name for the command line and for other programs.
    pub id: String,
    /// The numbers of a completion status, a NAK code or an errno.
    pub codes: Vec<u32>,
    /// Other names, such as verbs constants.
    pub names: Vec<String>,
    /// Substrings of messages, in lower case, that this entry explains. `*` stands for any text.
    pub phrases: Vec<String>,
    /// The heading.
    pub title: Text,
    /// What the value or message means, in one sentence or a few.
    pub what: Text,
    /// The usual causes; empty if a cause makes no sense for this entry.
    pub causes: Vec<Text>,
    /// What to do, or how to use the value.
    pub remedies: Vec<Text>,
}

impl Entry {
    /// Returns whether `name` is the `id` or another name of the entry.
    pub fn is_named(&self, name: &str) -> bool {
        self.id == name || self.names.iter().any(|own| own == name)
    }
}

/// A group of entries of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Section {
    /// The name of the section in the files.
    pub id: String,
    /// The heading.
    pub title: Text,
    /// The entries, in the order of the files.
    pub entries: Vec<Entry>,
}

/// Returns the whole catalogue.
pub fn sections() -> &'static [Section] {
    static SECTIONS: LazyLock<Vec<Section>> =
        LazyLock::new(|| merged(include_str!("en.toml"), include_str!("zh.toml")));
    &SECTIONS
}

/// Returns all entries.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    sections().iter().flat_map(|section| &section.entries)
}

/// Returns the entry with this `id`.
pub fn by_id(id: &str) -> Option<&'static Entry> {
    entries().find(|entry| entry.id == id)
}

/// Returns the entry of an `ibv_wc_status` code, including codes that rxe never reports.
pub fn of_status(code: u32) -> Option<&'static Entry> {
    by_code("status", code)
}

/// Returns the entry of a NAK code of an AETH. IBTA 9.7.5.2.7.
pub fn of_nak(code: u32) -> Option<&'static Entry> {
    by_code("nak", code)
}

/// Returns the entry of a Linux error number.
pub fn of_errno(errno: u32) -> Option<&'static Entry> {
    by_code("errno", errno)
}

fn by_code(section: &str, code: u32) -> Option<&'static Entry> {
    let section = sections().iter().find(|one| one.id == section)?;
    section.entries.iter().find(|entry| entry.codes.contains(&code))
}

/// The content of one file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    section: Vec<FileSection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSection {
    id: String,
    title: String,
    entry: Vec<FileEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    id: String,
    #[serde(default)]
    codes: Vec<u32>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    phrases: Vec<String>,
    title: String,
    what: String,
    #[serde(default)]
    causes: Vec<String>,
    #[serde(default)]
    remedies: Vec<String>,
}

/// Merges the two files.
/// They are part of this crate, so a mistake in them panics in the first test.
fn merged(en: &str, zh: &str) -> Vec<Section> {
    let [en, zh] = [en, zh].map(|file| match toml::from_str::<File>(file) {
        Ok(file) => file.section,
        Err(e) => panic!("a catalogue of words is not well formed: {e}"),
    });
    let text = |(en, zh)| Text { en, zh };
    let texts = |en: Vec<String>, zh: Vec<String>| {
        assert_eq!(en.len(), zh.len(), "{en:?} and {zh:?} are not the same");
        en.into_iter().zip(zh).map(text).collect()
    };
    let entry = |(en, zh): (FileEntry, FileEntry)| {
        assert_eq!(en.id, zh.id, "the entries have different orders");
        Entry {
            id: en.id,
            codes: en.codes,
            names: en.names,
            phrases: en.phrases,
            title: text((en.title, zh.title)),
            what: text((en.what, zh.what)),
            causes: texts(en.causes, zh.causes),
            remedies: texts(en.remedies, zh.remedies),
        }
    };
    assert_eq!(en.len(), zh.len(), "a section is missing");
    let section = |(en, zh): (FileSection, FileSection)| {
        assert_eq!(en.entry.len(), zh.entry.len(), "an entry is missing in {}", en.id);
        Section {
            id: en.id,
            title: text((en.title, zh.title)),
            entries: en.entry.into_iter().zip(zh.entry).map(entry).collect(),
        }
    };
    en.into_iter().zip(zh).map(section).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn all_statuses_of_verbs_are_known() {
        for code in 0..24 {
            let entry = of_status(code).unwrap();
            assert!(entry.title.en.contains(&code.to_string()), "{code}: {}", entry.title.en);
        }
        assert!(of_status(24).is_none());
    }

    #[test]
    fn every_text_is_there_in_both_languages() {
        let han = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
        for entry in entries() {
            for text in [&entry.what].into_iter().chain(&entry.causes).chain(&entry.remedies) {
                assert!(
                    text.en.ends_with(['.', '?'])
                        && text.en.is_ascii() | text.en.contains(['µ', '…']),
                    "{}",
                    text.en
                );
                assert!(!text.en.chars().any(han), "{}", text.en);
                let chinese = text.zh.chars().any(han) || text.zh.contains("ERROR");
                assert!(chinese && text.zh.ends_with('。'), "{}", text.zh);
                assert!(!text.en.contains("  ") && !text.zh.contains("  "), "{}", text.en);
            }
            assert!(!entry.title.en.is_empty() && !entry.title.zh.is_empty());
            assert!(!entry.remedies.is_empty(), "{} says nothing of what to do", entry.id);
        }
    }

    #[test]
    fn names_are_unique_and_phrases_are_in_lower_case() {
        let mut names = HashSet::new();
        let mut phrases = HashSet::new();
        for entry in entries() {
            for name in [&entry.id].into_iter().chain(&entry.names) {
                assert!(names.insert(name.to_lowercase()), "{name} twice");
            }
            for phrase in &entry.phrases {
                assert_eq!(*phrase, phrase.to_lowercase());
                assert!(phrases.insert(phrase), "{phrase} twice");
            }
        }
    }
}
