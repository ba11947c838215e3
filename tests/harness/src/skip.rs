//! Reports that a test was skipped, in a line that `cargo xtask test` counts and repeats.

use crate::say::say;
use crate::vm;
use std::thread;

/// Unwraps `result` in a test. If this machine lacks something, the test is skipped, and the reason
/// is printed on a line of its own; any other error fails the test.
///
/// ```no_run
/// # use rxe_harness::{or_skip, vm};
/// # fn test() {
/// let Some(kernel) = or_skip(vm::Kernel::find("6.1")) else { return };
/// # }
/// ```
///
/// # Panics
/// On [`vm::Error::Failed`].
pub fn or_skip<T>(result: vm::Result<T>) -> Option<T> {
    match result {
        Ok(v) => Some(v),
        Err(vm::Error::Missing(why)) => {
            skipped(thread::current().name().unwrap_or("a test"), &why);
            None
        }
        Err(vm::Error::Failed(why)) => panic!("{why}"),
    }
}

/// Like [`or_skip`], for work with several parts. Returns the result of a part, or reports what
/// this machine lacks for it and returns `None`.
pub(crate) fn unless_missing<T>(part: &str, result: vm::Result<T>) -> vm::Result<Option<T>> {
    match result {
        Err(vm::Error::Missing(why)) => {
            skipped(part, &why);
            Ok(None)
        }
        result => result.map(Some),
    }
}

/// Reports a test as skipped. Call it once per test, then return.
pub fn skipped(test: &str, why: &str) {
    say(&format!("SKIPPED: {test}: {why}"));
}

/// Returns whether everything is to be tested (`cargo xtask test --all`): all kernels, more seeds.
pub fn everything() -> bool {
    std::env::var_os("RXE_TEST_ALL").is_some()
}
