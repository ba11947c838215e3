//! Explains that the creation of an object exceeds a limit of the device.
//!
//! Libraries such as UCX, libfabric and NCCL find a limit by trial, with smaller values until a
//! creation succeeds. That is not a mistake. So a refusal is explained only when the process ends,
//! and not if a later creation has succeeded.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rxe_sys::PerProcess;

use super::once::once;
use crate::config::{CONFIG, Explain};

/// The first refusal since the last successful creation: the verb, and the reason.
static REFUSED: PerProcess<Mutex<Option<(&'static str, String)>>> = PerProcess::new();

/// Records that a verb has failed because it asked for more than the device has.
pub(crate) fn exceeded(verb: &'static str, why: &str) {
    if CONFIG.explain == Explain::All {
        once(verb, why);
        return;
    }
    REFUSED.get().lock().get_or_insert_with(|| (verb, why.to_owned()));
    // A forked child inherits this with the hook itself.
    static IS_HOOKED: AtomicBool = AtomicBool::new(false);
    if !IS_HOOKED.swap(true, Ordering::Relaxed) {
        rxe_sys::at_exit(explain);
    }
}

/// Records that a creation has succeeded, so the refused ones were trials.
pub(crate) fn met() {
    REFUSED.get().lock().take();
}

extern "C" fn explain() {
    // The program may end in a signal handler that interrupts a holder of the lock.
    if let Some(mut refused) = REFUSED.get().try_lock()
        && let Some((verb, why)) = refused.take()
    {
        once(verb, &why);
    }
}
