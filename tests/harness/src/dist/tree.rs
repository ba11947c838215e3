//! Files to be packaged, in memory.

use crate::vm::{Error, Result};
use flate2::{Compression, GzBuilder};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Files by their paths, without a leading slash. Parent directories are implied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree(BTreeMap<String, Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    File { mode: u32, bytes: Vec<u8> },
    Link(String),
    Directory { mode: u32 },
}

impl Tree {
    /// Adds a file with mode 644.
    pub fn file(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.0.insert(path.to_owned(), Entry::File { mode: 0o644, bytes: bytes.into() });
    }

    /// Adds a file with mode 755.
    pub fn program(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.0.insert(path.to_owned(), Entry::File { mode: 0o755, bytes: bytes.into() });
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.0.insert(path.to_owned(), Entry::Link(target.to_owned()));
    }

    /// Adds a directory that is empty or has a mode other than 755.
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.0.insert(path.to_owned(), Entry::Directory { mode });
    }

    /// Adds all files of another tree below a directory.
    pub fn add(&mut self, below: &str, other: Self) {
        let at = |path: String| if below.is_empty() { path } else { format!("{below}/{path}") };
        self.0.extend(other.0.into_iter().map(|(path, entry)| (at(path), entry)));
    }

    /// Returns a tree with the paths changed by `to`.
    #[must_use]
    pub fn moved(self, to: impl Fn(&str) -> String) -> Self {
        Self(self.0.into_iter().map(|(path, entry)| (to(&path), entry)).collect())
    }

    /// Returns the paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the files with their contents, sorted by path.
    pub fn contents(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().filter_map(|(path, entry)| match entry {
            Entry::File { bytes, .. } => Some((path.as_str(), bytes.as_slice())),
            Entry::Link(_) | Entry::Directory { .. } => None,
        })
    }

    /// Returns the files with mutable contents.
    pub(super) fn contents_mut(&mut self) -> impl Iterator<Item = (&str, &mut Vec<u8>)> {
        self.0.iter_mut().filter_map(|(path, entry)| match entry {
            Entry::File { bytes, .. } => Some((path.as_str(), bytes)),
            Entry::Link(_) | Entry::Directory { .. } => None,
        })
    }

    /// Returns the total size of all files in bytes.
    pub fn size(&self) -> usize {
        self.contents().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Returns a tar archive: sorted, of user and group 0, each entry with time `epoch` (seconds
    /// since 1970) and each path with `prefix`.
    ///
    /// # Errors
    /// A path is too long for tar.
    pub fn tar(&self, prefix: &str, epoch: u64) -> Result<Vec<u8>> {
        self.write(prefix, epoch).map_err(|e| Error::Failed(format!("an archive: {e}")))
    }

    fn write(&self, prefix: &str, epoch: u64) -> io::Result<Vec<u8>> {
        let mut above = BTreeSet::new();
        for path in self.paths() {
            above.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
        }
        above.retain(|path| !self.0.contains_key(*path));
        let parent = Entry::Directory { mode: 0o755 };
        let mut all: BTreeMap<&str, &Entry> = above.into_iter().map(|p| (p, &parent)).collect();
        all.extend(self.0.iter().map(|(path, entry)| (path.as_str(), entry)));

        let mut tar = tar::Builder::new(Vec::new());
        for (path, entry) in all {
            let path = format!("{prefix}{path}");
            let mut header = tar::Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            header.set_username("root")?;
            header.set_groupname("root")?;
            header.set_mtime(epoch);
            header.set_size(0);
            match entry {
                Entry::File { mode, bytes } => {
                    header.set_mode(*mode);
                    header.set_size(bytes.len() as u64);
                    tar.append_data(&mut header, path, bytes.as_slice())?;
                }
                Entry::Link(target) => {
                    header.set_mode(0o777);
                    header.set_entry_type(tar::EntryType::Symlink);
                    tar.append_link(&mut header, path, target)?;
                }
                Entry::Directory { mode } => {
                    header.set_mode(*mode);
                    header.set_entry_type(tar::EntryType::Directory);
                    tar.append_data(&mut header, path + "/", io::empty())?;
                }
            }
        }
        tar.into_inner()
    }

    /// Writes the files below a directory. A file is replaced by a rename, so that programs that
    /// have the old file open keep it.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn install(&self, to: &Path) -> Result<()> {
        for (path, entry) in &self.0 {
            let at = to.join(path);
            write(&at, entry).map_err(|e| Error::Failed(format!("{}: {e}", at.display())))?;
        }
        Ok(())
    }
}

fn write(at: &Path, entry: &Entry) -> io::Result<()> {
    let dir = at.parent().unwrap_or(at);
    fs::create_dir_all(dir)?;
    match entry {
        Entry::Directory { mode } => {
            fs::create_dir_all(at)?;
            fs::set_permissions(at, Permissions::from_mode(*mode))
        }
        Entry::Link(target) => match symlink(target, at) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        },
        Entry::File { mode, bytes } => {
            let mut new = tempfile::NamedTempFile::new_in(dir)?;
            new.write_all(bytes)?;
            fs::set_permissions(new.path(), Permissions::from_mode(*mode))?;
            new.persist(at)?;
            Ok(())
        }
    }
}

/// Returns the contents of a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))
}

/// Compresses with gzip, without a name and a time.
///
/// # Errors
/// None in practice; the compressor's type requires them.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    let done = out.write_all(bytes).and_then(|()| out.finish());
    done.map_err(|e| Error::Failed(format!("gzip: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.program("bin/b", "2");
        tree.file("bin/a", "1");
        tree.link("lib/x", "../bin/a");
        tree.directory("tmp", 0o1777);
        tree
    }

    #[test]
    fn an_archive_depends_on_the_files_and_the_epoch_only() {
        let mut other = Tree::default();
        other.directory("tmp", 0o1777);
        other.link("lib/x", "../bin/a");
        other.file("bin/a", "1");
        other.program("bin/b", "2");
        let bytes = tree().tar("./", 7).unwrap();
        assert_eq!(bytes, other.tar("./", 7).unwrap());
        assert_ne!(bytes, tree().tar("./", 8).unwrap());
        assert_eq!(gzip(&bytes).unwrap(), gzip(&bytes).unwrap());
    }

    #[test]
    fn an_archive_has_each_entry_behind_its_directory() {
        let bytes = tree().tar("p/", 7).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 7));
            (entry.path().unwrap().display().to_string(), header.mode().unwrap())
        });
        let expected = [
            ("p/bin/", 0o755),
            ("p/bin/a", 0o644),
            ("p/bin/b", 0o755),
            ("p/lib/", 0o755),
            ("p/lib/x", 0o777),
            ("p/tmp/", 0o1777),
        ];
        assert_eq!(entries.collect::<Vec<_>>(), expected.map(|(p, m)| (p.to_owned(), m)));
    }

    #[test]
    fn what_is_installed_twice_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        tree().install(dir.path()).unwrap();
        let mut new = tree();
        new.file("bin/a", "new");
        new.install(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("lib/x")).unwrap(), "new");
        let mode = fs::metadata(dir.path().join("bin/b")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
    }
}
