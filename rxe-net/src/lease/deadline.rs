//! How long to wait for other processes, which may be stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long to wait for other processes to do what takes them no time.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until then, unless it is called off.
#[derive(Clone, Copy)]
pub(super) struct Deadline<'a> {
    until: Instant,
    called_off: &'a AtomicBool,
}

impl<'a> Deadline<'a> {
    pub(super) fn new(called_off: &'a AtomicBool, time: Duration) -> Self {
        Self { until: Instant::now() + time, called_off }
    }

    /// Another time for the same purpose.
    pub(super) fn anew(self, time: Duration) -> Self {
        Self::new(self.called_off, time)
    }

    /// Nothing is waited for any more.
    pub(super) fn is_over(self) -> bool {
        self.called_off.load(Ordering::Relaxed) || Instant::now() > self.until
    }
}
