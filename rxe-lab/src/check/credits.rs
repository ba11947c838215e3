//! End-to-end flow control: compares a responder's credits with the messages sent.
//! IBTA 9.7.7.2.
//!
//! A positive acknowledgement states how many receives the responder has left, beyond the messages
//! that its MSN counts. The requester may send that many messages that consume a receive, and one
//! more, whose acknowledgement brings new credits. The responder cannot withdraw a receive, so its
//! limit does not fall, except for rounding: only few numbers have a code.
//!
//! Code 31 means that the responder does not count. Some adapters send 0 with the same meaning. So
//! 0 is no limit, and if it comes while receives must be left, the connection is no longer checked.

use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::OpInfo;

use super::finding::{Confidence, Kind, Span};
use super::history::History;
use super::{Found, Seen};
use crate::words::messages_of;

/// The time in which requests may have been sent before the first credits arrived.
const ON_THE_WAY: Duration = Duration::from_micros(100);

/// The credits of one direction.
#[derive(Debug, Default)]
pub(super) struct Credits {
    /// The messages begun that consume a receive. Only differences count.
    begun: u32,
    /// The messages completed that consume a receive. Only differences count.
    complete: u32,
    /// Acknowledgements of earlier PSNs are ignored, because requests are missing there.
    from: Option<Psn>,
    /// The smallest difference seen between the MSN and the number of completed messages.
    ahead: Option<u32>,
    limit: Option<Limit>,
    /// The time at which the first limit became known.
    known: Option<Duration>,
    /// Whether the responder does not count receives.
    is_off: bool,
    /// The messages that were sent beyond the limit.
    beyond: Option<Beyond>,
    /// Whether wrong credits were reported.
    is_reported: bool,
}

/// The number of messages that may be begun, counted like [`Credits::begun`].
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// The lower bound.
    least: u32,
    /// The upper bound, if the responder had received more than it acknowledged.
    most: u32,
    psn: Psn,
    frame: u64,
    /// The credits in the acknowledgement.
    credits: u32,
}

/// Messages that were sent beyond the limit.
#[derive(Debug)]
struct Beyond {
    limit: Limit,
    psn: Psn,
    span: Span,
    frame: u64,
    messages: u64,
    /// The largest number of messages beyond the limit at one time.
    most: u32,
    /// The frame of the first RNR NAK for one of them.
    refused: Option<u64>,
}

impl Credits {
    /// Returns the number of completed messages that consume a receive.
    pub(super) fn complete(&self) -> u32 {
        self.complete
    }

    /// Counts a new request, in the order of PSNs.
    pub(super) fn request(&mut self, seen: &Seen<'_>, info: &OpInfo) {
        let psn = seen.packet.bth.psn;
        if info.consumes_recv {
            if info.starts && self.begun != self.complete {
                // The previous message has no end.
                self.complete = self.begun;
                self.lose_count(psn);
            }
            self.begun = self.begun.wrapping_add(1);
            self.hold(seen);
        }
        if info.completes_recv {
            self.complete = self.complete.wrapping_add(1);
            // The beginning of the first message may not have been captured.
            self.begun = self.complete;
        }
    }

    /// Checks a message that has just begun against the limit.
    fn hold(&mut self, seen: &Seen<'_>) {
        let Some(limit) = self.limit else { return };
        let over = before(limit.most, self.begun);
        let known = self.known.unwrap_or_default();
        if over <= 1 || seen.at.saturating_sub(known) < ON_THE_WAY {
            return;
        }
        let (psn, frame) = (seen.packet.bth.psn, seen.number);
        let span = (seen.at, seen.at);
        let new = Beyond { limit, psn, span, frame, messages: 0, most: 0, refused: None };
        let beyond = self.beyond.get_or_insert(new);
        beyond.messages += 1;
        beyond.span.1 = seen.at;
        beyond.most = beyond.most.max(over);
    }

    /// Forgets the limit, because requests are missing before `next`.
    pub(super) fn lose_count(&mut self, next: Psn) {
        self.limit = None;
        self.ahead = None;
        self.from = Some(next);
    }

    /// Handles a positive acknowledgement with credits.
    /// `is_exact` means that all requests up to the newest are known.
    pub(super) fn given(
        &mut self,
        seen: &Seen<'_>,
        (code, msn): (u8, u32),
        history: &mut History,
        is_exact: bool,
        found: &mut Found,
    ) {
        let Some(credits) = messages_of(code) else { return self.turn_off() };
        let psn = seen.packet.bth.psn;
        if self.is_off || self.from.is_some_and(|from| psn.before(from)) {
            return;
        }
        let Some(sent) = history.get(psn) else { return };
        let (messages, taken) = (sent.messages, sent.taken);
        let left = self.limit.map_or(0, |limit| before(self.begun, limit.least));
        if credits == 0 {
            return if left > 0 {
                self.turn_off()
            };
        }
        let ahead = self.ahead(msn.wrapping_sub(messages) & MSN);
        let least = taken.wrapping_add(credits);
        let most = least.wrapping_add(ahead);
        let new = Limit { least, most, psn, frame: seen.number, credits };
        let Some(limit) = self.limit.filter(|limit| !psn.before(limit.psn)) else {
            if self.limit.is_none() {
                (self.limit, self.from) = (Some(new), None);
                self.known.get_or_insert(seen.at);
            }
            return;
        };
        // Allow one code of difference, because adapters may read the number slightly early or late.
        if is_exact && psn.after(limit.psn) && credits < rounded(left, 1) && !self.is_reported {
            self.is_reported = true;
            let text = format!(
                "The responder gave credits for {} messages, of which at least {left} were left. \
                 Then it gave {credits}: it has taken credits back, does not encode them, or its \
                 receive queue is shared.",
                limit.credits
            );
            let frames = vec![limit.frame, seen.number];
            found.add(seen, Kind::Credits, Confidence::Likely, frames, text);
            self.limit = Some(new);
            return;
        }
        self.limit = Some(Limit {
            least: later(limit.least, least),
            most: later(limit.most, most),
            ..if before(limit.least, least) > 0 { new } else { limit }
        });
    }

    /// Handles an RNR NAK: the responder had no receive for a request.
    pub(super) fn refused(
        &mut self,
        seen: &Seen<'_>,
        history: &mut History,
        is_exact: bool,
        found: &mut Found,
    ) {
        let psn = seen.packet.bth.psn;
        if let Some(beyond) = self.beyond.as_mut().filter(|beyond| !psn.before(beyond.psn)) {
            beyond.refused.get_or_insert(seen.number);
        }
        let Some(limit) = self.limit.filter(|limit| !psn.before(limit.psn)) else { return };
        let Some(sent) = history.get(psn).filter(|sent| sent.info.consumes_recv) else { return };
        // The messages up to and including this one.
        let taken = sent.taken.wrapping_add(u32::from(!sent.info.completes_recv));
        let is_within = taken == limit.least || before(taken, limit.least) > 0;
        if !is_exact || !is_within || self.is_reported {
            return;
        }
        self.is_reported = true;
        let text = format!(
            "The responder gave credits for {} messages, and then had no receive for one of them.",
            limit.credits
        );
        let frames = vec![limit.frame, sent.frame, seen.number];
        found.add(seen, Kind::Credits, Confidence::Likely, frames, text);
    }

    /// Reports the messages that were sent beyond the limit.
    pub(super) fn report(&mut self, found: &mut Found) {
        let Some(beyond) = self.beyond.take() else { return };
        let Beyond { limit, psn, span, frame, messages, most, refused } = beyond;
        let (one, s) = if messages == 1 { ("A message was", "") } else { ("Messages were", "s") };
        let mut text = format!(
            "{one} sent beyond the limit of the responder's credits ({} at the last \
             acknowledgement before): {messages} message{s}, at most {most} beyond. One is permitted.",
            limit.credits
        );
        let mut frames = vec![limit.frame, frame];
        let mut confidence = Confidence::Likely;
        if let Some(refused) = refused {
            text.push_str(" The responder had no receive for them (RNR NAK).");
            frames.push(refused);
            confidence = Confidence::Certain;
        }
        found.push(Kind::CreditLimit, confidence, (psn, span), frames, text);
    }

    /// Stops checking the credits of this connection.
    fn turn_off(&mut self) {
        (self.is_off, self.limit, self.beyond) = (true, None, None);
    }

    /// Returns how far the MSN is ahead of the acknowledged messages.
    /// The lead counts from the least that was seen.
    fn ahead(&mut self, difference: u32) -> u32 {
        let least = *self.ahead.get_or_insert(difference);
        let ahead = difference.wrapping_sub(least) & MSN;
        if ahead <= MSN / 2 {
            return ahead;
        }
        self.ahead = Some(difference);
        0
    }
}

/// The value range of an MSN: 24 bits.
const MSN: u32 = 0xff_ffff;

/// Returns how far count `one` is before count `other`; 0 if it is not before.
fn before(one: u32, other: u32) -> u32 {
    let ahead = other.wrapping_sub(one);
    if ahead <= u32::MAX / 2 { ahead } else { 0 }
}

/// Returns the later of two counts.
fn later(one: u32, other: u32) -> u32 {
    if before(one, other) > 0 { other } else { one }
}

/// Returns the largest number up to `messages` that has a credit code.
/// With `lower`, returns the number of the code that many codes lower.
fn rounded(messages: u32, lower: u8) -> u32 {
    let code = (0..=30).rev().find(|code| messages_of(*code).is_some_and(|n| n <= messages));
    code.and_then(|code| messages_of(code.saturating_sub(lower))).unwrap_or(0)
}
