//! Finds the preload library. It is next to `rxe` after a build, in `../lib/rxe` if a package or
//! `cargo xtask install` installed it, and inside `rxe` if `cargo install` did.

use std::path::{Path, PathBuf};

use super::{LIBRARY_NAME, embedded, loader_takes, own_dir};
use crate::common::Error;

/// The versioned libraries, for programs that load libibverbs or librdmacm themselves.
pub(in crate::commands) const VERSIONED: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Returns the directory of the versioned libraries, and their paths.
/// They are next to the preload library.
pub(in crate::commands) fn versioned_in(library: &Path) -> (PathBuf, [PathBuf; 2]) {
    let dir = library.with_file_name("rxe-libs");
    let all = VERSIONED.map(|name| dir.join(name));
    (dir, all)
}

/// Returns the directory of the versioned libraries, if they exist.
/// `cargo xtask libs` or an installation creates them.
pub(super) fn versioned(library: &Path) -> Option<PathBuf> {
    let (dir, [verbs, _]) = versioned_in(library);
    verbs.exists().then_some(dir)
}

/// Returns the installed valgrind suppressions, if their path is usable.
pub(super) fn suppressions(library: &Path) -> Option<PathBuf> {
    let file = library.with_file_name("valgrind.supp");
    // Valgrind splits its options at white space.
    let takes = !file.to_string_lossy().contains(char::is_whitespace);
    (takes && file.exists()).then_some(file)
}

/// Returns the advice for missing versioned libraries.
pub(in crate::commands) fn how_to_get_versioned() -> &'static str {
    if embedded::is_inside() {
        // The copy of an embedded library has no versioned libraries next to it.
        "install the package, or in the sources of rxe run `cargo xtask install`"
    } else {
        "install the package, or in the sources of rxe run `cargo xtask libs` (with the same --release)"
    }
}

/// Returns the path of the preload library.
pub(in crate::commands) fn find() -> Result<PathBuf, Error> {
    // The embedded library always matches this `rxe`.
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
        // `rxe` alone was copied into this directory.
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
