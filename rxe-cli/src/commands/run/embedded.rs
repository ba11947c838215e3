//! The preload library inside `rxe`, and its copy that only this user can change.
//!
//! `build/preload.rs` says when the library is embedded. At each start, every byte of the copy is
//! compared with the original. The copy's directory belongs to the user who starts `rxe`, and no
//! other user may access it.

use std::env;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::{LIBRARY_NAME, loader_takes};
use crate::common::Error;

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Returns whether `rxe` has the library embedded.
pub(super) fn is_inside() -> bool {
    LIBRARY.is_some()
}

/// Returns the copy of the library, created if necessary; `None` if none is embedded.
pub(super) fn unpacked() -> Option<Result<PathBuf, Error>> {
    let (digest, bytes) = LIBRARY?;
    Some(unpack_in(&directories(digest), bytes))
}

/// Returns the candidate directories for a copy with this digest, the best first.
fn directories(digest: &str) -> Vec<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let name = format!("preload-{digest}");
    let found = [
        absolute("XDG_CACHE_HOME").map(|dir| dir.join("rxe").join(&name)),
        absolute("HOME").map(|dir| dir.join(".cache/rxe").join(&name)),
        Some(env::temp_dir().join(format!("rxe-{}-{name}", geteuid().as_raw()))),
    ];
    found.into_iter().flatten().collect()
}

/// Creates the copy in the first suitable directory.
fn unpack_in(directories: &[PathBuf], bytes: &[u8]) -> Result<PathBuf, Error> {
    let mut why = String::new();
    for dir in directories {
        let file = dir.join(LIBRARY_NAME);
        let done = if loader_takes(&file) {
            unpack(dir, bytes).map_err(|e| e.to_string())
        } else {
            Err("LD_PRELOAD takes no path with a space or a colon".to_owned())
        };
        match done {
            Ok(()) => return Ok(file),
            Err(e) => why = format!("{}: {e}", dir.display()),
        }
    }
    let what = format!("cannot write the library for the program ({why})");
    Err(Error::new(what, "let XDG_CACHE_HOME name a directory of yours"))
}

/// Ensures that `dir` is a directory of this user alone that has the library.
fn unpack(dir: &Path, bytes: &[u8]) -> io::Result<()> {
    let above = dir.parent().unwrap_or(dir);
    fs::create_dir_all(above)?;
    for above in fs::canonicalize(above)?.ancestors() {
        if !is_safe(&fs::metadata(above)?) {
            let why = format!("another user can replace what is in {}", above.display());
            return Err(io::Error::other(why));
        }
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = fs::symlink_metadata(dir)?;
    let own = found.uid() == geteuid().as_raw();
    if !found.is_dir() || !own || found.mode() & 0o077 != 0 {
        return Err(io::Error::other("it is not a directory that only this user may use"));
    }
    let file = dir.join(LIBRARY_NAME);
    let there = fs::symlink_metadata(&file).is_ok_and(|found| found.is_file());
    if there && fs::read(&file).is_ok_and(|copy| copy == bytes) {
        return Ok(());
    }
    // Replace the file by a rename, because other programs may have the old one mapped.
    let mut new = tempfile::NamedTempFile::new_in(dir)?;
    new.write_all(bytes)?;
    fs::set_permissions(new.path(), Permissions::from_mode(0o500))?;
    new.persist(&file)?;
    Ok(())
}

/// Returns whether only this user and root can rename others' entries in a directory.
/// In a user namespace, root's directories belong to the overflow user, which stands for users that
/// are not mapped.
fn is_safe(dir: &fs::Metadata) -> bool {
    const NOBODY: u32 = 65534;
    let own = [geteuid().as_raw(), 0, NOBODY].contains(&dir.uid());
    let sticky = dir.mode() & 0o1000 != 0;
    own && (sticky || dir.mode() & 0o002 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_copy_is_made_once_and_a_changed_one_is_replaced() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("not/there/yet");
        let unpack = || unpack_in(std::slice::from_ref(&dir), b"library").unwrap();
        let file = unpack();
        assert_eq!(file, dir.join("librxe_preload.so"));
        assert_eq!((mode(file.parent().unwrap()), mode(&file)), (0o700, 0o500));
        let first = fs::metadata(&file).unwrap().ino();
        assert_eq!(unpack(), file);
        assert_eq!(fs::metadata(&file).unwrap().ino(), first);

        fs::remove_file(&file).unwrap();
        fs::write(&file, "librarY").unwrap();
        unpack();
        assert_eq!(fs::read(&file).unwrap(), b"library");
        // The link is not followed, and its target stays unchanged.
        let other = top.path().join("other");
        fs::write(&other, "theirs").unwrap();
        fs::remove_file(&file).unwrap();
        symlink(&other, &file).unwrap();
        unpack();
        assert_eq!(
            (fs::read(&file).unwrap(), fs::read(&other).unwrap().len()),
            (b"library".into(), 6)
        );
    }

    #[test]
    fn a_directory_that_others_may_use_is_passed_over() {
        let top = tempfile::tempdir().unwrap();
        let dirs = ["others", "link", "a space", "own"].map(|name| top.path().join(name));
        let make = |dir: &Path, mode: u32| {
            fs::create_dir(dir).unwrap();
            fs::set_permissions(dir, Permissions::from_mode(mode)).unwrap();
        };
        make(&dirs[0], 0o755);
        let real = top.path().join("real");
        make(&real, 0o700);
        symlink(&real, &dirs[1]).unwrap();
        let refused = |dirs: &[PathBuf]| unpack_in(dirs, b"library").unwrap_err().to_string();
        assert!(refused(&dirs[..1]).contains("only this user"));
        assert!(refused(&dirs[..2]).contains("only this user"));
        let said = refused(&dirs[..3]);
        assert!(said.contains("a space") && said.contains("XDG_CACHE_HOME"), "{said}");
        assert_eq!(unpack_in(&dirs, b"library").unwrap(), dirs[3].join(LIBRARY_NAME));
        assert_eq!(fs::read_dir(&real).unwrap().count(), 0);

        // A public directory is refused, where others could put their own directory in this place.
        let public = top.path().join("public");
        make(&public, 0o777);
        assert!(refused(&[public.join("preload")]).contains("another user can replace"));
        fs::set_permissions(&public, Permissions::from_mode(0o1777)).unwrap();
        unpack_in(&[public.join("preload")], b"library").unwrap();
    }
}
