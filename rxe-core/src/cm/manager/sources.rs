//! Limits for each source address, as long as nothing proves that the address is real.
//!
//! The source address of a request can be forged. It is proved when the peer repeats a communication
//! ID of this side, which is random. Until then, answers may go to somebody who asked for nothing, and
//! state may be kept for nobody. So both are bounded:
//!
//! - Each message is answered by at most one message of the same size. The exception is the REP, which
//!   is sent again until it is answered, and the REJ when it never was; these have a budget for each source
//!   ([`REPEATS`]).
//! - A source has at most [`MAX_HALF_OPEN`] connections that it has not confirmed, and at most
//!   [`MAX_QUERIES`] SIDR queries, kept answers included.
//!
//! A source is removed with the last thing that counts for it, so there are never more sources than
//! connections.

use std::collections::HashMap;
use std::time::Duration;

use super::connection::State;
use crate::types::{Gid, Time};

/// The most unconfirmed connections of one address: an eighth of all connections.
pub(super) const MAX_HALF_OPEN: usize = 1 << 13;
/// The most SIDR queries of one address, kept answers included.
pub(super) const MAX_QUERIES: usize = 1 << 10;
/// The most SIDR queries of all addresses: queries take no more than this of
/// [`crate::bounds::MAX_CONNECTIONS`].
pub(super) const MAX_ALL_QUERIES: usize = 1 << 13;

/// How many REPs are sent again to an address that has not answered: 256 at once, then 32 a second
/// (8 KiB/s).
const REPEATS: Budget = Budget { most: 256, per_second: 32 };
/// The same for all addresses together: 4,096 at once, then 512 a second (128 KiB/s).
const ALL_REPEATS: Budget = Budget { most: 4096, per_second: 512 };

/// What an unconfirmed peer occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    HalfOpen,
    Query,
}

impl State {
    /// What a connection in this state occupies; `None` if nothing that is limited.
    pub(super) fn cost(&self) -> Option<Cost> {
        match self {
            Self::ReqRcvd { .. } | Self::RepSent(_) => Some(Cost::HalfOpen),
            Self::SidrReqRcvd { .. } | Self::SidrRepSent { .. } => Some(Cost::Query),
            _ => None,
        }
    }
}

/// What each source address has used of its limits.
#[derive(Debug)]
pub(super) struct Sources {
    all: HashMap<Gid, Source>,
    queries: usize,
    repeats: Bucket,
}

#[derive(Debug, Default)]
struct Source {
    half_open: usize,
    queries: usize,
    repeats: Option<Bucket>,
}

impl Sources {
    pub(super) fn new() -> Self {
        Self { all: HashMap::new(), queries: 0, repeats: Bucket::full(ALL_REPEATS, Time::ZERO) }
    }

    /// Whether a source may have one more connection or query.
    pub(super) fn has_room(&self, source: Gid, cost: Cost) -> bool {
        let of = self.all.get(&source);
        match cost {
            Cost::HalfOpen => of.is_none_or(|of| of.half_open < MAX_HALF_OPEN),
            Cost::Query => {
                self.queries < MAX_ALL_QUERIES && of.is_none_or(|of| of.queries < MAX_QUERIES)
            }
        }
    }

    /// Whether an answer may be kept in case it is lost. Only a part of the places is for answers, so
    /// that room for queries remains.
    pub(super) fn may_keep(&self, source: Gid) -> bool {
        let of = self.all.get(&source).map_or(0, |of| of.queries);
        self.queries <= MAX_ALL_QUERIES / 2 && of <= MAX_QUERIES / 2
    }

    /// Records that a connection of this source changes what it occupies. `None` stands for nothing:
    /// before its start and after its end.
    pub(super) fn changed(&mut self, source: Gid, from: Option<Cost>, to: Option<Cost>) {
        if from == to {
            return;
        }
        let of = self.all.entry(source).or_default();
        match from {
            Some(Cost::HalfOpen) => {
                debug_assert!(of.half_open > 0, "what ends was counted");
                of.half_open = of.half_open.saturating_sub(1);
            }
            Some(Cost::Query) => {
                debug_assert!(
                    of.queries > 0 && self.queries >= of.queries,
                    "what ends was counted"
                );
                of.queries = of.queries.saturating_sub(1);
                self.queries = self.queries.saturating_sub(1);
            }
            None => {}
        }
        match to {
            Some(Cost::HalfOpen) => of.half_open += 1,
            Some(Cost::Query) => {
                of.queries += 1;
                self.queries += 1;
            }
            None => {}
        }
        debug_assert!(of.half_open <= MAX_HALF_OPEN && of.queries <= MAX_QUERIES, "{of:?}");
        if of.half_open == 0 && of.queries == 0 {
            self.all.remove(&source);
        }
    }

    /// Whether a REP may be sent again to a source that has not answered it.
    pub(super) fn may_repeat(&mut self, now: Time, source: Gid) -> bool {
        let Some(of) = self.all.get_mut(&source) else { return false };
        let repeats = of.repeats.get_or_insert_with(|| Bucket::full(REPEATS, now));
        repeats.take(now) && self.repeats.take(now)
    }

    /// Whether nothing is counted.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.queries == 0
    }
}

/// How many may be spent at once, and how fast more come.
#[derive(Clone, Copy, Debug)]
struct Budget {
    most: u32,
    per_second: u32,
}

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    budget: Budget,
    tokens: u32,
    /// When the last token came.
    filled: Time,
}

impl Bucket {
    fn full(budget: Budget, now: Time) -> Self {
        Self { budget, tokens: budget.most, filled: now }
    }

    fn take(&mut self, now: Time) -> bool {
        let interval = Duration::from_secs(1) / self.budget.per_second;
        let came = now.since(self.filled).as_nanos() / interval.as_nanos();
        let came = u32::try_from(came).unwrap_or(u32::MAX);
        debug_assert!(self.tokens <= self.budget.most, "{self:?}");
        self.tokens = self.tokens.saturating_add(came).min(self.budget.most);
        self.filled =
            if self.tokens == self.budget.most { now } else { self.filled + interval * came };
        let some = self.tokens > 0;
        self.tokens -= u32::from(some);
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_what_it_holds_and_then_what_comes() {
        let mut bucket = Bucket::full(Budget { most: 3, per_second: 10 }, Time::ZERO);
        let mut spend = |ms| {
            let now = Time::ZERO + Duration::from_millis(ms);
            (0..100).filter(|_| bucket.take(now)).count()
        };
        assert_eq!([spend(0), spend(99), spend(100), spend(250), spend(300)], [3, 0, 1, 1, 1]);
        assert_eq!(spend(1_000_000_000), 3, "it holds no more than that");
    }
}
