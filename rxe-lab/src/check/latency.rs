//! Measures how long messages take, from their packets in the order of acknowledgement.

use std::time::Duration;

use rxe_core::types::Psn;

use super::history::Sent;

/// The message that is partly acknowledged.
/// The PSN that must be acknowledged next, and the time at which the first packet was sent.
#[derive(Debug, Default)]
pub(super) struct Latency(Option<(Psn, Duration)>);

impl Latency {
    /// Notes that a packet is acknowledged. If it ends its message, returns when the message began.
    /// `None` also if a packet of the message was not captured.
    pub(super) fn acknowledged(&mut self, sent: &Sent) -> Option<Duration> {
        let before = self.0.take().filter(|(next, _)| *next == sent.psn);
        let began = if sent.info.starts { sent.began } else { before?.1 };
        if sent.info.ends {
            return Some(began);
        }
        self.0 = Some((sent.psn + sent.span, began));
        None
    }
}
