//! The command `rxe`.

mod commands;
mod common;

use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            common::print_error(&error);
            ExitCode::from(error.code())
        }
    }
}
