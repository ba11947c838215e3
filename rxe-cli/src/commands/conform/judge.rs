//! Compares the completions of the peer's program with the expected ones.

use std::fmt;

use crate::common::peer::Done;

/// Describes how the completions differ from the expected ones; `None` if they do not.
pub(super) fn completions_differ(wanted: &[Done], got: &[Done]) -> Option<String> {
    let same = wanted.len() == got.len() && got.iter().zip(wanted).all(|(g, w)| g.fits(w));
    (!same)
        .then(|| format!("the completions should be [{}], but are [{}]", list(wanted), list(got)))
}

/// Joins the items with semicolons.
pub(super) fn list<T: fmt::Display>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_differ_by_status_order_number_and_length() {
        let done = |id, status| Done { id, status, len: None, invalidated: None };
        let good = [done(1, 0), done(2, 5)];
        assert_eq!(completions_differ(&good, &good), None);
        for bad in [vec![done(1, 0)], vec![done(2, 5), done(1, 0)], vec![done(1, 0), done(2, 12)]] {
            assert!(completions_differ(&good, &bad).is_some());
        }
        let got = Done::parse("7:0:128:100").unwrap();
        assert!(got.fits(&Done { len: Some(100), ..done(7, 0) }) && got.fits(&done(7, 0)));
        assert!(!got.fits(&Done { len: Some(99), ..done(7, 0) }));
        assert_eq!(Done::parse("7:0:128:100:5").unwrap().invalidated, Some(5));
        for bad in ["7:0:128", "7:0:128:100:", "7:0:128:100:x"] {
            assert_eq!(Done::parse(bad), None, "{bad}");
        }
        assert_eq!(Done::parse("7:10:0:55").unwrap().to_string(), "7: remote access error");
    }
}
