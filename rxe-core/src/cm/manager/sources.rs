//! What one source address may cost this manager, before anything proves that the address is real.
//!
//! The source address of a request can be forged. Until the peer has repeated a communication ID of
//! this side, which is random, whatever is sent may go to somebody who asked for nothing, and whatever
//! is kept may be kept for nobody. So both are bounded:
//!
//! - Each message is answered by one message of the same size at most. The exception is the REP, which
//!   is sent again until it is answered: there a source has a budget ([`REPEATS`]).
//! - A source has at most [`MAX_HALF_OPEN`] connections that it has not confirmed, and at most
//!   [`MAX_QUESTIONS`] questions for datagram services, kept answers included.
//!
//! A source is forgotten with the last that counts, so there are never more sources than connections.

use std::collections::HashMap;
use std::time::Duration;

use super::connection::State;
use crate::types::{Gid, Time};

/// Requests of one address that it has not confirmed: an eighth of all connections.
pub(super) const MAX_HALF_OPEN: usize = 1 << 13;
/// Questions of one address, kept answers included.
pub(super) const MAX_QUESTIONS: usize = 1 << 10;
/// Questions of all addresses: they take no more of the connections than this.
pub(super) const MAX_ALL_QUESTIONS: usize = 1 << 13;

/// REPs sent again to one address that has not answered: 256 at once, then 32 a second (8 KiB/s).
const REPEATS: Budget = Budget { most: 256, per_second: 32 };
/// The same of all addresses together: 4,096 at once, then 512 a second (128 KiB/s).
const ALL_REPEATS: Budget = Budget { most: 4096, per_second: 512 };

/// What an unconfirmed peer occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    HalfOpen,
    Question,
}

impl State {
    /// What a connection in this state costs.
    pub(super) fn cost(&self) -> Option<Cost> {
        match self {
            Self::ReqRcvd { .. } | Self::RepSent(_) => Some(Cost::HalfOpen),
            Self::SidrReqRcvd { .. } | Self::SidrRepSent { .. } => Some(Cost::Question),
            _ => None,
        }
    }
}

/// See the module's opening.
#[derive(Debug)]
pub(super) struct Sources {
    all: HashMap<Gid, Source>,
    questions: usize,
    repeats: Bucket,
}

#[derive(Debug, Default)]
struct Source {
    half_open: usize,
    questions: usize,
    repeats: Option<Bucket>,
}

impl Sources {
    pub(super) fn new() -> Self {
        Self { all: HashMap::new(), questions: 0, repeats: Bucket::full(ALL_REPEATS, Time::ZERO) }
    }

    /// Whether a source may open or ask for something more.
    pub(super) fn has_room(&self, source: Gid, cost: Cost) -> bool {
        let of = self.all.get(&source);
        match cost {
            Cost::HalfOpen => of.is_none_or(|of| of.half_open < MAX_HALF_OPEN),
            Cost::Question => {
                self.questions < MAX_ALL_QUESTIONS
                    && of.is_none_or(|of| of.questions < MAX_QUESTIONS)
            }
        }
    }

    /// Whether an answer may be kept, in case it is lost: not while many are, or there would be no
    /// room for questions.
    pub(super) fn may_keep(&self, source: Gid) -> bool {
        let of = self.all.get(&source).map_or(0, |of| of.questions);
        self.questions <= MAX_ALL_QUESTIONS / 2 && of <= MAX_QUESTIONS / 2
    }

    /// A connection of this source goes from one state to another; `None` before the first and after
    /// the last.
    pub(super) fn changed(&mut self, source: Gid, from: Option<Cost>, to: Option<Cost>) {
        if from == to {
            return;
        }
        let of = self.all.entry(source).or_default();
        match from {
            Some(Cost::HalfOpen) => of.half_open = of.half_open.saturating_sub(1),
            Some(Cost::Question) => {
                of.questions = of.questions.saturating_sub(1);
                self.questions = self.questions.saturating_sub(1);
            }
            None => {}
        }
        match to {
            Some(Cost::HalfOpen) => of.half_open += 1,
            Some(Cost::Question) => {
                of.questions += 1;
                self.questions += 1;
            }
            None => {}
        }
        if of.half_open == 0 && of.questions == 0 {
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
        self.all.is_empty() && self.questions == 0
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
