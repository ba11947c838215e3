//! The send window: how many packets may be unacknowledged. It starts at the link's limit. A loss
//! halves it; each window that is acknowledged without loss lets it grow by a quarter, but by at most a
//! sixteenth of the limit. Without it, a peer whose socket buffer overflows would lose the same packets
//! repeatedly, because go-back-N sends them all again.
//!
//! After a loss, sending restarts with one packet (timeout) or four (gap that the peer has reported).
//! The window then doubles with each window that is acknowledged, up to half of its old size, as in
//! TCP's slow start (RFC 5681, 3.1), so acknowledgements pace the retransmission. The reason: many queue
//! pairs may fill one queue in front of the peer. If each sent half a window after every loss, that
//! queue would stay full of retransmissions until the retries are used up.

use crate::service::QpView;
use crate::types::Psn;

/// After gaps, the window doubles up to at least this many packets. In a smaller window the lost packet
/// is often the last one, and then only a timeout shows the loss.
const FLOOR: u32 = 8;
/// Packets sent immediately after a gap: the missing one, and some behind it that show whether it is lost
/// again.
const RESTART: u32 = 4;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendWindow {
    limit: u32,
    max: u32,
    /// Up to this limit, each acknowledged packet enlarges the window by one (slow start).
    threshold: u32,
    /// Packets acknowledged since the limit last grew.
    acknowledged: u32,
    /// One past the highest PSN sent at the last loss. Losses before it count as the same loss.
    recover: Option<Psn>,
}

impl SendWindow {
    pub(super) fn new(view: &QpView<'_>) -> Self {
        let mtu = u32::try_from(view.attr.path_mtu.bytes()).unwrap_or(4096);
        Self::of(view.limits.packets.min(view.limits.bytes / mtu).max(1))
    }

    /// A window that begins with its largest size, in packets.
    pub(super) fn of(max: u32) -> Self {
        let window = Self { limit: max, max, threshold: max, acknowledged: 0, recover: None };
        window.check();
        window
    }

    /// Checks that at least one packet may be sent, and no more than the link takes.
    fn check(&self) {
        debug_assert!(1 <= self.limit && self.limit <= self.max, "{self:?}");
        debug_assert!(1 <= self.threshold && self.threshold <= self.max, "{self:?}");
        debug_assert!(self.acknowledged <= self.max, "{self:?}");
    }

    /// Returns how many packets may be unacknowledged now.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns how many response packets one READ request may ask for: half a window, so that two requests
    /// fill it, or a whole one if only one READ may be outstanding.
    pub(super) fn read_chunk(&self, peer_window: u32, max_rd_atomic: u8) -> u32 {
        let max = self.max.min(peer_window);
        let chunk = (if max_rd_atomic > 1 { max / 2 } else { max }).max(1);
        debug_assert!(1 <= chunk && chunk <= self.max, "a READ asks for what a window takes");
        chunk
    }

    pub(super) fn on_progress(&mut self, packets: u32, una: Psn) {
        debug_assert!(packets > 0, "progress is a packet at least");
        if self.recover.is_some_and(|recover| !una.before(recover)) {
            self.recover = None;
        }
        if self.limit < self.threshold {
            self.limit = self.limit.saturating_add(packets).min(self.threshold);
        } else if self.limit < self.max {
            self.acknowledged += packets;
            if self.acknowledged >= self.limit {
                self.acknowledged = 0;
                let more = (self.limit / 4).min(self.max / 16).max(1);
                self.limit = (self.limit + more).min(self.max);
            }
        }
        self.check();
    }

    /// Reduces the window again, because the retransmission was lost too.
    pub(super) fn on_same_loss(&mut self) {
        debug_assert!(self.recover.is_some(), "it follows a loss");
        self.limit = (self.limit / 2).max(1);
        self.threshold = (self.threshold / 2).max(FLOOR.min(self.threshold));
        self.check();
    }

    /// Undoes the reduction after a spurious timeout. `before`: the window before that timeout.
    pub(super) fn restore(&mut self, before: Self) {
        debug_assert_eq!(self.max, before.max, "a window of the same link");
        *self = Self { recover: None, ..before };
        self.check();
    }

    /// Reduces the window to one packet, because no response came in time. `high` is one past the highest
    /// PSN sent.
    pub(super) fn on_timeout(&mut self, high: Psn) {
        self.on_loss(high);
        self.limit = 1;
        debug_assert!(self.recover.is_some(), "the loss is not over before it is answered");
        self.check();
    }

    /// Halves the window without a slow start, because the response of a READ has stalled, and may only be
    /// late. `high` is one past the highest PSN sent.
    pub(super) fn on_silence(&mut self, high: Psn) {
        if self.recover.is_none() {
            self.on_loss(high);
            self.limit = self.threshold;
            self.check();
        }
    }

    /// Reduces the window, because the peer reported a gap. `high` is one past the highest PSN sent.
    pub(super) fn on_loss(&mut self, high: Psn) {
        if self.recover.is_none() {
            self.recover = Some(high);
            // A window in slow start counts as at least the floor that it grows to.
            let before = self.limit.max(self.threshold.min(FLOOR));
            self.threshold = (before / 2).max(FLOOR.min(before));
            self.limit = self.threshold.min(RESTART);
            self.acknowledged = 0;
            debug_assert!(self.threshold <= before && self.limit <= self.threshold, "{self:?}");
        }
        self.check();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the limits after each of `count` windows that were acknowledged.
    fn limits(window: &mut SendWindow, una: Psn, count: usize) -> Vec<u32> {
        let answered = |_| {
            window.on_progress(window.limit(), una);
            window.limit()
        };
        (0..count).map(answered).collect()
    }

    #[test]
    fn a_gap_halves_the_window_once_and_it_begins_with_four_packets() {
        let mut window = SendWindow::of(256);
        let (sent, later) = (Psn::new(1000), Psn::new(1001));
        window.on_loss(sent);
        window.on_loss(sent);
        assert_eq!(window.limit(), 4);
        assert_eq!(limits(&mut window, later, 7), [8, 16, 32, 64, 128, 144, 160]);
    }

    #[test]
    fn a_small_window_grows_by_a_quarter() {
        let mut window = SendWindow::of(256);
        for lost in [1000, 2000, 3000, 4000, 5000, 6000] {
            window.on_loss(Psn::new(lost));
            window.on_progress(1, Psn::new(lost + 1));
        }
        let una = Psn::new(6001);
        assert_eq!(limits(&mut window, una, 6), [8, 10, 12, 15, 18, 22]);
    }

    #[test]
    fn a_retransmission_that_is_lost_too_leaves_one_packet() {
        let mut window = SendWindow::of(256);
        window.on_loss(Psn::new(1000));
        window.on_same_loss();
        assert_eq!(limits(&mut window, Psn::new(500), 7), [4, 8, 16, 32, 64, 80, 96]);
    }

    #[test]
    fn after_a_timeout_one_packet_asks_however_often() {
        let mut window = SendWindow::of(256);
        let (una, sent) = (Psn::new(500), Psn::new(1000));
        for _ in 0..8 {
            window.on_timeout(sent);
            assert_eq!(window.limit(), 1);
        }
        assert_eq!(limits(&mut window, una, 9), [2, 4, 8, 16, 32, 64, 128, 144, 160]);
    }
}
