//! Counts of what the rules have done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::rules::FaultRule;
use crate::wrappers::pcap::Direction;

/// A handle for the counts of a [`crate::Fault`]. Any thread may read it, and it outlives the
/// backend.
#[derive(Clone, Debug, Default)]
pub struct FaultReport {
    rules: Arc<[FaultRule]>,
    counts: Arc<FaultCounts>,
}

/// The number of packets that one rule has hit in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// Packets that the rule's filter matched.
    pub seen: u64,
    /// Packets that the rule has hit.
    pub hit: u64,
}

impl FaultReport {
    pub(super) fn new(rules: Arc<[FaultRule]>, counts: Arc<FaultCounts>) -> Self {
        Self { rules, counts }
    }

    /// Returns each rule with its counts for inbound and for outbound packets.
    pub fn tallies(&self) -> impl Iterator<Item = (&FaultRule, [FaultTally; 2])> {
        let both = [Direction::Inbound, Direction::Outbound];
        (0..).zip(self.rules.iter()).map(move |(number, rule)| {
            (rule, both.map(|direction| self.counts.tally(number, direction)))
        })
    }

    /// Returns the number of packets lost because too many were delayed simultaneously.
    pub fn overflowed(&self) -> u64 {
        self.counts.overflowed.load(Ordering::Relaxed)
    }
}

/// The counters of a report, shared between its handles and the paths.
#[derive(Debug, Default)]
pub(super) struct FaultCounts {
    rules: Vec<[[AtomicU64; 2]; 2]>,
    overflowed: AtomicU64,
}

impl FaultCounts {
    pub(super) fn new(rules: usize) -> Self {
        let rules = (0..rules).map(|_| Default::default()).collect();
        Self { rules, overflowed: AtomicU64::new(0) }
    }

    /// Counts a packet that the rule's filter matched, and whether the rule hit it.
    pub(super) fn count(&self, rule: usize, direction: Direction, hit: bool) {
        if let Some([seen, hits]) = self.of(rule, direction) {
            seen.fetch_add(1, Ordering::Relaxed);
            hits.fetch_add(u64::from(hit), Ordering::Relaxed);
        }
    }

    pub(super) fn count_overflow(&self) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of hits of all rules.
    pub(super) fn hits(&self) -> u64 {
        let hits = self.rules.iter().flatten().map(|[_, hits]| hits.load(Ordering::Relaxed));
        hits.sum()
    }

    fn tally(&self, rule: usize, direction: Direction) -> FaultTally {
        let counts = self.of(rule, direction);
        counts.map_or(FaultTally::default(), |counts| {
            let [seen, hit] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            FaultTally { seen, hit }
        })
    }

    fn of(&self, rule: usize, direction: Direction) -> Option<&[AtomicU64; 2]> {
        self.rules.get(rule).map(|ways| &ways[usize::from(direction == Direction::Outbound)])
    }
}
