//! How requests of the peer's program completed, and whether it is what the rule allows.

use std::fmt;

/// How a request of the peer's program completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) id: u64,
    /// The number of `ibv_wc_status`.
    pub(super) status: u8,
    /// The length of a message that arrived; not compared if it is `None` on either side.
    pub(super) len: Option<u32>,
}

impl Done {
    /// Reads `ID:STATUS:OPCODE:LENGTH`.
    pub(super) fn parse(word: &str) -> Option<Self> {
        let mut parts = word.split(':');
        let mut next = || parts.next();
        let (id, status) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let (_, len) = (next()?, next()?.parse().ok()?);
        // The length says something of messages that arrived without fault only.
        Some(Self { id, status, len: (status == 0).then_some(len) })
    }

    /// Whether it is what was expected.
    pub(super) fn fits(&self, wanted: &Self) -> bool {
        let lens = [self.len, wanted.len];
        self.id == wanted.id
            && self.status == wanted.status
            && (lens.contains(&None) || self.len == wanted.len)
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.id)?;
        match rxe_core::queue::Status::ALL.iter().find(|s| s.code() == self.status) {
            Some(status) => write!(f, "{status}")?,
            None => write!(f, "status {}", self.status)?,
        }
        match self.len {
            Some(len) => write!(f, ", {len} B"),
            None => Ok(()),
        }
    }
}

/// How the completions differ from those that were expected, in words.
pub(super) fn completions_differ(wanted: &[Done], got: &[Done]) -> Option<String> {
    let same = wanted.len() == got.len() && got.iter().zip(wanted).all(|(g, w)| g.fits(w));
    (!same)
        .then(|| format!("the completions should be [{}], but are [{}]", list(wanted), list(got)))
}

/// With semicolons between them.
pub(super) fn list<T: fmt::Display>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_differ_by_status_order_number_and_length() {
        let done = |id, status| Done { id, status, len: None };
        let good = [done(1, 0), done(2, 5)];
        assert_eq!(completions_differ(&good, &good), None);
        for bad in [vec![done(1, 0)], vec![done(2, 5), done(1, 0)], vec![done(1, 0), done(2, 12)]] {
            assert!(completions_differ(&good, &bad).is_some());
        }
        let got = Done::parse("7:0:128:100").unwrap();
        assert!(got.fits(&Done { id: 7, status: 0, len: Some(100) }) && got.fits(&done(7, 0)));
        assert!(!got.fits(&Done { id: 7, status: 0, len: Some(99) }));
        assert_eq!(Done::parse("7:0:128"), None);
        assert_eq!(Done::parse("7:10:0:55").unwrap().to_string(), "7: remote access error");
    }
}
