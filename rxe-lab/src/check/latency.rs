//! How long messages take, by their packets in the order in which they are acknowledged.

use std::time::Duration;

use rxe_core::types::Psn;

use super::history::Sent;

/// The message whose packets are acknowledged one after another: the PSN that must follow, and when its
/// first packet was sent.
#[derive(Debug, Default)]
pub(super) struct Latency(Option<(Psn, Duration)>);

impl Latency {
    /// A packet is acknowledged. If its message ends with it: when the first packet of this message was
    /// sent. `None` too if a packet of the message was not captured.
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
