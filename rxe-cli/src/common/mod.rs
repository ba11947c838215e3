//! Code that the commands share.

pub(crate) mod color;
mod error;
#[cfg(target_os = "linux")]
mod faults;
mod locale;
mod new_file;
mod output;
mod paragraph;
#[cfg(target_os = "linux")]
pub(crate) mod peer;
#[cfg(target_os = "linux")]
pub(crate) mod rendezvous;
#[cfg(target_os = "linux")]
pub(crate) mod running;
#[cfg(target_os = "linux")]
mod select;
mod table;
pub(crate) mod units;
#[cfg(target_os = "linux")]
mod wire;
mod xml;

pub(crate) use error::{Error, WRONG_USAGE};
#[cfg(target_os = "linux")]
pub(crate) use faults::FaultArgs;
pub(crate) use locale::{characters, locale_of};
pub(crate) use new_file::{NewFile, check_apart, check_capture, check_file, write_file};
pub(crate) use output::{
    is_piped, is_unread, print, print_bytes, print_error, print_json, terminal_width,
};
pub(crate) use paragraph::{WIDTH, lines, paragraph};
#[cfg(target_os = "linux")]
pub(crate) use select::{DeviceArgs, check_port, chosen_devices};
pub(crate) use table::{Align, TabTable, Table, tab_to};
#[cfg(target_os = "linux")]
pub(crate) use wire::{
    ACK_TIMEOUT, Opened, WireArgs, ack_timeout, check_loopback, check_mtu, check_peer,
};
pub(crate) use xml::escape;
