//! The timers of all QPs. Each QP has at most one entry. A deadline that moves later, as with every
//! acknowledgement, costs nothing: the entry stays until it is due and is replaced then. Only an earlier
//! deadline replaces it immediately.

use std::collections::BTreeSet;

use crate::types::{Qpn, Time};

#[derive(Debug, Default)]
pub(super) struct Timers {
    entries: BTreeSet<(Time, Qpn)>,
    /// The time of the earliest entry. It is kept here because every turn reads it.
    next: Option<Time>,
}

impl Timers {
    /// Ensures that `qpn` is called no later than `deadline`. `armed` is the time of its entry, which the
    /// QP stores.
    pub(super) fn arm(&mut self, armed: &mut Option<Time>, deadline: Time, qpn: Qpn) {
        if armed.is_some_and(|at| at <= deadline) {
            return;
        }
        self.disarm(armed, qpn);
        *armed = Some(deadline);
        let new = self.entries.insert((deadline, qpn));
        debug_assert!(new, "a queue pair has one entry");
        self.find_next();
        debug_assert!(self.next.is_some_and(|next| next <= deadline), "it is called in time");
    }

    /// Removes the entry of `qpn`.
    pub(super) fn disarm(&mut self, armed: &mut Option<Time>, qpn: Qpn) {
        if let Some(at) = armed.take() {
            let had = self.entries.remove(&(at, qpn));
            debug_assert!(had, "the note of an entry is true");
            self.find_next();
        }
    }

    /// Takes out the earliest entry, if it is due at `now`.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Qpn> {
        if self.next? > now {
            return None;
        }
        let (at, qpn) = self.entries.pop_first()?;
        debug_assert!(at <= now, "only what is due");
        self.find_next();
        debug_assert!(self.next.is_none_or(|next| next >= at), "the earliest comes first");
        Some(qpn)
    }

    /// Returns all QPs that have an entry.
    pub(super) fn qps(&self) -> Vec<Qpn> {
        self.entries.iter().map(|&(_, qpn)| qpn).collect()
    }

    /// Returns the time of the earliest entry.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        debug_assert_eq!(self.next, self.entries.first().map(|&(at, _)| at));
        self.next
    }

    fn find_next(&mut self) {
        self.next = self.entries.first().map(|&(at, _)| at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qp_has_one_entry_and_it_only_moves_forward() {
        let mut timers = Timers::default();
        let (qpn, at) = (Qpn::new(5).unwrap(), Time::from_nanos);
        let mut armed = None;
        timers.arm(&mut armed, at(100), qpn);
        timers.arm(&mut armed, at(200), qpn);
        assert_eq!(timers.next(), Some(at(100)), "later deadlines wait for the entry");
        timers.arm(&mut armed, at(50), qpn);
        assert_eq!(timers.pop_due(at(49)), None);
        assert_eq!(timers.pop_due(at(50)), Some(qpn));
        assert_eq!(timers.next(), None, "nothing is left behind");
        armed = None;
        timers.arm(&mut armed, at(70), qpn);
        timers.disarm(&mut armed, qpn);
        assert_eq!((timers.next(), armed), (None, None));
    }
}
