//! The faults that `RXE_FAULT` asks for: calls that fail, and a report at exit of what all faults
//! did.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rxe_sys::PerProcess;
use rxe_verbs::{Device, InjectedFaults, VerbsFault};

use crate::config::{CONFIG, Explain};
use crate::ffi::{Failure, Outcome};
use crate::stderr;

/// The calls that are to fail.
static FAILING: LazyLock<Vec<FailingCall>> = LazyLock::new(|| {
    let plans = CONFIG.faults.iter().flatten().flat_map(|(_, plan)| plan.verbs());
    plans.filter_map(FailingCall::new).collect()
});

struct FailingCall {
    fault: VerbsFault,
    function: &'static str,
    errno: i32,
    /// The number of the call that fails, from 1. All calls fail if `None`.
    nth: Option<u64>,
    calls: AtomicU64,
    /// The number of calls that this fault has made fail.
    failed: AtomicU64,
}

impl FailingCall {
    fn new(fault: &VerbsFault) -> Option<Self> {
        let VerbsFault::Errno { errno, function, call } = *fault else { return None };
        let (calls, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Some(Self { fault: *fault, function, errno, nth: call, calls, failed })
    }

    /// Returns the line of the report for this fault.
    fn line(&self) -> String {
        let [failed, calls] = [&self.failed, &self.calls].map(|n| n.load(Ordering::Relaxed));
        format!(
            "{} hit {failed} of {calls} {}",
            self.fault,
            if calls == 1 { "call" } else { "calls" }
        )
    }
}

/// Fails if this call of the function is to fail. Callers call this before they do anything else.
#[inline]
pub(crate) fn may_fail(function: &'static str) -> Outcome {
    if FAILING.is_empty() { Ok(()) } else { fail(function) }
}

#[cold]
fn fail(function: &'static str) -> Outcome {
    let mut outcome = Ok(());
    for call in FAILING.iter().filter(|call| call.function == function) {
        begin_report();
        let number = call.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if outcome.is_ok() && call.nth.is_none_or(|nth| nth == number) {
            call.failed.fetch_add(1, Ordering::Relaxed);
            let why = format!("a fault on purpose ({})", call.fault);
            outcome = Err(Failure::new(call.errno, why));
        }
    }
    outcome
}

/// The faults that a process reports at exit. A forked child does not repeat its parent's report.
#[derive(Default)]
struct Report {
    /// Whether this process has opened a device, or called a function that is to fail.
    begun: AtomicBool,
    /// The names of the devices that this process has opened, with their faults.
    opened: Mutex<Vec<(String, InjectedFaults)>>,
}

static REPORT: PerProcess<Report> = PerProcess::new();

/// Whether [`say`] is registered to run at exit. A forked child inherits this with the hook itself.
static IS_HOOKED: AtomicBool = AtomicBool::new(false);

/// Adds the faults of this device to the report that is written at exit.
pub(crate) fn report_at_exit(device: &Device) {
    let Some(faults) = device.faults() else { return };
    begin_report().opened.lock().push((device.name().to_owned(), faults.clone()));
}

fn begin_report() -> &'static Report {
    let report = REPORT.get();
    report.begun.store(true, Ordering::Relaxed);
    if !IS_HOOKED.swap(true, Ordering::Relaxed) {
        rxe_sys::at_exit(say);
    }
    report
}

extern "C" fn say() {
    let report = REPORT.get();
    if CONFIG.explain == Explain::Off || !report.begun.load(Ordering::Relaxed) {
        return;
    }
    // The program may end in a signal handler that interrupts a holder of the lock.
    if let Some(opened) = report.opened.try_lock() {
        for (device, faults) in opened.iter() {
            let lines = faults.lines();
            lines.iter().for_each(|line| stderr::line(&format!("fault on {device}: {line}")));
        }
    }
    FAILING.iter().for_each(|call| stderr::line(&format!("fault: {}", call.line())));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use rxe_verbs::VerbsFault;

    /// Collects the function names with which the sources of a directory call `may_fail`.
    fn asked_in(dir: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                asked_in(&path, names);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let calls = text.split("may_fail(\"").skip(1);
            names.extend(calls.filter_map(|call| Some(call.split_once("\")")?.0.to_owned())));
        }
    }

    #[test]
    fn each_function_that_asks_can_be_made_to_fail_and_no_other() {
        let mut asked = BTreeSet::new();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for half in ["ibverbs", "rdmacm"] {
            asked_in(&sources.join(half), &mut asked);
        }
        let named: BTreeSet<_> =
            VerbsFault::FUNCTIONS.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(named.len(), VerbsFault::FUNCTIONS.len(), "a name twice");
        assert_eq!(asked, named);
        for page in ["en/reference/faults.md", "zh/reference/faults.md"] {
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
            let text = fs::read_to_string(&page).unwrap();
            let missing: Vec<_> =
                named.iter().filter(|name| !text.contains(&format!("`{name}`"))).collect();
            assert!(missing.is_empty(), "{} lacks {missing:?}", page.display());
        }
    }
}
