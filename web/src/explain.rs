//! The catalogue, searched as one types.

use rxe_lab::explain::{Explanation, Lang, Topic, find, nearest};
use rxe_words::{Entry, entries};
use serde::Serialize;

/// The most topics in one answer.
const MAX_TOPICS: usize = 60;

/// What a search has found.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    /// The explanation of exactly this topic, code or message.
    exact: Option<Explanation>,
    /// Topics whose names or texts have these words, the best first.
    topics: Vec<Topic>,
}

/// Searches the catalogue. Without words, it returns the first topics.
pub(crate) fn search(query: &str, lang: Lang) -> Found {
    let query = query.trim();
    let words: Vec<_> = query.split_whitespace().map(str::to_lowercase).collect();
    let mut topics: Vec<_> = entries().filter_map(|it| Some((rank(it, &words)?, it))).collect();
    topics.sort_by_key(|(rank, _)| *rank);
    let mut topics: Vec<_> = topics.into_iter().map(|(_, entry)| entry).collect();
    if topics.is_empty() {
        let near = nearest(query);
        topics = entries().filter(|entry| near.contains(&entry.id.as_str())).collect();
    }
    let topic = |entry: &'static Entry| Topic { id: &entry.id, title: lang.of(&entry.title) };
    Found {
        exact: if query.is_empty() { None } else { find(query, lang) },
        topics: topics.into_iter().take(MAX_TOPICS).map(topic).collect(),
    }
}

/// Returns how well an entry has all the words, 0 being the best; `None` if it lacks one.
fn rank(entry: &Entry, words: &[String]) -> Option<usize> {
    let plain = |name: &String| name.to_lowercase().replace(['_', '-'], " ");
    let names: Vec<_> = [&entry.id].into_iter().chain(&entry.names).map(plain).collect();
    let is_named = |word: &String| names.contains(word);
    let name = |word: &String| names.iter().any(|name| name.contains(word));
    let text = |texts: &[&String], word: &String| {
        texts.iter().any(|text| text.to_lowercase().contains(word))
    };
    let title = [&entry.title.en, &entry.title.zh];
    let what = [&entry.what.en, &entry.what.zh];
    let of = |word: &String| {
        let word = &word.replace(['_', '-'], " ");
        let ranks = [is_named(word), name(word), text(&title, word), text(&what, word)];
        ranks.into_iter().position(|has| has)
    };
    words.iter().map(of).try_fold(0, |sum, rank| Some(sum + rank?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_while_it_is_typed_in_both_languages() {
        let ids = |query| {
            let found = search(query, Lang::En);
            found.topics.into_iter().map(|topic| topic.id).collect::<Vec<_>>()
        };
        assert!(ids("rn").iter().any(|id| id.to_lowercase().contains("rnr")));
        assert!(!ids("重传").is_empty());
        assert!(ids("zzzz").is_empty());
        assert!(!ids("").is_empty());
        assert!(search("rnr", Lang::Zh).exact.is_some());
    }
}
