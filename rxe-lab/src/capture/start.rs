//! Times of frames relative to the first.

use std::time::Duration;

use super::Record;

/// The time of the first frame of a capture.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start(Option<Duration>);

impl Start {
    /// Returns the time from the first frame ever passed in to this frame.
    /// Zero if this frame is earlier. A frame without a time counts as captured at the Unix epoch.
    pub fn since(&mut self, record: &Record<'_>) -> Duration {
        let at = record.at.unwrap_or_default();
        at.saturating_sub(*self.0.get_or_insert(at))
    }
}
