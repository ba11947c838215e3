//! Finds the explanation of a topic, a code or a message.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rxe_core::types::{AckTimeout, RnrTimer};
use rxe_core::wire::Syndrome;
use rxe_words::{self as words, Entry, entries};

use super::{Explanation, Lang, computed};

/// Returns the explanation of a topic: a name, a code or a message. docs/en/reference/commands/explain.md
/// says how they are written.
pub fn find(topic: &str, lang: Lang) -> Option<Explanation> {
    let words: Vec<_> = topic.split_whitespace().map(str::to_lowercase).collect();
    let topic = words.join(" ");
    if let Some((number, hex)) = number(&topic) {
        return of_number(number, hex, lang);
    }
    if let Some((kind, number)) = topic.rsplit_once([' ', '=', ':', '-'])
        && let Some((number, _)) = self::number(number)
        // Functions return "errno -22". No other number is negative.
        && (!kind.ends_with(' ') || matches!(kind.trim(), "errno" | "error"))
        && let Some(found) = of_kind(kind.trim(), number, lang)
    {
        return Some(found);
    }
    if let Some(entry) = entries().find(|entry| is_named(entry, &topic)) {
        return Some(computed::of_entry(entry, lang));
    }
    of_message(&topic, lang)
}

/// Parses a number, and returns whether it is hexadecimal.
fn number(text: &str) -> Option<(u32, bool)> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok().map(|n| (n, true)),
        None => text.parse().ok().map(|n| (n, false)),
    }
}

/// Explains a number without its kind. Further kinds that it fits are listed in `see_also`.
fn of_number(number: u32, hex: bool, lang: Lang) -> Option<Explanation> {
    let kinds = if hex {
        ["syndrome", "rnr", "timeout", "wc", "nak", "errno"]
    } else {
        ["wc", "nak", "syndrome", "rnr", "timeout", "errno"]
    };
    let mut meant = kinds.iter().filter_map(|kind| Some((kind, of_kind(kind, number, lang)?)));
    let (_, mut first) = meant.next()?;
    let shown = if hex { format!("{number:#04x}") } else { number.to_string() };
    first.see_also = meant.map(|(kind, _)| format!("{kind} {shown}")).collect();
    Some(first)
}

/// Explains a number of a kind.
fn of_kind(kind: &str, number: u32, lang: Lang) -> Option<Explanation> {
    let byte = u8::try_from(number).ok();
    let of_entry = |entry| computed::of_entry(entry, lang);
    match fold(kind).as_str() {
        "wc" | "status" | "wc-status" | "ibv-wc-status" | "completion-status" => {
            words::of_status(number).map(of_entry)
        }
        "nak" | "nak-code" => words::of_nak(number).map(of_entry),
        "syndrome" | "aeth" => Some(computed::of_syndrome(Syndrome::from_byte(byte?), lang)),
        "rnr" | "rnr-timer" | "min-rnr-timer" => {
            RnrTimer::new(byte?).map(|timer| computed::of_rnr_timer(timer, lang))
        }
        "timeout" | "ack-timeout" | "local-ack-timeout" => {
            AckTimeout::new(byte?).map(|timeout| computed::of_timeout(timeout, lang))
        }
        "errno" | "error" => words::of_errno(number).map(of_entry),
        _ => None,
    }
}

/// Normalizes a name, in which `_`, `-` and a space are equivalent.
fn fold(name: &str) -> String {
    name.to_lowercase().replace(['_', ' '], "-")
}

fn names(entry: &Entry) -> impl Iterator<Item = &str> {
    [&entry.id].into_iter().chain(&entry.names).map(String::as_str)
}

fn is_named(entry: &Entry, topic: &str) -> bool {
    names(entry).any(|name| fold(name) == fold(topic))
}

/// Explains the longest known phrase in the message. Further ones are listed in `see_also`.
fn of_message(message: &str, lang: Lang) -> Option<Explanation> {
    let mut found: Vec<(usize, &Entry)> = entries()
        .filter_map(|entry| {
            let matching = entry.phrases.iter().filter(|phrase| contains(message, phrase));
            Some((matching.map(|phrase| phrase.len()).max()?, entry))
        })
        .collect();
    // The failed call says more than its error number, so errno entries come last.
    found.sort_by_key(|(len, entry)| (is_errno(entry), Reverse(*len)));
    // A number behind "Failed status" is a completion status, as in "Failed status 12: wr_id 0".
    if let Some(entry) = failed_status(message) {
        found.retain(|(_, other)| other.id != entry.id);
        found.insert(0, (0, entry));
    }
    let ((_, first), others) = found.split_first()?;
    let mut explanation = computed::of_entry(first, lang);
    explanation.see_also = others.iter().map(|(_, entry)| entry.id.clone()).collect();
    Some(explanation)
}

fn is_errno(entry: &Entry) -> bool {
    entry.names.iter().any(|name| name.starts_with("errno-"))
}

/// Returns the completion status whose number a message has.
/// Examples: "Failed status 12: …", "Failed status-… (12): …", "got bad completion with status:
/// 0xc, …".
fn failed_status(message: &str) -> Option<&'static Entry> {
    let before = ["failed status", "completion with status", "bad wc status", "completion error"];
    let (_, rest) = before.into_iter().find_map(|words| message.split_once(words))?;
    let numbers = rest.split(|c: char| !c.is_ascii_alphanumeric()).filter_map(number);
    words::of_status(numbers.map(|(number, _)| number).next()?)
}

/// Returns whether the message contains the phrase's parts in order. `*` separates the parts.
fn contains(message: &str, phrase: &str) -> bool {
    let mut rest = message;
    phrase.split('*').all(|part| match rest.split_once(part) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

/// Returns the entry of a finding of `rxe check`. Three findings have the name of another entry.
pub fn of_finding(name: &str) -> Option<&'static Entry> {
    let name = match name {
        "timeout" => "timed-out",
        "icrc" => "icrc-wrong",
        "q-key" => "q-keys-by-turns",
        _ => name,
    };
    entries().find(|entry| entry.is_named(name))
}

/// Returns up to three topics that resemble this text, the most likely first.
pub fn nearest(topic: &str) -> Vec<&'static str> {
    match topic.split_whitespace().count() {
        0..=2 => best(like_name(topic)),
        // In a message, similar letters mean nothing; whole words do.
        _ => best(of_words(topic)),
    }
}

/// Returns the three topics with the highest scores.
fn best(mut all: Vec<(f64, &'static str)>) -> Vec<&'static str> {
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.into_iter().take(3).map(|(_, id)| id).collect()
}

/// Scores entries by the similarity of their names.
fn like_name(topic: &str) -> Vec<(f64, &'static str)> {
    const LIKELY: f64 = 0.75;
    let topic = fold(topic);
    let likeness = |name: &str| {
        let name = fold(name);
        let part =
            topic.split('-').any(|word| word.len() > 2 && name.split('-').any(|n| n == word));
        let like = strsim::jaro_winkler(&topic, &name);
        if part { like.max(LIKELY) } else { like }
    };
    entries()
        .map(|entry| (names(entry).map(likeness).fold(0.0, f64::max), entry.id.as_str()))
        .filter(|(like, _)| *like >= LIKELY)
        .collect()
}

/// Scores entries by the words that they share with a message. A word that few entries have counts
/// more, and the name of an entry counts most.
fn of_words(message: &str) -> Vec<(f64, &'static str)> {
    /// The least score: the name of an entry, or some words that few entries have.
    const LIKELY: f64 = 0.5;
    let wanted = words_of(message);
    let all: Vec<_> = entries().map(|entry| (entry, words_of_entry(entry))).collect();
    let rarity = |word: &String| {
        let having = all.iter().filter(|(_, words)| words.contains(word)).count();
        1.0 / f64::from(u32::try_from(having.max(1)).unwrap_or(u32::MAX))
    };
    let worth = |entry: &Entry, word: &String| {
        let is_name = names(entry).any(|name| name.eq_ignore_ascii_case(word));
        rarity(word) + if is_name { LIKELY } else { 0.0 }
    };
    let score = |(entry, words): &(&'static Entry, BTreeSet<String>)| {
        (wanted.intersection(words).map(|word| worth(entry, word)).sum::<f64>(), entry.id.as_str())
    };
    all.iter().map(score).filter(|(score, _)| *score >= LIKELY).collect()
}

/// Returns the words with which users look for an entry.
fn words_of_entry(entry: &Entry) -> BTreeSet<String> {
    let texts = names(entry)
        .chain(entry.phrases.iter().map(String::as_str))
        .chain([entry.title.en.as_str()]);
    texts.flat_map(words_of).collect()
}

/// Returns the words of a text that say what it is about.
fn words_of(text: &str) -> BTreeSet<String> {
    /// Words that occur in messages of all kinds.
    const EMPTY: &[&str] = &[
        "a", "about", "after", "all", "an", "and", "any", "are", "at", "bad", "be", "but", "by",
        "can", "could", "couldn", "did", "didn", "do", "does", "error", "errors", "failed",
        "failure", "find", "found", "for", "from", "get", "got", "has", "have", "i", "in", "into",
        "is", "it", "its", "known", "my", "name", "no", "not", "of", "on", "or", "that", "the",
        "there", "this", "to", "unable", "was", "wasn", "what", "when", "why", "will", "with",
        "wrong", "you", "your",
    ];
    let words = text.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    let says =
        |word: &String| word.len() > 1 && number(word).is_none() && !EMPTY.contains(&word.as_str());
    words.filter(says).collect()
}
