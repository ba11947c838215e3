//! Completions that the peer's program reports.

use std::fmt;

/// How a request of the peer's program completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) id: u64,
    /// The number of `ibv_wc_status`.
    pub(crate) status: u8,
    /// The length of a message that arrived; not compared if it is `None` on either side.
    pub(crate) len: Option<u32>,
    /// The rkey that the message has invalidated.
    pub(crate) invalidated: Option<u32>,
}

impl Done {
    /// Reads `ID:STATUS:OPCODE:LENGTH`, behind which there may be `:RKEY`.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let mut parts = word.split(':');
        let mut next = || parts.next();
        let (id, status) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let (_, len) = (next()?, next()?.parse().ok()?);
        let invalidated = next().map(str::parse).transpose().ok()?;
        // The length says something of messages that arrived without fault only.
        Some(Self { id, status, len: (status == 0).then_some(len), invalidated })
    }

    /// Whether it is what was expected.
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
