//! Checks message sequence numbers (MSNs). IBTA 9.7.7.
//!
//! Each response with an AETH states how many messages the responder has completed. A response to the
//! newest request states the number of all messages. A response to an earlier request states at least
//! the messages up to that request and at most all, because the responder may have continued before
//! it answered. A READ counts when its last response is sent; the responder may count it earlier.

use rxe_core::wire::{OpInfo, Syndrome};

use super::finding::{Confidence, Kind};
use super::requests::Requests;
use super::{Found, Seen};

/// MSNs have 24 bits.
const CIRCLE: i64 = 1 << 24;

/// The MSN of a responder.
#[derive(Debug, Default)]
pub(super) struct Msn {
    /// The MSN before the first request that was captured.
    base: Option<i64>,
    /// Whether the responder may have counted messages from before the capture that are sent again in
    /// it. The base is too high then.
    is_open: bool,
}

impl Msn {
    /// Checks the MSN in a response. `is_old` means that its PSN was answered before.
    pub(super) fn check(
        &mut self,
        seen: &Seen<'_>,
        info: &OpInfo,
        is_old: bool,
        requests: &mut Requests,
        found: &mut Found,
    ) {
        let Some(aeth) = seen.packet.ext.aeth else { return };
        // Messages that were not captured would be missing from the count.
        if requests.guesses > 0 || !requests.gaps.is_empty() {
            return;
        }
        let psn = seen.packet.bth.psn;
        let is_done = matches!(aeth.syndrome, Syndrome::Ack { .. }) && info.ends;
        let ended = requests.ended;
        let is_newest = requests.next.is_some_and(|next| next == psn.next());
        let (known, least, is_open) = if is_newest && is_done && !is_old {
            // All messages that were sent are complete.
            let base = (i64::from(aeth.msn) - i64::from(ended)).rem_euclid(CIRCLE);
            let (known, is_open) = (self.base.replace(base), requests.is_open(psn));
            let was_open = std::mem::replace(&mut self.is_open, is_open);
            let Some(known) = known else { return };
            (known, ended, was_open)
        } else {
            let Some(known) = self.base else { return };
            let Some(sent) = requests.history.get(psn).filter(|sent| sent.filled.is_none()) else {
                return;
            };
            // A refused request is not complete, and a READ may be incomplete until its last response.
            let messages = sent.messages.wrapping_sub(u32::from(sent.info.ends && !is_done));
            (known, messages, self.is_open)
        };
        let of = |messages: u32| (known + i64::from(messages)).rem_euclid(CIRCLE);
        let beyond = (i64::from(aeth.msn) - of(least)).rem_euclid(CIRCLE);
        if beyond <= i64::from(ended.wrapping_sub(least)) {
            return;
        }
        let expected = match least == ended {
            true => of(ended).to_string(),
            false => format!("{} to {}", of(least), of(ended)),
        };
        let text = format!(
            "The MSN is {}; by the messages since the first acknowledgement it is {expected}. The \
             responder has counted a message twice, or not.",
            aeth.msn
        );
        let request = requests.history.get(psn).map(|sent| sent.last_frame);
        let frames = request.into_iter().chain([seen.number]).collect();
        let confidence = if is_open { Confidence::Possible } else { Confidence::Likely };
        found.add(seen, Kind::Msn, confidence, frames, text);
    }
}
