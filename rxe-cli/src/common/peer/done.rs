//! Completions that the peer program reports.

use std::fmt;

/// A completion of one of the peer program's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) id: u64,
    /// The value of `ibv_wc_status`.
    pub(crate) status: u8,
    /// The length of a received message in bytes. Not compared if it is `None` on either side.
    pub(crate) len: Option<u32>,
    /// The rkey that the message invalidated.
    pub(crate) invalidated: Option<u32>,
}

impl Done {
    /// Parses `ID:STATUS:OPCODE:LENGTH`, optionally followed by `:RKEY`.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let mut parts = word.split(':');
        let mut next = || parts.next();
        let (id, status) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let (_, len) = (next()?, next()?.parse().ok()?);
        let invalidated = next().map(str::parse).transpose().ok()?;
        // The length is defined only for messages that arrived without an error.
        Some(Self { id, status, len: (status == 0).then_some(len), invalidated })
    }

    /// Returns whether the completion is the one that was expected.
    pub(crate) fn fits(&self, wanted: &Self) -> bool {
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
