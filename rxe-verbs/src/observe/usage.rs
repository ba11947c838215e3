//! Counts the users of an object by kind, so that a failed close can say what must be closed first.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_core::VerbsError;

use crate::error::Result;

/// The kinds of objects that use other objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    MemoryRegion,
    MemoryWindow,
    QueuePair,
    SharedReceiveQueue,
    AddressHandle,
    CompletionQueue,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::MemoryRegion,
        Self::MemoryWindow,
        Self::QueuePair,
        Self::SharedReceiveQueue,
        Self::AddressHandle,
        Self::CompletionQueue,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::MemoryRegion => "memory region",
            Self::MemoryWindow => "memory window",
            Self::QueuePair => "queue pair",
            Self::SharedReceiveQueue => "shared receive queue",
            Self::AddressHandle => "address handle",
            Self::CompletionQueue => "completion queue",
        }
    }
}

/// The number of users of an object, for each [`Kind`].
#[derive(Debug, Default)]
pub(crate) struct UseCounters([AtomicU32; Kind::ALL.len()]);

impl UseCounters {
    pub(crate) fn read(&self) -> UseCounts {
        UseCounts(self.0.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// An object whose users are counted.
pub(crate) trait Counted: Clone {
    fn use_counters(&self) -> &UseCounters;

    /// Returns a counted reference to the object, for a user of this kind.
    fn used_as(&self, kind: Kind) -> Used<Self> {
        self.use_counters().0[kind as usize].fetch_add(1, Ordering::Relaxed);
        Used { object: self.clone(), kind }
    }
}

/// A reference to an object by a user, which is counted until the reference is dropped.
#[derive(Debug)]
pub(crate) struct Used<T: Counted> {
    object: T,
    /// The kind of the user.
    kind: Kind,
}

impl<T: Counted> Deref for Used<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T: Counted> Clone for Used<T> {
    fn clone(&self) -> Self {
        self.object.used_as(self.kind)
    }
}

impl<T: Counted> Drop for Used<T> {
    fn drop(&mut self) {
        self.object.use_counters().0[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The number of users of an object by kind. Prints as in "2 memory regions and 1 queue pair".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UseCounts([u32; Kind::ALL.len()]);

impl UseCounts {
    /// No users.
    pub(crate) const NONE: Self = Self([0; Kind::ALL.len()]);

    /// Returns the counts for users of one kind.
    pub(crate) fn of(kind: Kind, count: usize) -> Self {
        let mut counts = Self::NONE;
        counts.0[kind as usize] = u32::try_from(count).unwrap_or(u32::MAX);
        counts
    }

    /// Returns whether there are no users.
    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// Returns the number of users of all kinds.
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }
}

impl fmt::Display for UseCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Kind::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0);
        let all = all.map(|(kind, count)| {
            let plural = if count == 1 { "" } else { "s" };
            format!("{count} {}{plural}", kind.name())
        });
        let mut all: Vec<_> = all.collect();
        match (all.pop(), all.is_empty()) {
            (None, _) => f.write_str("nothing"),
            (Some(last), true) => f.write_str(&last),
            (Some(last), false) => write!(f, "{} and {last}", all.join(", ")),
        }
    }
}

/// Returns the result of an explicit close of `what`, which these objects and handles still use.
pub(crate) fn closed(used_by: UseCounts, handles: usize, what: &str) -> Result<()> {
    let what = match (used_by.is_empty(), handles) {
        (true, 0) => return Ok(()),
        (true, _) => format!("{what} is in use by {handles} others: drop or close these first"),
        (false, _) => format!("{what} is in use by {used_by}: drop or close these first"),
    };
    Err(VerbsError::Busy { what }.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    impl Counted for Arc<UseCounters> {
        fn use_counters(&self) -> &UseCounters {
            self
        }
    }

    #[test]
    fn uses_are_counted_by_kind_until_they_end() {
        let counters = Arc::<UseCounters>::default();
        assert_eq!(counters.read().to_string(), "nothing");
        let pair = counters.used_as(Kind::QueuePair);
        assert_eq!(counters.read().to_string(), "1 queue pair");
        let (other, handle) = (pair.clone(), counters.used_as(Kind::AddressHandle));
        assert_eq!(counters.read().to_string(), "2 queue pairs and 1 address handle");
        assert_eq!(counters.read().total(), 3);
        drop((pair, other, handle));
        assert!(counters.read().is_empty());
    }
}
