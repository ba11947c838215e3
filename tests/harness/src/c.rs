//! The C programs of the tests, compiled like any verbs program: with the installed headers and
//! libraries.

use crate::vm::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The root of the sources, relative to which the programs are named.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");

/// The programs that follow the structure of tutorials.
pub const TUTORIALS: [&str; 3] =
    ["tests/c/tutorial/memory.c", "tests/c/tutorial/events.c", "tests/c/tutorial/described.c"];

/// Compiled programs, in a directory that is removed when this is dropped.
#[derive(Debug)]
pub struct Compiled {
    dir: TempDir,
}

impl Compiled {
    /// Compiles programs and links them with libibverbs and librdmacm. The programs are named by
    /// their paths from the root of the sources, such as `tests/c/abi.c`.
    ///
    /// # Errors
    /// [`Error::Missing`] if this machine has no compiler or no headers.
    pub fn new(names: &[&str]) -> Result<Self> {
        Self::linked(names, &["-libverbs", "-lrdmacm", "-lpthread"])
    }

    /// Like [`Compiled::new`], but links only with these libraries.
    ///
    /// # Errors
    /// As for [`Compiled::new`].
    pub fn linked(names: &[&str], libraries: &[&str]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("rxe-c-").tempdir();
        let dir = dir.map_err(|e| Error::Failed(format!("a directory for C programs: {e}")))?;
        let this = Self { dir };
        names.iter().try_for_each(|name| this.compile(name, libraries)).map(|()| this)
    }

    fn compile(&self, name: &str, libraries: &[&str]) -> Result<()> {
        let source = Path::new(SOURCES).join(name);
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(self.path(name)).arg(source);
        cc.args(libraries);
        let out = cc.output().map_err(|e| Error::Missing(format!("cc: {e}")))?;
        let said = String::from_utf8_lossy(&out.stderr);
        if out.status.success() {
            return Ok(());
        }
        let missing = [
            "infiniband/verbs.h: No such",
            "rdma/rdma_cma.h: No such",
            "rdma/rdma_verbs.h: No such",
            "cannot find -libverbs",
            "cannot find -lrdmacm",
            "cannot find -lasan",
            "cannot find -ltsan",
            "libasan_preinit.o",
            "libtsan_preinit.o",
        ];
        Err(match missing.iter().find(|part| said.contains(**part)) {
            Some(part) => Error::Missing(format!(
                "libibverbs-dev, librdmacm-dev, or the compiler's sanitizers ({part})"
            )),
            None => Error::Failed(format!("{name}: {said}")),
        })
    }

    /// Returns the path of the program compiled from a source.
    pub fn path(&self, name: &str) -> PathBuf {
        let stem = Path::new(name).file_stem().unwrap_or_default();
        self.dir.path().join(stem)
    }
}
