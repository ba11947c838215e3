//! Code that the commands share.

pub(crate) mod color;
mod error;
mod faults;
mod locale;
mod new_file;
mod output;
mod paragraph;
pub(crate) mod peer;
pub(crate) mod rendezvous;
pub(crate) mod running;
mod select;
mod table;
pub(crate) mod units;
mod wire;
mod xml;

pub(crate) use error::{Error, WRONG_USAGE};
pub(crate) use faults::FaultArgs;
pub(crate) use locale::{characters, locale_of};
pub(crate) use new_file::{NewFile, check_apart, check_capture, check_file, write_file};
pub(crate) use output::{is_unread, print, print_bytes, print_error, print_json, terminal_width};
pub(crate) use paragraph::{WIDTH, lines, paragraph};
pub(crate) use select::{DeviceArgs, check_port, chosen_devices};
pub(crate) use table::{Align, TabTable, Table, tab_to};
pub(crate) use wire::{
    ACK_TIMEOUT, Opened, WireArgs, ack_timeout, check_loopback, check_mtu, check_peer,
};
pub(crate) use xml::escape;
