//! How many packets may be unacknowledged: the link's window, halved when something is lost and
//! grown again with every window that arrives whole. A peer whose socket buffer overflows would
//! otherwise lose the same packets again and again, since go-back-N sends them all again.

use crate::service::QpView;
use crate::types::Psn;

#[derive(Debug, Default)]
pub(super) struct SendWindow {
    limit: u32,
    max: u32,
    /// Acknowledged since the limit last grew.
    acknowledged: u32,
    /// What was outstanding at the last loss: further losses below are the same one.
    recover: Option<Psn>,
}

impl SendWindow {
    pub(super) fn new(view: &QpView<'_>) -> Self {
        let mtu = u32::try_from(view.attr.path_mtu.bytes()).unwrap_or(4096);
        let max = view.window.packets.min(view.window.bytes / mtu).max(1);
        Self { limit: max, max, acknowledged: 0, recover: None }
    }

    /// Packets.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// The largest piece of a READ to ask for at once: with two of them the window is full.
    pub(super) fn read_chunk(&self, max_rd_atomic: u8) -> u32 {
        if max_rd_atomic > 1 { (self.max / 2).max(1) } else { self.max }
    }

    pub(super) fn on_progress(&mut self, packets: u32, una: Psn) {
        if self.recover.is_some_and(|recover| !una.before(recover)) {
            self.recover = None;
        }
        if self.limit < self.max {
            self.acknowledged += packets;
            if self.acknowledged >= self.limit {
                self.acknowledged = 0;
                self.limit = (self.limit + (self.max / 16).max(1)).min(self.max);
            }
        }
    }

    /// What was lost has been lost again, though nothing else was.
    pub(super) fn on_same_loss(&mut self) {
        self.limit = (self.limit / 2).max(1);
    }

    pub(super) fn on_loss(&mut self, high: Psn) {
        if self.recover.is_none() {
            self.recover = Some(high);
            self.limit = (self.limit / 2).max(1);
            self.acknowledged = 0;
        }
    }
}
