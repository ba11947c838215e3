//! Times from a request to its answer. Both are taken at one capture point: another one may have another clock,
//! and what is between the two takes time too.
//!
//! The answers are followed at the point that has seen the first of them, which may not be that of the
//! requests. Then the time of an answer is that of its copy at the requests' point.

use std::collections::VecDeque;
use std::time::Duration;

use rxe_core::types::Psn;

use super::Seen;

/// Answers that wait for their copies, and copies that wait for their answers.
const MAX: usize = 256;

/// The same answer at two points.
type Answer = (Psn, u32);

/// When requests were sent that one answer is to.
#[derive(Debug, Default)]
pub(super) struct Sendings {
    /// That of the request that the answer names, if it is known which transmission it is to.
    pub(super) trip: Option<Duration>,
    /// Those of the first packets of messages that are complete with it.
    pub(super) messages: Vec<Duration>,
}

/// Times of requests whose answers are followed at another point.
#[derive(Debug, Default)]
pub(super) struct Trips {
    waiting: VecDeque<(Answer, Sendings)>,
    copies: VecDeque<(Answer, Duration)>,
}

impl Trips {
    /// An answer has come at its point. Returns the requests' times and that of the copy, if it was before.
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

    /// A copy of an answer has come at the requests' point.
    pub(super) fn copied(&mut self, seen: &Seen<'_>) -> Option<(Sendings, Duration)> {
        let answer = (seen.packet.bth.psn, seen.icrc);
        if let Some(at) = self.waiting.iter().position(|(it, _)| *it == answer) {
            return self.waiting.remove(at).map(|(_, sendings)| (sendings, seen.at));
        }
        push(&mut self.copies, (answer, seen.at));
        None
    }
}

/// Adds to a list that has a bound.
fn push<T>(list: &mut VecDeque<T>, new: T) {
    if list.len() == MAX {
        list.pop_front();
    }
    list.push_back(new);
}
