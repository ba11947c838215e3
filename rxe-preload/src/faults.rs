//! What the faults did that `RXE_FAULT` asks for: said when the program ends.

use parking_lot::Mutex;
use rxe_net::PerProcess;
use rxe_verbs::{Device, InjectedFaults};

use crate::config::{CONFIG, Explain};
use crate::stderr;

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
