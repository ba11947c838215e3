//! Runs a hook when the process ends.

/// Registers `hook` to run when the process returns from `main` or calls `exit`. It runs after the
/// handlers that the program registers later. `_exit`, `abort` and signals do not run it. `hook`
/// must not panic.
pub fn at_exit(hook: extern "C" fn()) {
    // SAFETY: the hook has no arguments and lives as long as this library. If there is no memory
    // for one more handler, the call fails and the hook does not run.
    unsafe { libc::atexit(hook) };
}
