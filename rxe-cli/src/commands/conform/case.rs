//! A conformance case: its name, rule, set-up of the peer, and code.

use super::bench::Bench;
use super::verdict::Outcome;
use crate::common::peer::Given;

/// A conformance case.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Sections of the InfiniBand specification, volume 1; A11 to A19 are its annexes.
    pub(super) rule: &'static str,
    /// The packets or requests of the case, in words.
    pub(super) sends: &'static str,
    /// The behaviour of a conforming peer, in words.
    pub(super) allows: &'static str,
    pub(super) given: Given,
    /// Plays the case, and returns at the first deviation.
    pub(super) run: fn(&mut Bench<'_>) -> Outcome,
}

/// A named group of cases.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) cases: &'static [Case],
}
