//! A case: what it is called, which rule it tests, what the peer is given, and what is played.

use super::bench::Bench;
use super::verdict::Outcome;
use crate::common::peer::Given;

/// One case.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Sections of the InfiniBand specification, volume 1; A16 to A19 are its annexes.
    pub(super) rule: &'static str,
    /// What the peer receives, or is told to do.
    pub(super) sends: &'static str,
    /// What a conforming peer does.
    pub(super) allows: &'static str,
    pub(super) given: Given,
    /// Plays the case. It returns as soon as the peer deviates.
    pub(super) run: fn(&mut Bench<'_>) -> Outcome,
}

/// Cases of one kind.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) cases: &'static [Case],
}
