//! A NAK that ends the connection, and what the requester does afterwards.
//!
//! The packets that are sent again after such a NAK are no losses: the requester does not stop, or the
//! NAK does not reach it. They are part of the finding about the NAK.

use rxe_core::types::Psn;

use super::super::finding::{Confidence, Kind, MAX_FRAMES};
use super::super::{Found, Seen};
use super::Requests;

/// A NAK that ends the connection.
#[derive(Debug)]
pub(super) struct Refused {
    kind: Kind,
    psn: Psn,
    text: String,
    frames: Vec<u64>,
    span: super::super::Span,
    /// The packets that were sent again since.
    again: u64,
}

impl Requests {
    /// Handles a NAK that ends the connection.
    pub(in super::super) fn ends(
        &mut self,
        seen: &Seen<'_>,
        kind: Kind,
        text: String,
        frames: Vec<u64>,
        found: &mut Found,
    ) {
        self.close(found);
        self.report_refused(found);
        let (psn, span) = (seen.packet.bth.psn, (seen.at, seen.at));
        // The NAK decides what became of the message.
        self.unready.answered(psn, false);
        self.refused = Some(Refused { kind, psn, text, frames, span, again: 0 });
    }

    /// Adds a packet that is sent again to the NAK that should have ended the connection.
    /// Returns whether there was one.
    pub(super) fn goes_on(&mut self, seen: &Seen<'_>) -> bool {
        let Some(refused) = &mut self.refused else { return false };
        refused.again += 1;
        refused.span.1 = seen.at;
        if refused.frames.len() < MAX_FRAMES {
            refused.frames.push(seen.number);
        }
        true
    }

    /// Handles a response other than a NAK. After one to the refused request or a later one, the
    /// connection goes on, or is another.
    pub(in super::super) fn is_served(&mut self, psn: Psn, found: &mut Found) {
        if self.refused.as_ref().is_some_and(|refused| !psn.before(refused.psn)) {
            self.report_refused(found);
        }
    }

    /// Reports the NAK and what came after it.
    pub(in super::super) fn report_refused(&mut self, found: &mut Found) {
        let Some(Refused { kind, psn, mut text, frames, span, again }) = self.refused.take() else {
            return;
        };
        if again > 0 {
            text.push_str(
                " Requests were sent again afterwards: the requester did not stop, or the NAK did not reach it.",
            );
        }
        found.push(kind, Confidence::Certain, (psn, span), frames, text).packets = again;
    }
}
