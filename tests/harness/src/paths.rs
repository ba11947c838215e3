//! Makes the tests independent of the location of the checkout: below a directory that only root
//! may enter, at a path with spaces, or on a temporary file system.

use std::env;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Returns whether the tests can use files at this path. A shell and the loader (`LD_PRELOAD`) must
/// accept it unquoted; if root asks, programs of other users must be able to use it.
pub fn is_usable(path: &Path) -> bool {
    let open = |dir: &Path| fs::metadata(dir).is_ok_and(|about| about.mode() & 1 != 0);
    let root = rustix::process::geteuid().is_root();
    // A program that asks for its own path gets the path without symbolic links.
    let Ok(real) = fs::canonicalize(path) else { return false };
    [path, &real].iter().all(|path| is_plain(path) && (!root || path.ancestors().all(open)))
}

/// Returns whether a shell accepts this path unquoted.
fn is_plain(path: &Path) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "/._-+@%,=".contains(c);
    path.to_str().is_some_and(|text| text.chars().all(plain))
}

/// Links files of the directory `built` into a [usable](is_usable) directory, and returns that. It
/// is below `tmp` if that is usable, and otherwise below the directory for temporary files. All tests
/// of a build share it.
///
/// Another cargo may rebuild the files at any time. They are then missing for a moment, but the
/// links are not.
///
/// # Errors
/// A file is missing, or a directory cannot be written.
pub fn programs(built: &Path, files: &[&str], tmp: &Path) -> io::Result<PathBuf> {
    const BEGINNING: &str = "rxe-built-";
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let tmp = if is_usable(tmp) { tmp.to_owned() } else { env::temp_dir() };
    let mut name = BEGINNING.to_owned();
    for file in files {
        let about = fs::metadata(built.join(file))?;
        // A copy has another inode than its original, so the inode is part of the name.
        name += &format!("{:x}-{:x}-", about.dev(), about.ino());
    }
    let done = tmp.join(name);
    let own = |dir: &Path| fs::symlink_metadata(dir).is_ok_and(|dir| is_own(&dir) && dir.is_dir());
    if !own(&done) {
        // Removes directories of older builds. Tests of the last ones may still run.
        for old in fs::read_dir(&tmp)?.flatten() {
            let ours = old.file_name().to_string_lossy().starts_with(BEGINNING) && own(&old.path());
            let made = old.metadata().and_then(|about| about.modified());
            let age = made.ok().and_then(|made| made.elapsed().ok()).unwrap_or_default();
            if ours && age > DAY {
                let _ = fs::remove_dir_all(old.path());
            }
        }
        let new = tempfile::Builder::new().prefix("new-").tempdir_in(&tmp)?;
        // The mode must not depend on the umask.
        let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755));
        open(new.path())?;
        for file in files {
            let (from, to) = (built.join(file), new.path().join(file));
            fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop))?;
            open(&to)?;
        }
        match fs::rename(new.path(), &done) {
            // Another test may have created the directory first.
            Err(e) if !own(&done) => return Err(e),
            _ => {}
        }
    }
    Ok(done)
}

/// Returns a path of the checkout that a shell accepts unquoted: its own, or that of a symbolic
/// link to it.
///
/// # Panics
/// If the link cannot be created.
pub fn checkout() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
        linked(root, &env::temp_dir())
            .unwrap_or_else(|e| panic!("a link to {}: {e}", root.display()))
    })
}

/// Returns `dir`, or a symbolic link to it in `tmp`, which remains for the next test.
fn linked(dir: &Path, tmp: &Path) -> io::Result<PathBuf> {
    if is_plain(dir) {
        return Ok(dir.to_owned());
    }
    let mut hash = DefaultHasher::new();
    (dir, rustix::process::geteuid().as_raw()).hash(&mut hash);
    let link = tmp.join(format!("rxe-checkout-{:016x}", hash.finish()));
    match symlink(dir, &link) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // Another user may have created it.
    let leads_there = fs::read_link(&link)? == dir && is_own(&fs::symlink_metadata(&link)?);
    if leads_there { Ok(link) } else { Err(io::ErrorKind::AlreadyExists.into()) }
}

fn is_own(about: &fs::Metadata) -> bool {
    about.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(path: PathBuf, mode: u32) -> PathBuf {
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn programs_are_linked_to_where_every_user_and_a_shell_find_them() {
        let open = Permissions::from_mode(0o755);
        let top = tempfile::Builder::new().prefix("place").permissions(open).tempdir().unwrap();
        let [good, space, closed] = [("新", 0o755), ("a space", 0o755), ("closed", 0o700)]
            .map(|(name, mode)| dir(top.path().join(name), mode));
        let root = rustix::process::geteuid().is_root();
        assert!(is_usable(&good) && !is_usable(&space) && is_usable(&closed) != root);
        let link = top.path().join("link");
        symlink(&space, &link).unwrap();
        assert!(!is_usable(&link));
        for (built, tmp) in [(&good, &good), (&space, &space), (&closed, &closed)] {
            fs::write(built.join("rxe"), "program").unwrap();
            let found = programs(built, &["rxe"], tmp).unwrap();
            assert!(is_usable(&found.join("rxe")), "{}", found.display());
            assert_eq!(found.starts_with(tmp), is_usable(tmp), "{}", found.display());
            assert_eq!(fs::read(found.join("rxe")).unwrap(), b"program");
            assert_eq!(programs(built, &["rxe"], tmp).unwrap(), found, "it is made once");
            fs::remove_dir_all(found).unwrap();
        }
        assert!(programs(&good, &["missing"], &good).is_err());
    }

    #[test]
    fn a_directory_that_a_shell_would_split_has_a_link() {
        let top = tempfile::tempdir().unwrap();
        let [good, space] = ["good", "a space"].map(|name| dir(top.path().join(name), 0o755));
        assert_eq!(linked(&good, top.path()).unwrap(), good);
        let link = linked(&space, top.path()).unwrap();
        assert_eq!(fs::canonicalize(&link).unwrap(), fs::canonicalize(&space).unwrap());
        assert_eq!(linked(&space, top.path()).unwrap(), link);
        fs::remove_file(&link).unwrap();
        symlink("elsewhere", &link).unwrap();
        assert!(linked(&space, top.path()).is_err(), "a link that leads elsewhere is not followed");
    }
}
