//! The handle of a capture, for those who add comments to packets.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rxe_core::engine::Event;
use rxe_core::types::Psn;

use super::capture::{Capture, PcapStatus};

/// A handle of a capture. It adds comments to packets, and flushes the file.
#[derive(Clone)]
pub struct PcapHandle(pub(super) Arc<Mutex<Capture>>);

impl PcapHandle {
    /// Adds a comment to a packet that has arrived since the last call of `send` or `receive`: the last
    /// one with this PSN or, without a PSN, the first packet of the last frame.
    ///
    /// Call it from the sink of `receive`, or after `receive` and before anything is sent.
    pub fn comment_received(&self, psn: Option<Psn>, text: impl Into<String>) {
        self.lock().comment_received(psn, text.into());
    }

    /// Adds a comment to the next packet with this PSN that is sent.
    pub fn comment_sending(&self, psn: Psn, text: impl Into<String>) {
        self.lock().announce(psn, text.into());
    }

    /// Adds a comment to the packet of an engine's event: why it was dropped, why a NAK was sent, why it
    /// is sent again. Call it when [`PcapHandle::comment_received`] may be called.
    pub fn event(&self, event: &Event) {
        let text = event.to_string();
        match *event {
            Event::Dropped { psn, .. } => self.comment_received(psn, text),
            Event::NakReceived { psn, .. } | Event::RnrNakReceived { psn, .. } => {
                let mut capture = self.lock();
                capture.comment_received(Some(psn), text);
                capture.nak = Some(psn);
            }
            Event::NakSent { psn, .. } | Event::Retry { psn, .. } => {
                self.comment_sending(psn, text)
            }
            Event::CommunicationEstablished { .. } | Event::ResponderFailed { .. } => {
                self.comment_received(None, text);
            }
            // It follows the NAK that tells it. After a timeout there is none.
            Event::RequestFailed { .. } => self.lock().comment_nak(text),
            // Other events are not about one packet.
            _ => {}
        }
    }

    /// Waits until all packets so far are in the file.
    pub fn flush(&self) {
        let output = {
            let mut capture = self.lock();
            capture.write_held();
            capture.submit();
            Arc::clone(&capture.output)
        };
        // The lock is released first: traffic needs it.
        output.flush();
        self.lock().look_at_output();
    }

    /// Waits until all packets so far are in the file, and says what has become of it.
    pub fn finish(&self) -> PcapStatus {
        self.flush();
        self.status()
    }

    /// The present state.
    pub fn status(&self) -> PcapStatus {
        self.lock().status.clone()
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.lock().path.clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Capture> {
        self.0.lock()
    }
}
