//! `rxe completions`.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory};
use clap_complete::{Shell, generate};

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
        generate(self.shell, &mut with_devices(super::Cli::command()), "rxe", &mut script);
        let script = String::from_utf8_lossy(&script);
        print_bytes(listing_devices(self.shell, &script).as_bytes())
    }
}

/// Stands for the names of devices in a generated script.
const DEVICES: &str = "RXE_DEVICES";

/// The shell command that prints the names of the devices, one in each line.
const LIST: &str = "rxe devices 2>/dev/null | tail -n +3 | tr -s '[:blank:]' ' ' | cut -d ' ' -f 2";

/// The command line, in which each argument `DEV` has the one value [`DEVICES`].
fn with_devices(command: Command) -> Command {
    let devices = |arg: Arg| {
        let is_device = arg.get_value_names().is_some_and(|names| names == ["DEV"]);
        if is_device { arg.value_parser(PossibleValuesParser::new([DEVICES])) } else { arg }
    };
    command.mut_args(devices).mut_subcommands(with_devices)
}

/// The script, in which the shell lists the devices where [`DEVICES`] stands.
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
