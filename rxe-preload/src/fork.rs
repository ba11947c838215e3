//! Detects forks.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks there were between the process that loaded this library and this one. An object of an
/// earlier generation belongs to the parent, which continues to use its device. The device's threads do
/// not exist here, and its locks may be held, so nothing of it may be used.
pub(crate) fn generation() -> u64 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: `forked` only changes an atomic number, which is safe in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

static GENERATION: AtomicU64 = AtomicU64::new(0);

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
