//! A file that replaces an older one only when its contents are complete.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempPath};

/// A file that is being written.
pub(crate) struct NewFile {
    /// The file that the user named.
    named: PathBuf,
    /// A temporary file beside it, and the file to replace. `None` if the named file itself is written:
    /// it is no regular file (`/dev/null`, a pipe), or nothing can be created beside it.
    scratch: Option<(TempPath, PathBuf)>,
}

impl NewFile {
    /// Makes sure that `named` can be written, without changing it.
    pub(crate) fn new(named: &Path) -> io::Result<Self> {
        let named = named.to_owned();
        let target = match fs::metadata(&named) {
            Ok(meta) if !meta.is_file() => return Ok(Self { named, scratch: None }),
            // A symbolic link stays, and the file that it names is replaced.
            Ok(_) => fs::canonicalize(&named)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => named.clone(),
            Err(e) => return Err(e),
        };
        let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        let mode = Permissions::from_mode(0o666);
        match Builder::new().prefix(".rxe-").permissions(mode).tempfile_in(dir) {
            Ok(file) => Ok(Self { named, scratch: Some((file.into_temp_path(), target)) }),
            // This user may be allowed to write the file, but not its directory.
            Err(e) => match OpenOptions::new().append(true).open(&target) {
                Ok(_) => Ok(Self { named, scratch: None }),
                Err(_) => Err(e),
            },
        }
    }

    /// A file with a unique name in the directory for temporary files.
    pub(crate) fn unique(prefix: &str, suffix: &str) -> io::Result<Self> {
        let scratch = Builder::new().prefix(prefix).suffix(suffix).tempfile()?.into_temp_path();
        let named = scratch.to_path_buf();
        Ok(Self { named: named.clone(), scratch: Some((scratch, named)) })
    }

    /// The path to write to.
    pub(crate) fn path(&self) -> &Path {
        self.scratch.as_ref().map_or(&self.named, |(scratch, _)| scratch)
    }

    /// Replaces the old file by what was written. Without this call the old file stays.
    pub(crate) fn finish(self) -> io::Result<PathBuf> {
        if let Some((scratch, target)) = self.scratch {
            scratch.persist(target)?;
        }
        Ok(self.named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_old_file_stays_until_the_new_one_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture");
        fs::write(&path, "yesterday's").unwrap();

        let refused = NewFile::new(&path).unwrap();
        fs::write(refused.path(), "half").unwrap();
        drop(refused);
        assert_eq!(fs::read_to_string(&path).unwrap(), "yesterday's");

        let done = NewFile::new(&path).unwrap();
        fs::write(done.path(), "today's").unwrap();
        assert_eq!(done.finish().unwrap(), path);
        assert_eq!(fs::read_to_string(&path).unwrap(), "today's");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no scratch file stays");
    }

    #[test]
    fn a_unique_file_stays_once_it_is_finished() {
        let first = NewFile::unique("rxe-test-", ".pcapng").unwrap();
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
        let path = NewFile::unique("rxe-test-", ".pcapng").unwrap().finish().unwrap();
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_link_and_what_is_no_regular_file_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        let new = NewFile::new(&link).unwrap();
        fs::write(new.path(), "new").unwrap();
        new.finish().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");

        let null = NewFile::new(Path::new("/dev/null")).unwrap();
        assert_eq!(null.path(), Path::new("/dev/null"));
    }
}
