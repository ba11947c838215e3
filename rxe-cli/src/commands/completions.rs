//! `rxe completions`: completion scripts for shells, which also complete device names.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory};
use clap_complete::{Shell, generate};
#[cfg(target_os = "linux")]
use rxe_net::BackendKind;

use crate::common::{Error, print_bytes};

/// Print a completion script for a shell
///
/// For bash: rxe completions bash > ~/.local/share/bash-completion/completions/rxe
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let mut script = Vec::new();
        generate(self.shell, &mut with_values(super::Cli::command()), "rxe", &mut script);
        let script = String::from_utf8_lossy(&script);
        print_bytes(listing_devices(self.shell, &script).as_bytes())
    }
}

/// A placeholder for the names of devices in a generated script.
const DEVICES: &str = "RXE_DEVICES";

/// The shell command that prints the names of the devices, one per line.
const LIST: &str = "rxe devices 2>/dev/null | tail -n +3 | tr -s '[:blank:]' ' ' | cut -d ' ' -f 2";

/// Returns the command line with values for completion.
/// [`DEVICES`] is the value of `DEV`, and the backends' names those of `KIND`.
fn with_values(command: Command) -> Command {
    let values = |arg: Arg| {
        let is = |name: &str| arg.get_value_names().is_some_and(|names| names == [name]);
        if is("DEV") {
            arg.value_parser(PossibleValuesParser::new([DEVICES]))
        } else if is("KIND") {
            with_backends(arg)
        } else {
            arg
        }
    };
    command.mut_args(values).mut_subcommands(with_values)
}

#[cfg(target_os = "linux")]
fn with_backends(arg: Arg) -> Arg {
    arg.value_parser(PossibleValuesParser::new(BackendKind::ALL.map(BackendKind::name)))
}

/// No command has a backend on this system.
#[cfg(not(target_os = "linux"))]
fn with_backends(arg: Arg) -> Arg {
    arg
}

/// Replaces [`DEVICES`] in the script by code that lists the devices.
fn listing_devices(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => script.replace(DEVICES, &format!("$({LIST})")),
        Shell::Fish => script.replace(&format!("{DEVICES}\\t''"), &format!("({LIST})")),
        Shell::Zsh => {
            let function = format!("_rxe_devices() {{\n    compadd -- $({LIST})\n}}\n\n");
            let script = script.replace(&format!("({DEVICES})"), "_rxe_devices");
            script.replacen("_rxe() {", &(function + "_rxe() {"), 1)
        }
        _ => script.replace(DEVICES, ""),
    }
}
