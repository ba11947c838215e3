//! Times of frames, counted from the first.

use std::time::Duration;

use super::Record;

/// When a capture begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start(Option<Duration>);

impl Start {
    /// The time from the first frame that was passed in to this one. It is zero for a frame with an earlier
    /// time. A frame without a time counts as one of 1970.
    pub fn since(&mut self, record: &Record<'_>) -> Duration {
        let at = record.at.unwrap_or_default();
        at.saturating_sub(*self.0.get_or_insert(at))
    }
}
