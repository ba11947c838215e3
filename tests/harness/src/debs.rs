//! Programs of Debian packages that must not be installed, because they would start servers. The
//! packages are downloaded and unpacked instead.

use crate::vm::{Error, Result, cache, cached, download};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages that are unpacked into one directory.
#[derive(Debug)]
pub struct Unpacked {
    dir: PathBuf,
}

impl Unpacked {
    /// Downloads packages of this machine's Debian release, unless they are cached. They are stored
    /// under `name`.
    ///
    /// # Errors
    /// [`Error::Missing`] if this machine is not Debian, or the packages cannot be downloaded.
    pub fn fetch(name: &str, packages: &[&str]) -> Result<Self> {
        let release = release()?;
        let dir = cache()?.join("packages").join(format!("{name}-{release}"));
        cached(&dir, |scratch| {
            let unpacked = scratch.join("unpacked");
            for deb in download(&release, "amd64", packages, scratch)? {
                unpack(&deb, &unpacked)?;
            }
            Ok(unpacked)
        })?;
        Ok(Self { dir })
    }

    /// Returns the path of a file or directory of the packages.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns a line of a shell script that extends the search paths. It appends the directories
    /// of the programs and libraries.
    pub fn variables(&self) -> String {
        let below = |places: &[&str]| {
            let places = places.iter().map(|place| self.path(place).display().to_string());
            places.collect::<Vec<_>>().join(":")
        };
        format!(
            "export PATH=$PATH:{} LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH",
            below(&["usr/sbin", "sbin", "usr/bin"]),
            below(&["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]),
        )
    }
}

/// Unpacks a package into a directory that may contain others.
///
/// # Errors
/// [`Error::Missing`] without dpkg.
pub(crate) fn unpack(deb: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(|e| Error::Failed(format!("{}: {e}", to.display())))?;
    let out = Command::new("dpkg-deb").arg("-x").arg(deb).arg(to).output();
    let out = out.map_err(|e| Error::Missing(format!("dpkg-deb: {e}")))?;
    if out.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&out.stderr);
    Err(Error::Failed(format!("{}: {}", deb.display(), why.trim())))
}

/// Returns the Debian release of this machine.
fn release() -> Result<String> {
    let about = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| about.lines().find_map(|line| line.strip_prefix(key));
    match (value("ID="), value("VERSION_CODENAME=")) {
        (Some("debian"), Some(name)) => Ok(name.to_owned()),
        _ => Err(Error::Missing("its packages are fetched on Debian only".into())),
    }
}
