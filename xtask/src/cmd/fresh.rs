//! `cargo xtask test --fresh`: runs the tests as on a new machine.
//!
//! The last commit is cloned into another kind of directory each time, because people keep
//! checkouts where only root may read, where tests have directories of their own, and at paths with
//! spaces. Nothing is next to the clone, and the cache of kernels is empty, so the code that fills
//! it is tested too. Only cargo's registry and the installed packages are the machine's own.

use rxe_harness::checkout::{self, cargo};
use rxe_harness::vm::{Error, Result};
use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use tempfile::TempDir;

/// A kind of place for a checkout.
struct Place {
    /// The parent directory; empty for the user's home.
    above: &'static str,
    name: &'static str,
    mode: u32,
    /// Whether the clone is entered through a symbolic link.
    link: bool,
}

const PLACES: [Place; 5] = [
    Place { above: "", name: "rxe-fresh-", mode: 0o700, link: false },
    Place { above: "/var/tmp", name: "rxe-fresh-", mode: 0o755, link: false },
    Place { above: "/opt", name: "rxe fresh 新-", mode: 0o755, link: false },
    Place { above: "/home", name: "rxe-fresh-", mode: 0o755, link: false },
    Place { above: "/var/tmp", name: "rxe fresh 新-", mode: 0o700, link: true },
];

/// Runs `cargo xtask test` with `args` in a clone.
/// The clone is in `dir` or, if that is `None`, in the place whose turn it is.
pub(super) fn run(args: &[&str], dir: Option<&Path>) -> Result<ExitCode> {
    let root = checkout::root()?;
    let changed = checkout::git(&root, &["status", "--porcelain"])?;
    if !changed.is_empty() {
        println!("not committed, and so not tested:\n{changed}");
    }
    let commit = checkout::commit(&root, "HEAD")?;
    let scratch = directory(&env::temp_dir(), "rxe-fresh-", 0o1777)?;
    let (place, link) = match dir {
        Some(dir) => {
            let dir = fs::canonicalize(dir).map_err(|e| Error::io(dir, &e))?;
            (directory(&dir, "rxe-fresh-", 0o755)?, false)
        }
        None => in_turn(&root.join("target/fresh-place"), &commit)?,
    };
    let mut path = place.path().to_owned();
    if link {
        path = scratch.path().join("link");
        symlink(place.path(), &path).map_err(|e| Error::io(&path, &e))?;
    }
    let clone = path.join("rxe");
    checkout::clone(&root, &clone, &commit)?;
    println!("commit {commit} in {}{}, with empty caches", clone.display(), of(&place, link));
    let target = clone.join("target");
    // The build of this program by `.ci/run` is moved to the clone, so it need not be repeated.
    let built = root.join("target/fresh");
    if env::current_exe().is_ok_and(|own| own.starts_with(&built)) {
        let moved = Command::new("mv").arg(&built).arg(&target).status();
        if !moved.is_ok_and(|status| status.success()) {
            return Err(Error::Failed(format!("mv {} {}", built.display(), target.display())));
        }
    }
    let mut test = cargo();
    test.args(["xtask", "test"]).args(args).current_dir(&clone).env("PWD", &clone);
    test.env("CARGO_TARGET_DIR", &target).env("XDG_CACHE_HOME", scratch.path().join("cache"));
    // The directory is removed with everything that tests leave in it.
    test.env("TMPDIR", scratch.path());
    // Nothing will be built twice.
    test.env("CARGO_INCREMENTAL", "0");
    if !args.iter().any(|arg| ["--all", "--sanitize"].contains(arg)) {
        // Panics name their location without debug information, too. Sanitizers and valgrind need
        // it.
        test.env("CARGO_PROFILE_DEV_DEBUG", "none");
    }
    if let Some(captures) = captures(&root) {
        test.env("RXE_CAPTURES", captures);
    }
    let status = test.status().map_err(|e| Error::Failed(format!("cargo: {e}")))?;
    println!("this was in {}{}", clone.display(), of(&place, link));
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Describes the properties of a place that its path does not show.
fn of(place: &TempDir, link: bool) -> String {
    let mode = fs::metadata(place.path()).map_or(0, |about| about.permissions().mode() & 0o777);
    let link = if link { format!(", a link to {}", place.path().display()) } else { String::new() };
    format!(" (mode {mode:03o}{link})")
}

/// Creates a directory at the next place, in turn.
/// The file `record` names the last place; a checkout without one begins at a place that depends on
/// the commit. Places that this user cannot use are skipped. A directory that a killed run has left
/// at the last place is removed.
fn in_turn(record: &Path, commit: &str) -> Result<(TempDir, bool)> {
    let recorded = fs::read_to_string(record).unwrap_or_default();
    let last = recorded.split_once('\n').and_then(|(nth, dir)| Some((nth.parse().ok()?, dir)));
    if let Some((_, dir)) = last.filter(|(_, dir): &(usize, &str)| dir.contains("fresh")) {
        let _ = fs::remove_dir_all(dir);
    }
    let first = turn(last.map(|(nth, _)| nth), commit);
    let mut why = None;
    for nth in (first..).take(PLACES.len()).map(|nth| nth % PLACES.len()) {
        let Place { above, name, mode, link } = &PLACES[nth];
        let above = match *above {
            "" => env::var_os("HOME").map_or_else(env::temp_dir, PathBuf::from),
            above => above.into(),
        };
        match directory(&above, name, *mode) {
            Ok(place) => {
                let _ = fs::create_dir_all(record.parent().unwrap_or(record));
                let _ = fs::write(record, format!("{nth}\n{}", place.path().display()));
                return Ok((place, *link));
            }
            Err(e) => why = Some(e),
        }
    }
    Err(why.unwrap_or_else(|| Error::Failed("no place for a clone".into())))
}

/// Returns the index of the next place.
fn turn(last: Option<usize>, commit: &str) -> usize {
    let of_commit = || commit.bytes().map(usize::from).sum();
    last.map_or_else(of_commit, |last| last + 1) % PLACES.len()
}

/// Creates an empty directory, which is removed when the value is dropped.
fn directory(above: &Path, name: &str, mode: u32) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix(name).tempdir_in(above);
    let made = made.map_err(|e| Error::io(above, &e))?;
    // Set explicitly, because the mode of `mkdir` is reduced by the umask.
    let set = fs::set_permissions(made.path(), Permissions::from_mode(mode));
    set.map(|()| made).map_err(|e| Error::io(above, &e))
}

/// Returns the directory with captures of other devices, which a clone lacks.
fn captures(root: &Path) -> Option<PathBuf> {
    let named = env::var_os("RXE_CAPTURES").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = named.unwrap_or_else(|| root.join("../shared/captures"));
    fs::canonicalize(dir).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_turn_and_leaves_nothing_behind() {
        let top = tempfile::tempdir().unwrap();
        let record = top.path().join("target/record");
        let (mut seen, mut last) = (Vec::new(), PathBuf::new());
        for _ in PLACES {
            let (place, link) = in_turn(&record, "74927943").unwrap();
            assert!(!last.exists(), "what was left behind is removed");
            let mode = fs::metadata(place.path()).unwrap().permissions().mode() & 0o777;
            seen.push((place.path().parent().unwrap().to_owned(), mode, link));
            // A killed run leaves its directory like this.
            last = place.keep();
        }
        fs::remove_dir_all(&last).unwrap();
        assert!(seen.iter().any(|(_, mode, _)| *mode == 0o700), "{seen:?}");
        if rustix::process::geteuid().is_root() {
            seen.dedup();
            assert_eq!(seen.len(), PLACES.len(), "{seen:?}");
        }
    }

    #[test]
    fn a_new_checkout_begins_with_a_place_that_follows_from_its_commit() {
        let first: std::collections::BTreeSet<_> =
            ["74927943", "f3403894", "2bbd515b", "1d77a866", "d1fe3070"]
                .map(|c| turn(None, c))
                .into();
        assert!(first.len() > 1 && first.iter().all(|nth| *nth < PLACES.len()), "{first:?}");
        assert_eq!((turn(Some(0), ""), turn(Some(PLACES.len() - 1), "")), (1, 0));
    }
}
