//! Finds the library to preload. It is beside `rxe` after a build, in `../lib/rxe` if a package or `cargo
//! xtask install` installed it, and inside `rxe` if `cargo install` did.

use std::path::{Path, PathBuf};

use super::{LIBRARY_NAME, embedded, loader_takes, own_dir};
use crate::common::Error;

/// The versioned libraries beside it, if `cargo xtask libs` has made them.
pub(super) fn versioned(library: &Path) -> Option<PathBuf> {
    let dir = library.parent()?.join("rxe-libs");
    dir.join("libibverbs.so.1").exists().then_some(dir)
}

/// The path of the library.
pub(in crate::commands) fn find() -> Result<PathBuf, Error> {
    // It is the one that fits this `rxe`.
    if let Some(unpacked) = embedded::unpacked() {
        return unpacked;
    }
    let found = find_from(&own_dir()?)?;
    if !loader_takes(&found) {
        let what = format!("{:?} cannot be preloaded", found.to_string_lossy());
        return Err(Error::new(what, "LD_PRELOAD takes no path with a space or a colon: move it"));
    }
    Ok(found)
}

fn find_from(dir: &Path) -> Result<PathBuf, Error> {
    let places = [
        dir.join(LIBRARY_NAME),
        dir.join("../lib/rxe").join(LIBRARY_NAME),
        dir.join("../lib").join(LIBRARY_NAME),
    ];
    for place in &places {
        if let Ok(found) = place.canonicalize() {
            return Ok(found);
        }
    }
    let what = format!("{LIBRARY_NAME} is neither in {} nor in ../lib/rxe", dir.display());
    let todo = match dir.parent().filter(|_| dir.ends_with("bin")) {
        // The command alone was copied there.
        Some(prefix) => format!("`cargo xtask install --prefix {}`", prefix.display()),
        None => "`cargo build -p rxe-preload` (with the same --release)".to_owned(),
    };
    Err(Error::new(what, format!("in the sources of rxe, run {todo}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let said = |dir: &str| find_from(Path::new(dir)).unwrap_err().to_string();
        let error = said("/nonexistent/release");
        assert!(error.contains("/nonexistent/release") && error.contains("cargo build"), "{error}");
        assert!(said("/nonexistent/bin").contains("xtask install --prefix /nonexistent`"));
    }
}
