//! Limits for each source address whose requests are not yet confirmed.
//!
//! The source address of a request can be forged. It is confirmed when the peer repeats a
//! communication ID of this side, which is random. Until then, answers may go to a host that
//! requested nothing, and state may be kept for a peer that does not exist. Therefore both are
//! bounded:
//!
//! - Each message is answered by at most one message of its size. The exceptions are the REP, which
//!   is retransmitted until it is answered, and the REJ after a REP that was never answered; these
//!   have a budget for each source ([`REPEATS`]).
//! - A source has at most [`MAX_HALF_OPEN`] unconfirmed connections, and at most [`MAX_QUERIES`]
//!   SIDR queries, including answers kept for retransmission.
//!
//! A source is removed together with its last connection or query, so there are never more sources
//! than connections.

use std::collections::HashMap;
use std::time::Duration;

use super::connection::State;
use crate::types::{Gid, Time};

/// The maximum number of unconfirmed connections of one address: an eighth of all connections.
pub(super) const MAX_HALF_OPEN: usize = 1 << 13;
/// The maximum number of SIDR queries of one address, including answers kept for retransmission.
pub(super) const MAX_QUERIES: usize = 1 << 10;
/// The maximum number of SIDR queries of all addresses. They are part of
/// [`crate::bounds::MAX_CONNECTIONS`].
pub(super) const MAX_ALL_QUERIES: usize = 1 << 13;

/// The budget of retransmitted REPs to an address that has not answered: a burst of 256, then 32
/// per second (8 KiB/s).
const REPEATS: Budget = Budget { most: 256, per_second: 32 };
/// The budget for all addresses together: a burst of 4,096, then 512 per second (128 KiB/s).
const ALL_REPEATS: Budget = Budget { most: 4096, per_second: 512 };

/// The resource that an unconfirmed peer occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    HalfOpen,
    Query,
}

impl State {
    /// Returns the limited resource that a connection in this state occupies, if any.
    pub(super) fn cost(&self) -> Option<Cost> {
        match self {
            Self::ReqRcvd { .. } | Self::RepSent(_) => Some(Cost::HalfOpen),
            Self::SidrReqRcvd { .. } | Self::SidrRepSent { .. } => Some(Cost::Query),
            _ => None,
        }
    }
}

/// The resources that each source address uses.
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

    /// Returns whether a source may have one more connection or query.
    pub(super) fn has_room(&self, source: Gid, cost: Cost) -> bool {
        let of = self.all.get(&source);
        match cost {
            Cost::HalfOpen => of.is_none_or(|of| of.half_open < MAX_HALF_OPEN),
            Cost::Query => {
                self.queries < MAX_ALL_QUERIES && of.is_none_or(|of| of.queries < MAX_QUERIES)
            }
        }
    }

    /// Returns whether an answer may be kept for retransmission. Kept answers may use only half of
    /// the places, so that room for queries remains.
    pub(super) fn may_keep(&self, source: Gid) -> bool {
        let of = self.all.get(&source).map_or(0, |of| of.queries);
        self.queries <= MAX_ALL_QUERIES / 2 && of <= MAX_QUERIES / 2
    }

    /// Records that a connection of this source changes the resource it occupies. `None` means no
    /// resource: before its creation and after its end.
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

    /// Returns whether a REP may be retransmitted to a source that has not answered it.
    pub(super) fn may_repeat(&mut self, now: Time, source: Gid) -> bool {
        let Some(of) = self.all.get_mut(&source) else { return false };
        let repeats = of.repeats.get_or_insert_with(|| Bucket::full(REPEATS, now));
        repeats.take(now) && self.repeats.take(now)
    }

    /// Returns whether no source is counted.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.queries == 0
    }
}

/// The size of a burst, and the rate at which tokens return.
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
    /// The time of the last token.
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
