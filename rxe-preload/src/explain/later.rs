//! Checks after a delay whether to explain something, even while the program sleeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rxe_sys::{PerProcess, spawn_thread};

use crate::config::{CONFIG, Explain};

/// One kind of delayed check.
/// At most one thread runs it, and only while there is something to check.
pub(crate) struct Later(PerProcess<AtomicBool>);

impl Later {
    pub(crate) const fn new() -> Self {
        Self(PerProcess::new())
    }

    /// Calls `look` after this time, and again while it returns true.
    /// Does nothing if this check already runs.
    pub(crate) fn run(
        &'static self,
        after: Duration,
        mut look: impl FnMut() -> bool + Send + 'static,
    ) {
        let runs = self.0.get();
        if CONFIG.explain == Explain::Off || runs.swap(true, Ordering::Relaxed) {
            return;
        }
        let run = move || {
            loop {
                thread::sleep(after);
                if !look() {
                    break;
                }
            }
            runs.store(false, Ordering::Relaxed);
        };
        if spawn_thread("rxe-explain", run).is_err() {
            runs.store(false, Ordering::Relaxed);
        }
    }
}
