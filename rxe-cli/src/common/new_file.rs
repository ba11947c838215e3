//! A file that replaces an older one only when its contents are complete.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempPath};

use super::Error;

/// Writes a report or a picture. The umask restricts the permissions of a new file; an existing
/// file keeps its permissions.
pub(crate) fn write_file(named: &Path, contents: &str) -> Result<(), Error> {
    let write = || {
        let is_new = !named.exists();
        let (file, mode) = report(named)?;
        fs::write(file.path(), contents)?;
        // The umask applies to new files only. Restore the mode of the replaced file.
        if !is_new
            && file.scratch.is_some()
            && let Some(permissions) = system::permissions(mode)
        {
            fs::set_permissions(file.path(), permissions)?;
        }
        file.finish()
    };
    write().map(drop).map_err(|e| cannot_write(named, &e))
}

/// Checks that [`write_file`] can write this file, without changing it.
/// Commands call this before a long run, so that its result is not lost.
pub(crate) fn check_file(named: &Path) -> Result<(), Error> {
    report(named).map(drop).map_err(|e| cannot_write(named, &e))
}

/// Fails if the output is the input under any name, and would overwrite it.
/// `-` is standard input or standard output. An input that is not a regular file cannot be
/// overwritten.
pub(crate) fn check_apart(input: &Path, output: &Path) -> Result<(), Error> {
    // A file whose metadata cannot be read is reported where it is opened.
    if !system::is_same_file(input, output).unwrap_or(false) {
        return Ok(());
    }
    let name = |path: &Path, standard: &str| match is_standard(path) {
        true => standard.to_owned(),
        false => path.display().to_string(),
    };
    let (input, output) = (name(input, "standard input"), name(output, "standard output"));
    let what = match input == output {
        true => format!("{input} would be read and written over"),
        false => format!("{output} is the same file as {input}, which is read"),
    };
    Err(Error::wrong_usage(what, "name another file for the output"))
}

/// Fails if a capture is to go to `-` while standard output carries the results. `option` names the
/// capture's option. Without this check, a file with the name `-` would be written.
pub(crate) fn check_capture(file: &Path, option: &str) -> Result<(), Error> {
    if !is_standard(file) {
        return Ok(());
    }
    let what = format!("{option} - asks for the capture on standard output, which has the results");
    Err(Error::wrong_usage(what, "name a file, or use `rxe capture -w -` beside this"))
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens the file of a report, and returns it with its permissions.
fn report(named: &Path) -> io::Result<(NewFile, u32)> {
    if is_standard(named) {
        return Err(io::Error::other("reports are not written to standard output"));
    }
    let old = fs::symlink_metadata(named);
    if old.as_ref().is_ok_and(fs::Metadata::is_dir) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mode = old.map_or(0o666, |old| system::mode(&old));
    Ok((NewFile::with_mode(named, mode)?, mode))
}

fn cannot_write(named: &Path, e: &io::Error) -> Error {
    Error::new(format_args!("cannot write {}: {e}", named.display()), "name another file")
}

/// A file that is being written.
pub(crate) struct NewFile {
    /// The file that the user named.
    named: PathBuf,
    /// The temporary file in the same directory that replaces `named`. `None` if `named` itself is
    /// written, because it is no regular file (`/dev/null`, a pipe) or its directory is not
    /// writable.
    scratch: Option<TempPath>,
}

impl NewFile {
    /// Checks that `named` can be written, without changing it. Only the user may read the new
    /// file. A symbolic link is refused: in a shared directory, another user may have created it to
    /// have its target replaced.
    pub(crate) fn new(named: &Path) -> io::Result<Self> {
        Self::with_mode(named, 0o600)
    }

    /// Like [`NewFile::new`], with the permissions `mode` less the umask.
    fn with_mode(named: &Path, mode: u32) -> io::Result<Self> {
        let named = named.to_owned();
        match fs::symlink_metadata(&named) {
            Ok(meta) if meta.is_symlink() => {
                return Err(io::Error::other("it is a symbolic link, which is not followed"));
            }
            Ok(meta) if !meta.is_file() => return Ok(Self { named, scratch: None }),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let dir = named.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        let mut scratch = Builder::new();
        scratch.prefix(".rxe-");
        if let Some(permissions) = system::permissions(mode) {
            scratch.permissions(permissions);
        }
        match scratch.tempfile_in(dir) {
            Ok(file) => Ok(Self { named, scratch: Some(file.into_temp_path()) }),
            // The user may be allowed to write the file, but not its directory.
            Err(e) => match OpenOptions::new().append(true).open(&named) {
                Ok(_) => Ok(Self { named, scratch: None }),
                Err(_) => Err(without_path(&e)),
            },
        }
    }

    /// Creates a file with a unique name in the directory for temporary files.
    pub(crate) fn unique(prefix: &str, suffix: &str) -> io::Result<Self> {
        let scratch = Builder::new().prefix(prefix).suffix(suffix).tempfile();
        let scratch = scratch.map_err(|e| without_path(&e))?.into_temp_path();
        Ok(Self { named: scratch.to_path_buf(), scratch: Some(scratch) })
    }

    /// Returns the path to write to.
    pub(crate) fn path(&self) -> &Path {
        self.scratch.as_deref().unwrap_or(&self.named)
    }

    /// Replaces the old file with the written one. Without this call, the old file stays.
    pub(crate) fn finish(self) -> io::Result<PathBuf> {
        if let Some(scratch) = self.scratch {
            scratch.persist(&self.named)?;
        }
        Ok(self.named)
    }
}

/// Returns the error without the temporary file's path, which the user did not name.
fn without_path(e: &io::Error) -> io::Error {
    let text = e.to_string();
    let text = text.split(" at path ").next().unwrap_or_default();
    io::Error::new(e.kind(), text)
}

/// The identity and the permissions of files.
#[cfg(unix)]
mod system {
    use std::fs::{self, File};
    use std::io;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::is_standard;

    pub(super) fn permissions(mode: u32) -> Option<fs::Permissions> {
        Some(fs::Permissions::from_mode(mode))
    }

    pub(super) fn mode(about: &fs::Metadata) -> u32 {
        about.permissions().mode() & 0o777
    }

    /// Returns whether the input is a regular file and the output is the same file. Each may be `-`.
    pub(super) fn is_same_file(input: &Path, output: &Path) -> io::Result<bool> {
        let (input, output) = (about(input, io::stdin())?, about(output, io::stdout())?);
        let id = |meta: &fs::Metadata| (meta.dev(), meta.ino());
        Ok(input.is_file() && id(&input) == id(&output))
    }

    /// Returns the metadata of the file at `path`, or of `standard` for `-`.
    fn about(path: &Path, standard: impl AsFd) -> io::Result<fs::Metadata> {
        match is_standard(path) {
            true => File::from(standard.as_fd().try_clone_to_owned()?).metadata(),
            false => fs::metadata(path),
        }
    }
}

/// The identity of files on systems where files have no permissions of this kind, and where hard
/// links and standard input and output are not recognized.
#[cfg(not(unix))]
mod system {
    use std::path::Path;
    use std::{fs, io};

    use super::is_standard;

    pub(super) fn permissions(_: u32) -> Option<fs::Permissions> {
        None
    }

    pub(super) fn mode(_: &fs::Metadata) -> u32 {
        0
    }

    /// Returns whether the input is a regular file and the output is the same file.
    pub(super) fn is_same_file(input: &Path, output: &Path) -> io::Result<bool> {
        if is_standard(input) || is_standard(output) {
            return Ok(false);
        }
        let (input, output) = (fs::canonicalize(input)?, fs::canonicalize(output)?);
        Ok(input == output && input.is_file())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn an_error_names_no_file_that_the_user_has_not_named() {
        let error = NewFile::new(Path::new("/nonexistent/capture")).err().unwrap();
        assert_eq!(error.to_string(), "No such file or directory (os error 2)");
    }

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
    fn a_link_is_refused_and_what_is_no_regular_file_is_written_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        let refused = NewFile::new(&link).err().expect("it may be someone else's");
        assert_eq!(refused.to_string(), "it is a symbolic link, which is not followed");
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");

        let null = NewFile::new(Path::new("/dev/null")).unwrap();
        assert_eq!(null.path(), Path::new("/dev/null"));
    }

    #[test]
    fn a_report_replaces_a_file_follows_no_link_and_leaves_the_mode_of_an_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, new) =
            (dir.path().join("file"), dir.path().join("link"), dir.path().join("new"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o626)).unwrap();
        symlink(&file, &link).unwrap();
        let refused = write_file(&link, "report").unwrap_err().to_string();
        let said = ": it is a symbolic link, which is not followed: name another file";
        assert_eq!(refused, format!("cannot write {}{said}", link.display()));
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        write_file(&file, "report").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "report");
        let mode = |path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&file), 0o626);
        // The mode equals that of any other new file.
        write_file(&new, "report").unwrap();
        let plain = dir.path().join("plain");
        fs::write(&plain, "").unwrap();
        assert_eq!(mode(&new), mode(&plain));
        write_file(Path::new("/dev/null"), "report").unwrap();
    }

    #[test]
    fn an_output_that_is_the_input_is_refused_under_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let named = |name: &str| dir.path().join(name);
        let (file, hard, soft) = (named("file"), named("hard"), named("soft"));
        fs::write(&file, "packets").unwrap();
        fs::hard_link(&file, &hard).unwrap();
        symlink(&file, &soft).unwrap();
        let again = dir.path().join(".").join("file");
        for (input, output) in
            [(&file, &hard), (&file, &soft), (&soft, &file), (&hard, &file), (&again, &hard)]
        {
            let refused = check_apart(input, output).unwrap_err();
            assert_eq!(refused.code(), 2);
            let (input, output) = (input.display(), output.display());
            let said = "which is read: name another file for the output";
            assert_eq!(
                refused.to_string(),
                format!("{output} is the same file as {input}, {said}")
            );
        }
        let refused = check_apart(&file, &file).unwrap_err().to_string();
        let said = "would be read and written over: name another file for the output";
        assert_eq!(refused, format!("{} {said}", file.display()));

        fs::write(named("other"), "packets").unwrap();
        check_apart(&file, &named("other")).unwrap();
        check_apart(&file, &named("new")).unwrap();
        check_apart(&named("new"), &file).unwrap();
        let null = Path::new("/dev/null");
        check_apart(null, null).unwrap();
    }

    #[test]
    fn only_its_owner_may_read_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = NewFile::new(&dir.path().join("capture")).unwrap().finish().unwrap();
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
    }
}
