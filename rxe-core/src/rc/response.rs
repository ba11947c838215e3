//! Responses that wait to be sent, in the order of their PSNs. Acknowledgements coalesce: one that would
//! directly follow another replaces it, so a burst of requests costs one response packet.
//! IBTA 9.7.5.1.2.
//!
//! The queue is bounded. It holds at most `max_dest_rd_atomic` first responses to READs and atomics, as
//! many responses to duplicates, and between two of these at most one acknowledgement or NAK. First and
//! repeated responses are counted separately, because requests that the network duplicated or delayed
//! must not use up what the peer may have outstanding.

use std::collections::VecDeque;

use crate::event::ResponderError;
use crate::mem::PdId;
use crate::types::{Key, Psn};

/// The MSN in a response has 24 bits.
pub(super) const MSN_MASK: u32 = 0xff_ffff;

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// An acknowledgement.
    Ack {
        /// The last PSN acknowledged.
        psn: Psn,
        /// Messages completed by then.
        msn: u32,
    },
    /// A NAK or "receiver not ready".
    Nak {
        /// The PSN of the request that is refused.
        psn: Psn,
        /// Why it is refused.
        error: ResponderError,
        /// Messages completed by then.
        msn: u32,
    },
    /// The data of a READ.
    Read(ReadResponse),
    /// The value that an atomic found.
    Atomic {
        /// The PSN of the request.
        psn: Psn,
        /// Messages completed by then.
        msn: u32,
        /// The value before the operation.
        value: u64,
        /// The request is a duplicate.
        duplicate: bool,
    },
}

/// A READ whose data is not completely sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadResponse {
    /// The PSN of the first packet.
    pub(super) first: Psn,
    /// Packets in all.
    pub(super) packets: u32,
    /// Packets sent.
    pub(super) sent: u32,
    /// The protection domain of the memory.
    pub(super) pd: PdId,
    /// The virtual address of the data.
    pub(super) va: u64,
    /// The key of the region or window.
    pub(super) rkey: Key,
    /// Bytes in all.
    pub(super) len: u32,
    /// Messages completed with this one.
    pub(super) msn: u32,
    /// This answers a duplicate request.
    pub(super) duplicate: bool,
}

impl ReadResponse {
    /// Returns a READ response without data.
    pub(super) fn empty(psn: Psn, msn: u32) -> Self {
        let (pd, rkey) = (PdId(0), Key::new(0));
        Self { first: psn, packets: 1, sent: 0, pd, va: 0, rkey, len: 0, msn, duplicate: false }
    }
}

impl Response {
    /// Returns the first PSN of the response.
    fn psn(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Nak { psn, .. } | Self::Atomic { psn, .. } => *psn,
            Self::Read(read) => read.first,
        }
    }

    /// Returns one past the last PSN of the response.
    fn end(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Nak { psn, .. } | Self::Atomic { psn, .. } => psn.next(),
            Self::Read(read) => read.first.add(read.packets),
        }
    }

    /// Returns whether this responds to a duplicate request; `None` for an acknowledgement or NAK.
    fn duplicate(&self) -> Option<bool> {
        match self {
            Self::Ack { .. } | Self::Nak { .. } => None,
            Self::Atomic { duplicate, .. } | Self::Read(ReadResponse { duplicate, .. }) => {
                Some(*duplicate)
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Responses {
    /// All responses but the newest.
    older: VecDeque<Response>,
    /// The newest response; `None` only if there is no response at all. It is stored in the queue pair
    /// itself, so that a peer with one request at a time touches no other memory.
    newest: Option<Response>,
}

impl Responses {
    /// Adds an acknowledgement. It replaces an acknowledgement or NAK directly before it, which also
    /// acknowledges everything before its PSN and so is implied. But an acknowledgement does not replace
    /// a NAK of a later PSN: [`Responses::take_resend`] removes that when its packet has arrived.
    pub(super) fn acknowledge(&mut self, psn: Psn, msn: u32) {
        debug_assert!(msn <= MSN_MASK, "24 bits");
        match self.newest {
            Some(Response::Nak { psn: refused, .. }) if psn.before(refused) => {}
            _ => self.add(Response::Ack { psn, msn }),
        }
    }

    /// Adds a NAK. It replaces an acknowledgement or NAK directly before it.
    pub(super) fn refuse(&mut self, psn: Psn, error: ResponderError, msn: u32) {
        debug_assert!(msn <= MSN_MASK, "24 bits");
        self.add(Response::Nak { psn, error, msn });
    }

    /// Adds an acknowledgement or NAK, which replaces one directly before it.
    fn add(&mut self, new: Response) {
        match &mut self.newest {
            Some(last @ (Response::Ack { .. } | Response::Nak { .. })) => *last = new,
            _ => self.push(new),
        }
    }

    /// Removes the newest response if it asks the peer to send again. Returns whether it did.
    pub(super) fn take_resend(&mut self) -> bool {
        let asks = matches!(
            self.newest,
            Some(Response::Nak {
                error: ResponderError::SequenceGap | ResponderError::ReceiverNotReady,
                ..
            })
        );
        if asks {
            self.newest = self.older.pop_back();
        }
        asks
    }

    /// Adds the response to a READ or atomic.
    pub(super) fn push(&mut self, response: Response) {
        debug_assert!(
            self.newest.is_none_or(|newest| !response.psn().before(newest.psn())),
            "responses leave in the order of PSNs"
        );
        if let Some(older) = self.newest.replace(response) {
            self.older.push_back(older);
        }
        self.check();
    }

    /// Adds the response to a duplicate READ or atomic, before responses to later PSNs. It replaces
    /// waiting responses to any of its PSNs. Returns `false` and changes nothing if there would be more
    /// than `limit` responses to duplicates.
    pub(super) fn repeat(&mut self, response: Response, limit: usize) -> bool {
        debug_assert_eq!(response.duplicate(), Some(true), "only to a duplicate");
        let (first, end) = (response.psn(), response.end());
        debug_assert!(first.before(end), "a response has a PSN");
        let replaced = |old: &Response| {
            old.duplicate().is_some() && old.psn().before(end) && first.before(old.end())
        };
        let others = self.iter().filter(|old| old.duplicate() == Some(true) && !replaced(old));
        if others.count() >= limit {
            return false;
        }
        self.older.extend(self.newest.take());
        self.older.retain(|old| !replaced(old));
        let place = self.older.iter().position(|old| !old.psn().before(first));
        self.older.insert(place.unwrap_or(self.older.len()), response);
        self.newest = self.older.pop_back();
        debug_assert!(self.iter().filter(|old| old.duplicate() == Some(true)).count() <= limit);
        self.check();
        true
    }

    /// Returns how many first responses to READs and atomics wait.
    pub(super) fn reads(&self) -> usize {
        self.iter().filter(|response| response.duplicate() == Some(false)).count()
    }

    pub(super) fn front(&self) -> Option<&Response> {
        self.older.front().or(self.newest.as_ref())
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Response> {
        self.older.front_mut().or(self.newest.as_mut())
    }

    pub(super) fn pop(&mut self) {
        debug_assert!(!self.is_empty(), "what was sent was in the queue");
        if self.older.pop_front().is_none() {
            self.newest = None;
        }
    }

    /// Returns whether READ data or atomic values wait.
    pub(super) fn has_data(&self) -> bool {
        self.iter().any(|response| response.duplicate().is_some())
    }

    /// Removes READ data and atomic values, for the error state. The oldest first response among them would
    /// have acknowledged everything before it, so an acknowledgement replaces it.
    pub(super) fn drop_data(&mut self) {
        if !self.has_data() {
            return;
        }
        let all: Vec<_> = self.older.drain(..).chain(self.newest.take()).collect();
        let mut acknowledged = false;
        for response in all {
            let (psn, msn) = match response {
                Response::Ack { .. } | Response::Nak { .. } => {
                    self.push(response);
                    continue;
                }
                Response::Read(read) => (read.first.add(read.sent), read.msn),
                Response::Atomic { psn, msn, .. } => (psn, msn),
            };
            if response.duplicate() == Some(false) && !std::mem::replace(&mut acknowledged, true) {
                self.acknowledge(psn.sub(1), msn.wrapping_sub(1) & MSN_MASK);
            }
        }
        debug_assert!(!self.has_data());
        self.check();
    }

    /// Removes all responses.
    pub(super) fn clear(&mut self) {
        self.older.clear();
        self.newest = None;
    }

    /// Returns whether nothing but acknowledgements waits.
    pub(super) fn can_wait(&self) -> bool {
        self.iter().all(|response| matches!(response, Response::Ack { .. }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    pub(super) fn len(&self) -> usize {
        self.older.len() + usize::from(self.newest.is_some())
    }

    fn check(&self) {
        debug_assert!(self.newest.is_some() || self.older.is_empty());
        debug_assert!(self.iter().is_sorted_by(|a, b| !b.psn().before(a.psn())));
        debug_assert!(self.iter().all(|one| one.psn().before(one.end())), "each has a PSN");
    }

    fn iter(&self) -> impl Iterator<Item = &Response> {
        self.older.iter().chain(&self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(psn: u32) -> Response {
        Response::Ack { psn: Psn::new(psn), msn: 0 }
    }

    fn atomic(psn: u32, duplicate: bool) -> Response {
        Response::Atomic { psn: Psn::new(psn), msn: 0, value: 0, duplicate }
    }

    fn read(psn: u32, packets: u32, duplicate: bool) -> Response {
        let empty = ReadResponse::empty(Psn::new(psn), 0);
        Response::Read(ReadResponse { packets, duplicate, ..empty })
    }

    /// Returns the responses in the order in which they are sent.
    fn all(responses: &Responses) -> Vec<Response> {
        responses.iter().copied().collect()
    }

    #[test]
    fn repeated_responses_leave_in_the_order_of_their_psns() {
        let mut responses = Responses::default();
        responses.push(read(0xff_fff0, 4, false));
        responses.acknowledge(Psn::new(3), 0);
        for repeated in [atomic(5, true), read(0xff_fffe, 2, true), atomic(1, true)] {
            assert!(responses.repeat(repeated, 3));
        }
        let first = read(0xff_fff0, 4, false);
        let expected = [first, read(0xff_fffe, 2, true), atomic(1, true), ack(3), atomic(5, true)];
        assert_eq!(all(&responses), expected);
    }

    #[test]
    fn a_repeated_response_takes_the_place_of_those_to_the_same_psns() {
        let others = [atomic(9, false), read(10, 4, true), ack(12), atomic(14, false)];
        for (packets, kept) in [(4, &others[..]), (5, &others[..3])] {
            let mut responses = Responses::default();
            others.into_iter().for_each(|other| responses.push(other));
            responses.push(read(10 + packets, 1, true));
            assert!(responses.repeat(read(10, packets, true), 2));
            let mut expected = kept.to_vec();
            expected[1] = read(10, packets, true);
            expected.push(read(10 + packets, 1, true));
            assert_eq!(all(&responses), expected, "{packets} packets");
        }
    }

    #[test]
    fn there_are_no_more_repeated_responses_than_the_limit() {
        let mut responses = Responses::default();
        responses.push(atomic(9, false));
        assert!(responses.repeat(atomic(1, true), 2) && responses.repeat(atomic(2, true), 2));
        let full = all(&responses);
        assert!(!responses.repeat(atomic(3, true), 2));
        assert_eq!(all(&responses), full);
        assert!(responses.repeat(atomic(2, true), 2), "it replaces one");
        assert_eq!(all(&responses), full);
    }

    /// The data of a READ acknowledges everything before it, with the number of messages until then.
    #[test]
    fn where_data_was_an_acknowledgement_of_what_was_before_it_is_left() {
        for (duplicates, sent) in [(0, 0), (0, 2), (1, 0)] {
            let mut responses = Responses::default();
            (0..duplicates).for_each(|at| responses.push(atomic(at, true)));
            let first = ReadResponse { packets: 3, sent, ..ReadResponse::empty(Psn::new(5), 0) };
            responses.push(Response::Read(first));
            responses.acknowledge(Psn::new(8), 1);
            responses.push(atomic(9, false));
            responses.drop_data();
            let before = Response::Ack { psn: Psn::new(4 + sent), msn: 0xff_ffff };
            let after = Response::Ack { psn: Psn::new(8), msn: 1 };
            assert_eq!(all(&responses), [before, after], "{duplicates} {sent}");
        }
    }
}
