//! `rxe man`.

use std::fs;
use std::path::PathBuf;

use clap::CommandFactory;

use crate::common::Error;

/// Write the manual pages into a directory: rxe.1, and one for each command
///
/// For man to find them: rxe man ~/.local/share/man/man1
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory; it is created if it does not exist
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let dir = &self.directory;
        let written = fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(super::Cli::command(), dir));
        written.map_err(|e| Error::new(format!("cannot write into {}", dir.display()), e))
    }
}
