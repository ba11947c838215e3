//! Detects messages that the receiver refuses with RNR NAKs and never takes. IBTA 9.7.5.2.8.
//!
//! RNR NAKs are no error if the message is taken in the end. A message was never taken if it was
//! refused [`MANY`] times up to the end of the capture, or if the requester stopped retransmitting it.

use std::time::Duration;

use rxe_core::types::Psn;

use super::finding::{Confidence, Kind};
use super::history::History;
use super::{Found, Seen};
use crate::words::time;

/// The number of refusals that are reported at the end of the capture.
const MANY: u32 = 3;

/// A requester retransmits within this time plus twice the RNR timer, or has given up.
const LONG: Duration = Duration::from_secs(1);

/// The last refused message, unless it was taken later.
#[derive(Debug, Default)]
pub(super) struct Unready(Option<Refused>);

#[derive(Debug)]
struct Refused {
    psn: Psn,
    times: u32,
    /// The frames of the request, of the first refusal and of the last refusal.
    frames: [u64; 3],
    /// The time of the first refusal.
    first_at: Duration,
    /// The time of the last refusal.
    at: Duration,
    /// The RNR timer in the last refusal.
    wait: Duration,
}

impl Unready {
    /// Handles an RNR NAK with this timer value.
    pub(super) fn refused(&mut self, seen: &Seen<'_>, wait: Duration, history: &mut History) {
        let psn = seen.packet.bth.psn;
        let request = history.get(psn).map_or(seen.number, |sent| sent.frame);
        let at = seen.at;
        match &mut self.0 {
            Some(it) if it.psn == psn => {
                it.times += 1;
                it.frames[2] = seen.number;
                (it.at, it.wait) = (at, wait);
            }
            other => {
                let frames = [request, seen.number, seen.number];
                *other = Some(Refused { psn, times: 1, frames, first_at: at, at, wait });
            }
        }
    }

    /// Handles a response.
    /// A response to a later PSN, or one other than a NAK, shows that the message was taken.
    pub(super) fn answered(&mut self, psn: Psn, is_nak: bool) {
        self.0.take_if(|it| psn.after(it.psn) || psn == it.psn && !is_nak);
    }

    /// Reports the message at the end of the capture or of the connection.
    /// `end` is the time of the last frame; `None` at the end of a connection.
    pub(super) fn report(&mut self, end: Option<Duration>, found: &mut Found) {
        let Some(it) = self.0.take() else { return };
        let silence = end.map(|end| end.saturating_sub(it.at));
        let gave_up = silence.filter(|silence| *silence > LONG + it.wait * 2);
        if it.times < MANY && gave_up.is_none() {
            return;
        }
        let times = if it.times == 1 { "once".into() } else { format!("{} times", it.times) };
        let refused =
            format!("The receiver had no receive request for this message: it was refused {times}");
        let (confidence, text) = match gave_up {
            Some(silence) => (
                Confidence::Likely,
                format!(
                    "{refused}, and the requester has not sent it again for {}: it has given up. It ends with \
                     RNR_RETRY_EXC_ERR.",
                    time(silence)
                ),
            ),
            None => {
                let lasted = it.at.saturating_sub(it.first_at);
                // A receiver that is merely slow would have posted a receive by then.
                let is_long = lasted > LONG;
                (
                    if is_long { Confidence::Likely } else { Confidence::Possible },
                    format!(
                        "{refused} in {}, up to the end of the capture. It ends with RNR_RETRY_EXC_ERR, or, with \
                         rnr_retry 7, is sent again for ever; or the capture ends before it is taken.",
                        time(lasted)
                    ),
                )
            }
        };
        let place = (it.psn, (it.first_at, it.at));
        found.push(Kind::RnrNever, confidence, place, it.frames.to_vec(), text);
    }
}
