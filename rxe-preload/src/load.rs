//! What happens when this library is loaded.

use crate::{fault_guard, files, netlink, panics};

/// The loader calls this before the program starts.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    fault_guard::resolve();
    files::resolve();
    netlink::resolve();
    if !cfg!(test) {
        panics::install();
    }
}
