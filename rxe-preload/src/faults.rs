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
