//! The handle of a capture, for code that adds comments to packets.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rxe_core::engine::Event;
use rxe_core::types::Psn;

use super::capture::{Capture, PcapStatus};

/// A handle of a capture, which adds comments to packets and flushes the file.
#[derive(Clone)]
pub struct PcapHandle(pub(super) Arc<Mutex<Capture>>);

impl PcapHandle {
    /// Adds a comment to a packet that has arrived since the last `send` or `receive`. It is the
    /// last packet with this PSN or, without a PSN, the first packet of the last frame.
    ///
    /// Call this from the sink of `receive`, or after `receive` and before anything is sent.
    pub fn comment_received(&self, psn: Option<Psn>, text: impl Into<String>) {
        self.lock().comment_received(psn, text.into());
    }

    /// Adds a comment to the next packet with this PSN that is sent.
    pub fn comment_sending(&self, psn: Psn, text: impl Into<String>) {
        self.lock().announce(psn, text.into());
    }

    /// Adds a comment to the packet of an engine's event. It says why the packet was dropped, why a
    /// NAK was sent, or why it is retransmitted. Call this when [`PcapHandle::comment_received`]
    /// may be called.
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
            // This event follows the NAK that caused the failure. After a timeout there is no NAK.
            Event::RequestFailed { .. } => self.lock().comment_nak(text),
            // Other events do not concern a single packet.
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
        // The lock is released first, because traffic needs it.
        output.flush();
        self.lock().check_output();
    }

    /// Waits until all packets so far are in the file, and returns the status.
    pub fn finish(&self) -> PcapStatus {
        self.flush();
        self.status()
    }

    /// Returns the current status.
    pub fn status(&self) -> PcapStatus {
        self.lock().status.clone()
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.lock().path.clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Capture> {
        self.0.lock()
    }
}
