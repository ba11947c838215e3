//! Measures times between requests and answers that are followed at different points.
//!
//! Both times must come from one capture point, because clocks differ and the path between the points
//! takes time. Answers are followed at the point that saw the first of them, which may not be the
//! point of the requests. The time of an answer is then the time of its copy at the requests' point.

use std::collections::VecDeque;
use std::time::Duration;

use rxe_core::types::Psn;

use super::Seen;

/// The most answers, and the most copies, that wait for their counterparts.
const MAX: usize = 256;

/// The PSN and ICRC of an answer, which are equal at both points.
type Answer = (Psn, u32);

/// The times at which the requests covered by one answer were sent.
#[derive(Debug, Default)]
pub(super) struct Sendings {
    /// The time of the request that the answer names, if its transmission is known.
    pub(super) trip: Option<Duration>,
    /// The times of the first packets of the messages that the answer completes.
    pub(super) messages: Vec<Duration>,
}

/// Answers and copies that wait for each other.
#[derive(Debug, Default)]
pub(super) struct Trips {
    waiting: VecDeque<(Answer, Sendings)>,
    copies: VecDeque<(Answer, Duration)>,
}

impl Trips {
    /// Handles an answer at its own point.
    /// Returns the requests' times and the time of the copy, if the copy came first.
    pub(super) fn answered(
        &mut self,
        seen: &Seen<'_>,
        sendings: Sendings,
    ) -> Option<(Sendings, Duration)> {
        if sendings.trip.is_none() && sendings.messages.is_empty() {
            return None;
        }
        let answer = (seen.packet.bth.psn, seen.icrc);
        if let Some(at) = self.copies.iter().position(|(copy, _)| *copy == answer) {
            return self.copies.remove(at).map(|(_, time)| (sendings, time));
        }
        push(&mut self.waiting, (answer, sendings));
        None
    }

    /// Handles a copy of an answer at the requests' point.
    /// Returns the requests' times and the time of the copy, if the answer came first.
    pub(super) fn copied(&mut self, seen: &Seen<'_>) -> Option<(Sendings, Duration)> {
        let answer = (seen.packet.bth.psn, seen.icrc);
        if let Some(at) = self.waiting.iter().position(|(it, _)| *it == answer) {
            return self.waiting.remove(at).map(|(_, sendings)| (sendings, seen.at));
        }
        push(&mut self.copies, (answer, seen.at));
        None
    }
}

/// Appends to a bounded list.
fn push<T>(list: &mut VecDeque<T>, new: T) {
    if list.len() == MAX {
        list.pop_front();
    }
    list.push_back(new);
}
