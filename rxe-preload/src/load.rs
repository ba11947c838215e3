//! The constructor of this library.

use crate::{counters, dlopen, fault_guard, files, golang, netlink, panics, stderr};

/// The loader calls this function before the program starts.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    stderr::remember();
    counters::resolve();
    dlopen::resolve();
    fault_guard::resolve();
    files::resolve();
    netlink::resolve();
    if !cfg!(test) {
        panics::install();
        golang::check();
    }
}
