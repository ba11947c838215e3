//! The cache that is kept between runs: `$XDG_CACHE_HOME/rxe` or `~/.cache/rxe`.

use super::{Error, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the directory of the cache.
///
/// # Errors
/// Neither variable is set, or the directory cannot be created.
pub(crate) fn cache() -> Result<PathBuf> {
    let xdg = env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = || env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache"));
    let none = || Error::Failed("neither XDG_CACHE_HOME nor HOME is set".into());
    let dir = xdg.or_else(home).ok_or_else(none)?.join("rxe");
    make(&dir)?;
    Ok(dir)
}

/// Ensures that the directory `done` exists. If it does not, `fill` creates its content in an empty
/// directory and returns the part to keep. The process may be killed meanwhile, and several
/// processes may do this simultaneously.
///
/// # Errors
/// The errors of `fill`; or `done` cannot be written.
pub(crate) fn cached(done: &Path, fill: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<()> {
    if done.is_dir() {
        return Ok(());
    }
    let parent = done.parent().unwrap_or(done);
    make(parent)?;
    let scratch = tempfile::Builder::new().prefix("new-").tempdir_in(parent);
    let scratch = scratch.map_err(|e| Error::io(parent, &e))?;
    match fs::rename(fill(scratch.path())?, done) {
        // Another process may have been faster.
        Err(e) if !done.is_dir() => Err(Error::io(done, &e)),
        _ => Ok(()),
    }
}

/// Creates a directory and its parents.
pub(super) fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|e| Error::io(dir, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_made_once_and_whole() {
        let top = tempfile::tempdir().unwrap();
        let done = top.path().join("packages/a");
        let fill = |scratch: &Path| {
            fs::write(scratch.join("download"), "").unwrap();
            let part = scratch.join("part");
            make(&part)?;
            fs::write(part.join("file"), "whole").unwrap();
            Ok(part)
        };
        let failed = cached(&done, |scratch| {
            fill(scratch)?;
            Err(Error::Failed("no".into()))
        });
        assert!(failed.is_err() && !done.exists());
        cached(&done, |scratch| {
            // Another process is faster.
            cached(&done, fill)?;
            fill(scratch)
        })
        .unwrap();
        cached(&done, |_| unreachable!()).unwrap();
        assert_eq!(fs::read_to_string(done.join("file")).unwrap(), "whole");
        assert_eq!(fs::read_dir(done.parent().unwrap()).unwrap().count(), 1);
    }
}
