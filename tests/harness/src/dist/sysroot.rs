//! The C library of the oldest supported Debian, to link with.
//!
//! A program that is linked with a newer glibc requires newer versions of its symbols (from 2.34
//! on, for example, all of pthread's), and does not start on an older system. Therefore everything
//! is linked with the stubs and the start files of Debian 11's packages, unpacked into the cache.

use super::Arch;
use crate::debs::unpack;
use crate::vm::{Error, Result, cache, cached, download};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The oldest supported glibc version.
pub const GLIBC: (u32, u32) = (2, 31);

/// The Debian release with this glibc.
const RELEASE: &str = "bullseye";

/// The packages with headers, start files and libraries.
const PACKAGES: [&str; 4] = ["libc6", "libc6-dev", "libgcc-s1", "linux-libc-dev"];

/// Returns the directory of the unpacked packages, and downloads them if they are not cached.
///
/// # Errors
/// [`Error::Missing`] if this machine has no Debian mirror or no dpkg.
pub fn sysroot(arch: &Arch) -> Result<PathBuf> {
    let done = cache()?.join(format!("sysroot-{RELEASE}-{}", arch.debian));
    cached(&done, |scratch| {
        let root = scratch.join("root");
        for deb in download(RELEASE, arch.debian, &PACKAGES, scratch)? {
            unpack(&deb, &root)?;
        }
        let failed = |e| Error::Failed(format!("{}: {e}", root.display()));
        relink(&root, &done).map_err(failed)?;
        Ok(root)
    })?;
    Ok(done)
}

/// Redirects absolute links to `done`, the final path of the directory.
fn relink(dir: &Path, done: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_symlink() {
            let target = fs::read_link(&path)?;
            if let Ok(inside) = target.strip_prefix("/") {
                fs::remove_file(&path)?;
                symlink(done.join(inside), &path)?;
            }
        } else if path.is_dir() {
            relink(&path, done)?;
        }
    }
    Ok(())
}
