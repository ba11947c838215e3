//! Runs a hook when the process ends.

/// Calls `hook` when the process returns from `main` or calls `exit`: after the handlers that the
/// program registers later. `_exit`, `abort` and signals do not call it. It must not panic.
pub fn at_exit(hook: extern "C" fn()) {
    // SAFETY: the hook takes nothing and lives as long as this library. If there is no memory for
    // one more handler, the call fails and the hook is not called.
    unsafe { libc::atexit(hook) };
}
