//! A progress bar on the terminal. Without a terminal, nothing is shown.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::plan::{Amount, Plan};
use crate::common::units;

/// The progress of one size.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    start: Instant,
    drawn: Instant,
    timed: bool,
}

/// The least time between two updates, because drawing slows the measurement.
const PAUSE: Duration = Duration::from_millis(100);

impl Progress {
    pub(super) fn new(plan: &Plan, size: u32, quiet: bool) -> Self {
        if quiet {
            return Self::none();
        }
        let (len, timed) = match (plan.messages(size), plan.amount) {
            (Some(n), _) => (n * u64::from(plan.qps), false),
            (None, Amount::Seconds(s)) => (u64::from(s) * 1000, true),
            (None, Amount::Messages { n, .. }) => (n, false),
        };
        // The bar is drawn on standard error, and hidden if that is not a terminal.
        let bar = ProgressBar::new(len).with_message(units::bytes(size.into()));
        let style = ProgressStyle::with_template(" {msg:>8} [{bar:50}] {percent:>3} %");
        bar.set_style(style.expect("the template is right").progress_chars("=> "));
        Self { bar: Some(bar), timed, ..Self::none() }
    }

    /// Creates a progress that shows nothing.
    pub(super) fn none() -> Self {
        let now = Instant::now();
        Self { bar: None, start: now, drawn: now, timed: false }
    }

    /// Shows that `n` messages are complete.
    pub(super) fn at(&mut self, n: u64, now: Instant) {
        let Some(bar) = &self.bar else { return };
        if now - self.drawn < PAUSE {
            return;
        }
        self.drawn = now;
        let elapsed = u64::try_from((now - self.start).as_millis()).unwrap_or(u64::MAX);
        bar.set_position(if self.timed { elapsed } else { n });
    }

    /// Removes the bar from the terminal.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
