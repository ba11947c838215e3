//! What a fork leaves behind.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between the process that loaded this library and this one. An object of an
/// earlier generation belongs to the parent, whose device goes on without us: its threads and locks
/// are not here, so nothing of it may be touched.
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
