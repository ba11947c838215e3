//! PSNs of requests that were left out.

use std::time::Duration;

use rxe_core::types::Psn;

use super::Found;
use super::finding::{Confidence, Kind};

/// A PSN this far from the one expected begins another connection.
pub(super) const RESTART: i32 = 1 << 18;

/// The most gaps that are kept.
const MAX: usize = 64;

/// PSNs of one direction that were left out.
#[derive(Debug, Default)]
pub(super) struct Gaps(Vec<Gap>);

/// PSNs in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    pub(super) first: Psn,
    pub(super) count: u32,
    /// The frame behind it.
    pub(super) frame: u64,
    /// When that frame was sent.
    pub(super) at: Duration,
    /// Nobody sends the packets again: they are lost, if they do not come late.
    pub(super) unreliable: bool,
}

impl Gaps {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One of them, mostly the oldest.
    pub(super) fn first(&self) -> Option<&Gap> {
        self.0.first()
    }

    /// How many PSNs are in all of them.
    pub(super) fn missing(&self) -> u64 {
        self.0.iter().map(|gap| u64::from(gap.count)).sum()
    }

    /// Adds a gap. If there are too many, one of the others is given up and returned.
    pub(super) fn add(&mut self, gap: Gap) -> Option<Gap> {
        let given_up = (self.0.len() == MAX).then(|| self.0.remove(0));
        self.0.push(gap);
        given_up
    }

    /// Whether a request with this PSN was left out.
    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.position(psn).is_some()
    }

    /// How many PSNs are missing from this one on, if a gap begins with it.
    pub(super) fn beginning_at(&self, psn: Psn) -> u32 {
        self.0.iter().find(|gap| gap.first == psn).map_or(0, |gap| gap.count)
    }

    /// Takes a PSN out of the gap that has it, and returns this gap as it was.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Gap> {
        let gap = self.0.swap_remove(self.position(psn)?);
        let before = psn.diff(gap.first).unsigned_abs();
        for (first, count) in [(gap.first, before), (psn.next(), gap.count - before - 1)] {
            if count > 0 && self.0.len() < MAX {
                self.0.push(Gap { first, count, ..gap });
            }
        }
        Some(gap)
    }

    /// Takes the PSNs of a READ's responses out of the gaps that they begin in.
    pub(super) fn cover(&mut self, psn: Psn, span: u32) {
        for gap in &mut self.0 {
            let Ok(at) = u32::try_from(gap.first.diff(psn)) else { continue };
            let taken = span.saturating_sub(at).min(gap.count);
            gap.first = gap.first + taken;
            gap.count -= taken;
        }
        self.0.retain(|gap| gap.count > 0);
    }

    /// Reports the packets as lost that nobody sends again.
    pub(super) fn report_lost(&self, found: &mut Found) {
        self.0.iter().for_each(|gap| gap.report_lost(found));
    }

    fn position(&self, psn: Psn) -> Option<usize> {
        let within = |g: &Gap| u32::try_from(psn.diff(g.first)).is_ok_and(|at| at < g.count);
        self.0.iter().position(within)
    }
}

impl Gap {
    /// Reports the packets as lost if nobody sends them again.
    pub(super) fn report_lost(&self, found: &mut Found) {
        if !self.unreliable {
            return;
        }
        let packets = match self.count {
            1 => "A packet is".to_owned(),
            n => format!("{n} packets are"),
        };
        let text = format!(
            "{packets} missing before this one: lost in the network, or not captured. Nothing \
             repairs this on an unreliable connection."
        );
        found.push(Kind::Lost, Confidence::Likely, self.first, vec![self.frame], 0, text);
    }
}
