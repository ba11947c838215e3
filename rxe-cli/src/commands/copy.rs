//! `rxe copy`: copies rxe and its libraries into a directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::run::library;
use crate::common::{Error, print};

/// Copy rxe and its libraries into a directory, and print the two variables that let programs use them
///
/// For containers: an init container copies rxe into a volume, and the pod's containers have the variables.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory; it is created if it does not exist
    #[arg(value_name = "DIRECTORY", value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let to = &self.directory;
        let library = library::find()?;
        let copied = copy(&library, to);
        copied.map_err(|e| Error::new(format!("cannot copy rxe into {}", to.display()), e))?;
        let to = std::path::absolute(to).unwrap_or_else(|_| to.clone());
        let libraries = to.join("lib/rxe");
        print(&format!(
            "LD_PRELOAD={}\nLD_LIBRARY_PATH={}\n",
            libraries.join(library.file_name().unwrap_or_default()).display(),
            libraries.join("rxe-libs").display()
        ))
    }
}

/// Copies the command to `bin` and its libraries to `lib/rxe`, where it finds them.
fn copy(library: &Path, to: &Path) -> io::Result<()> {
    let libraries = to.join("lib/rxe");
    fs::create_dir_all(to.join("bin"))?;
    fs::create_dir_all(libraries.join("rxe-libs"))?;
    fs::copy(std::env::current_exe()?, to.join("bin/rxe"))?;
    fs::copy(library, libraries.join(library.file_name().unwrap_or_default()))?;
    for versioned in library::versioned_in(library).1 {
        let name = versioned.file_name().unwrap_or_default();
        if versioned.exists() {
            fs::copy(&versioned, libraries.join("rxe-libs").join(name))?;
        }
    }
    Ok(())
}
