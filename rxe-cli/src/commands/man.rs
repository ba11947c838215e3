//! `rxe man`: writes the manual pages.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::CommandFactory;
use clap_mangen::Man;

use crate::common::Error;

/// Write the manual pages into a directory: rxe.1, and one for each command
///
/// For man to find them: rxe man ~/.local/share/man/man1
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory; it is created if it does not exist
    #[arg(value_name = "DIRECTORY", value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let dir = &self.directory;
        let mut rxe = super::Cli::command().disable_help_subcommand(true);
        rxe.build();
        let version = rxe.render_version();
        let written =
            fs::create_dir_all(dir).and_then(|()| write_pages(rxe, version.trim_end(), dir));
        written.map_err(|e| Error::new(format!("cannot write into {}", dir.display()), e))
    }
}

/// Writes the pages of a command and of its subcommands, with the version as footer.
fn write_pages(command: clap::Command, version: &str, dir: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below.clone(), version, dir)?;
    }
    Man::new(with_usage(command)).source(version).generate_to(dir).map(drop)
}

/// Uses the command's usage as the synopsis of its page.
/// The synopsis of clap_mangen names each option, but no values.
fn with_usage(mut command: clap::Command) -> clap::Command {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    command.override_usage(usage)
}
