//! The faults that `RXE_FAULT` asks for: calls that fail, and, when the program ends, a report of what all
//! faults did.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rxe_net::PerProcess;
use rxe_verbs::{Device, InjectedFaults, VerbsFault};

use crate::config::{CONFIG, Explain};
use crate::ffi::{Failure, Outcome};
use crate::stderr;

/// Calls that are to fail.
static FAILING: LazyLock<Vec<FailingCall>> = LazyLock::new(|| {
    let plans = CONFIG.faults.iter().flatten().flat_map(|(_, plan)| plan.verbs());
    plans.filter_map(FailingCall::new).collect()
});

struct FailingCall {
    fault: VerbsFault,
    function: &'static str,
    errno: i32,
    /// The how many-th call; all if `None`.
    nth: Option<u64>,
    calls: AtomicU64,
}

impl FailingCall {
    fn new(fault: &VerbsFault) -> Option<Self> {
        let VerbsFault::Errno { errno, function, call } = *fault else { return None };
        Some(Self { fault: *fault, function, errno, nth: call, calls: AtomicU64::new(0) })
    }
}

/// Fails if this call of the function is to fail. It is called before the function does anything.
#[inline]
pub(crate) fn may_fail(function: &'static str) -> Outcome {
    if FAILING.is_empty() { Ok(()) } else { fail(function) }
}

#[cold]
fn fail(function: &'static str) -> Outcome {
    let of_function = FAILING.iter().filter(|call| call.function == function);
    let mut outcome = Ok(());
    for call in of_function {
        let number = call.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if outcome.is_ok() && call.nth.is_none_or(|nth| nth == number) {
            let why = format!("a fault on purpose ({})", call.fault);
            outcome = Err(Failure::new(call.errno, why));
        }
    }
    outcome
}

/// The faults of the devices that this process has opened, with their names. A forked child does not
/// repeat what its parent says.
static OPENED: PerProcess<Mutex<Vec<(String, InjectedFaults)>>> = PerProcess::new();

/// Says when the program ends what the faults of this device did.
pub(crate) fn report_at_exit(device: &Device) {
    let Some(faults) = device.faults() else { return };
    let mut opened = OPENED.get().lock();
    if opened.is_empty() {
        rxe_net::at_exit(report);
    }
    opened.push((device.name().to_owned(), faults.clone()));
}

extern "C" fn report() {
    if CONFIG.explain == Explain::Off {
        return;
    }
    // The program may end in a signal handler that interrupts a holder of the lock.
    let Some(opened) = OPENED.get().try_lock() else { return };
    for (device, faults) in opened.iter() {
        faults.lines().iter().for_each(|line| stderr::line(&format!("fault on {device}: {line}")));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use rxe_verbs::VerbsFault;

    /// The names with which the sources of a directory call `may_fail`.
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
        for page in ["faults.md", "zh/reference/faults.md"] {
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
            let text = fs::read_to_string(&page).unwrap();
            let missing: Vec<_> =
                named.iter().filter(|name| !text.contains(&format!("`{name}`"))).collect();
            assert!(missing.is_empty(), "{} lacks {missing:?}", page.display());
        }
    }
}
