//! Gaps in the PSNs of requests.

use std::time::Duration;

use rxe_core::types::Psn;

use super::Found;
use super::finding::{Confidence, Kind};

/// A PSN at least this far from the expected one begins another connection.
pub(super) const RESTART: i32 = 1 << 18;

/// The most gaps that are kept.
const MAX: usize = 64;

/// The gaps in the PSNs of one direction.
#[derive(Debug, Default)]
pub(super) struct Gaps(Vec<Gap>);

/// A range of consecutive missing PSNs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    pub(super) first: Psn,
    pub(super) count: u32,
    /// The frame after the gap.
    pub(super) frame: u64,
    /// The time of that frame.
    pub(super) at: Duration,
    /// Whether the service is unreliable, so that missing packets are not retransmitted.
    pub(super) unreliable: bool,
}

impl Gaps {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns one of the gaps, usually the oldest.
    pub(super) fn first(&self) -> Option<&Gap> {
        self.0.first()
    }

    /// Returns the number of PSNs in all gaps.
    pub(super) fn missing(&self) -> u64 {
        self.0.iter().map(|gap| u64::from(gap.count)).sum()
    }

    /// Adds a gap. If there are too many, removes another gap and returns it.
    pub(super) fn add(&mut self, gap: Gap) -> Option<Gap> {
        let given_up = (self.0.len() == MAX).then(|| self.0.remove(0));
        self.0.push(gap);
        given_up
    }

    /// Returns whether this PSN is in a gap.
    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.position(psn).is_some()
    }

    /// Returns the length of the gap that begins with this PSN, or 0.
    pub(super) fn beginning_at(&self, psn: Psn) -> u32 {
        self.0.iter().find(|gap| gap.first == psn).map_or(0, |gap| gap.count)
    }

    /// Removes a PSN from its gap. Returns the gap as it was before.
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

    /// Removes the PSNs of a READ's responses from the gaps that begin among them.
    pub(super) fn cover(&mut self, psn: Psn, span: u32) {
        for gap in &mut self.0 {
            let Ok(at) = u32::try_from(gap.first.diff(psn)) else { continue };
            let taken = span.saturating_sub(at).min(gap.count);
            gap.first = gap.first + taken;
            gap.count -= taken;
        }
        self.0.retain(|gap| gap.count > 0);
    }

    /// Reports the packets of an unreliable service as lost.
    pub(super) fn report_lost(&self, found: &mut Found) {
        self.0.iter().for_each(|gap| gap.report_lost(found));
    }

    fn position(&self, psn: Psn) -> Option<usize> {
        let within = |g: &Gap| u32::try_from(psn.diff(g.first)).is_ok_and(|at| at < g.count);
        self.0.iter().position(within)
    }
}

impl Gap {
    /// Reports the packets of the gap as lost if the service is unreliable.
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
        let place = (self.first, (self.at, self.at));
        found.push(Kind::Lost, Confidence::Likely, place, vec![self.frame], text);
    }
}
