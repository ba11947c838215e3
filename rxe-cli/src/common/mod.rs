//! What the commands share.

mod error;
mod output;
mod select;
mod table;
#[allow(dead_code, reason = "for the commands that measure")]
mod units;

pub(crate) use error::Error;
pub(crate) use output::{print, print_bytes, print_json};
#[allow(unused_imports, reason = "for the commands that connect")]
pub(crate) use select::{DeviceArgs, Selected};
pub(crate) use select::{check_port, chosen_devices};
#[allow(unused_imports, reason = "for the commands that measure")]
pub(crate) use table::{Align, Table};
pub(crate) use table::{TabTable, tab_to};
