//! Messages that the receiver refuses with RNR NAKs and never takes. IBTA 9.7.5.2.8.
//!
//! A few RNR NAKs are no fault if the message is taken in the end. One that was refused [`MANY`] times up to the
//! end of the capture was not; nor one that the requester does not send again for long.

use std::time::Duration;

use rxe_core::types::Psn;

use super::finding::{Confidence, Kind};
use super::history::History;
use super::text::time;
use super::{Found, Seen};

/// So many refusals up to the end of the capture.
const MANY: u32 = 3;

/// A requester that sends a message again does so within this time and twice the time that it was asked to wait.
const LONG: Duration = Duration::from_secs(1);

/// The message that was refused last, if it was not taken since.
#[derive(Debug, Default)]
pub(super) struct Unready(Option<Refused>);

#[derive(Debug)]
struct Refused {
    psn: Psn,
    times: u32,
    /// The frame of the request, and those of the first and the last refusal.
    frames: [u64; 3],
    /// When the first one came.
    first_at: Duration,
    /// When the last one came, and how long the requester has to wait.
    at: Duration,
    wait: Duration,
}

impl Unready {
    /// An RNR NAK that asks to wait so long.
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

    /// A response to this PSN: whether it says that the message before it, or of this PSN itself, was taken.
    pub(super) fn answered(&mut self, psn: Psn, is_nak: bool) {
        self.0.take_if(|it| psn.after(it.psn) || psn == it.psn && !is_nak);
    }

    /// Reports it at the end of the capture, or of the connection. `end` is the time of the last frame.
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
                // A receiver that is only slow has posted by then.
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
        found.push(Kind::RnrNever, confidence, it.psn, it.frames.to_vec(), 0, text);
    }
}
