//! The text of a report: one line for each record, such as `qp lqpn=0x1a2b3c state=RTS`.

use std::fmt::Display;

/// A line of a report: a kind, and fields with values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    kind: String,
    fields: Vec<(String, String)>,
}

/// The most bytes of a word.
const MAX_WORD: usize = 64;
/// The most fields of a record.
const MAX_FIELDS: usize = 64;
/// The most records of a report.
const MAX_RECORDS: usize = 1024;

/// Returns the records as text.
pub(crate) fn records(all: &[Record]) -> Vec<u8> {
    let mut text = String::new();
    for record in all {
        text += &record.kind;
        for (key, value) in &record.fields {
            text += &format!(" {key}={value}");
        }
        text += "\n";
    }
    text.into_bytes()
}

impl Record {
    /// Creates a record without fields.
    pub(crate) fn new(kind: &str) -> Self {
        Self { kind: kind.into(), fields: Vec::new() }
    }

    /// Adds a field. Characters that a value cannot contain become `_`.
    pub(crate) fn with(mut self, key: &str, value: impl Display) -> Self {
        let value: String =
            value.to_string().chars().map(|c| if is_word(c) { c } else { '_' }).collect();
        self.fields.push((key.into(), value.chars().take(MAX_WORD).collect()));
        self
    }

    /// Adds these counters.
    pub(crate) fn with_all(self, all: impl IntoIterator<Item = (&'static str, u64)>) -> Self {
        all.into_iter().fold(self, |record, (key, value)| record.with(key, value))
    }

    /// Returns the kind: `device`, `hw_counters`, `qp`, …
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns the value of a field.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Returns the value of a field, if it is a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }

    /// Parses a report that another process has written; `None` if it is malformed.
    pub fn parse_all(text: &[u8]) -> Option<Vec<Self>> {
        let text = std::str::from_utf8(text).ok()?;
        if !(text.is_empty() || text.ends_with('\n')) || text.lines().count() > MAX_RECORDS {
            return None;
        }
        text.lines().map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let word = |word: &str| {
            let good = !word.is_empty() && word.len() <= MAX_WORD && word.chars().all(is_word);
            good.then(|| word.to_owned())
        };
        let mut words = line.split(' ');
        let kind = word(words.next()?)?;
        let fields = words.map(|field| {
            let (key, value) = field.split_once('=')?;
            Some((word(key)?, word(value)?))
        });
        let fields: Vec<_> = fields.take(MAX_FIELDS + 1).collect::<Option<_>>()?;
        (fields.len() <= MAX_FIELDS).then_some(Self { kind, fields })
    }
}

/// Returns whether a word may contain this character. Terminal control characters are excluded.
fn is_word(c: char) -> bool {
    c.is_ascii_graphic() && c != '='
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_survive_the_way_there_and_back() {
        let all = [
            Record::new("device").with("name", "rxe_lo").with("netdev", "a b\n\u{1b}[2J=ü"),
            Record::new("dropped"),
            Record::new("qp").with_all([("sends", 7), ("window", u64::MAX)]),
        ];
        assert_eq!(all[0].get("netdev"), Some("a_b__[2J__"));
        assert_eq!(Record::parse_all(&records(&all)).unwrap(), all);
        assert_eq!(all[2].number("window"), Some(u64::MAX));
        assert_eq!(all[0].number("name"), None);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        for bad in
            ["qp", "qp \n", "qp a\n", "qp a=\n", "qp =b\n", "\n", "q\tp\n", "qp a=\u{1b}[2J\n"]
        {
            assert_eq!(Record::parse_all(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(Record::parse_all(b"").unwrap(), []);
        let many = |of: &str, n: usize| format!("qp{}\n", of.repeat(n)).into_bytes();
        assert!(Record::parse_all(&many(" a=b", MAX_FIELDS)).is_some());
        assert_eq!(Record::parse_all(&many(" a=b", MAX_FIELDS + 1)), None);
        assert!(Record::parse_all(&b"qp\n".repeat(MAX_RECORDS)).is_some());
        assert_eq!(Record::parse_all(&b"qp\n".repeat(MAX_RECORDS + 1)), None);
        assert_eq!(Record::parse_all(&many("x", MAX_WORD)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(0u8..128, 0..200)) {
            if let Some(all) = Record::parse_all(&bytes) {
                prop_assert_eq!(records(&all), bytes);
            }
        }
    }
}
