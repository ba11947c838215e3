//! `rxe completions`.

use clap::CommandFactory;
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
        generate(self.shell, &mut super::Cli::command(), "rxe", &mut script);
        print_bytes(&script)
    }
}
