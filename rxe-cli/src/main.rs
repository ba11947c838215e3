//! The command `rxe`.

// Some items are only used by the commands for Linux.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, unused_imports))]

mod commands;
mod common;
#[cfg(target_os = "linux")]
mod own_library;

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    own_library::leave();
    match commands::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            common::print_error(&error);
            ExitCode::from(error.code())
        }
    }
}
