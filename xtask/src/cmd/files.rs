//! Files and commands of what is built for browsers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rxe_harness::vm::{Error, Result};

/// Runs a command. Fails if it cannot be run, or fails.
pub(super) fn succeed(command: &mut Command) -> Result<()> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Failed(format!("{command:?}: {status}"))),
        Err(e) => Err(Error::Missing(format!("{command:?}: {e}"))),
    }
}

/// Collects all files below `root`, relative to it.
pub(super) fn files(root: &Path, below: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let dir = root.join(below);
    let entries = fs::read_dir(&dir).map_err(|e| Error::io(&dir, &e))?;
    for entry in entries.flatten() {
        let path = below.join(entry.file_name());
        if entry.path().is_dir() {
            files(root, &path, found)?;
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

/// Writes a file, and creates its directory.
pub(super) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir).and_then(|()| fs::write(path, bytes)).map_err(|e| Error::io(path, &e))
}
