//! Clean systems: archives of root directories that mmdebstrap creates from a release on the
//! machine's own mirror, and that are cached.

use super::digest;
use crate::debs::unpack;
use crate::vm::{Error, Result, cache, cached, download, mirror};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's releases 11, 12 and 13, and Ubuntu's 22.04 and 24.04.
pub const RELEASES: [&str; 5] = ["bullseye", "bookworm", "trixie", "jammy", "noble"];

/// The releases of Ubuntu, which Debian's mirrors do not have.
const UBUNTU: [&str; 2] = ["jammy", "noble"];

/// The environment variable that names an Ubuntu mirror.
const UBUNTU_MIRROR: &str = "RXE_UBUNTU_MIRROR";

/// The keyring that verifies Ubuntu, if its package is installed. Debian has this package since
/// `trixie`.
const UBUNTU_KEYRING: &str = "usr/share/keyrings/ubuntu-archive-keyring.gpg";
const KEYRING_PACKAGE: (&str, &str) = ("trixie", "ubuntu-keyring");

/// The release on which checkouts are built.
pub const RUST_ON: &str = "trixie";

/// The prerequisites for building a checkout: this machine's Rust, and the checkout.
pub struct Rust<'a> {
    /// The directory that contains `bin/cargo`.
    pub toolchain: PathBuf,
    /// The registry of cargo, with the crates that the checkout depends on.
    pub registry: PathBuf,
    /// Creates the checkout in a directory.
    pub clone: &'a dyn Fn(&Path) -> Result<()>,
}

/// The packages of a system in addition to apt and the essential packages.
pub(super) struct System<'a> {
    /// The name of the system.
    pub(super) name: &'a str,
    /// The installed packages.
    pub(super) packages: &'a [&'a str],
    /// Packages that are not installed, but that apt can install without a network.
    pub(super) later: &'a [&'a str],
}

impl System<'_> {
    /// The system of a user who runs programs: a program of rdma-core, one that loads libibverbs by
    /// itself, and a manual page reader.
    pub(super) const USER: System<'static> =
        System { name: "user", packages: &["ibverbs-utils", "python3", "man-db"], later: &[] };

    /// Returns the archive of the system's root on this release. Creates it, unless it is in the
    /// cache.
    ///
    /// # Errors
    /// [`Error::Missing`] if this machine cannot create it.
    pub(super) fn archive(&self, release: &str) -> Result<PathBuf> {
        let Self { name, packages, later } = self;
        let lists = [packages.join(","), later.join(" ")];
        let digest = digest(lists.join(";").as_bytes());
        let digest = digest.trim_start_matches("sha256:").get(..8).unwrap_or_default();
        let done = cache()?.join(format!("root-{release}-{name}-{digest}.tar"));
        if done.exists() {
            return Ok(done);
        }
        let part = done.with_extension("part.tar");
        let mut mmdebstrap = Command::new("mmdebstrap");
        mmdebstrap.args(["--quiet", "--variant=apt"]);
        if !packages.is_empty() {
            mmdebstrap.arg(format!("--include={}", lists[0]));
        }
        if !later.is_empty() {
            // Includes recommended packages, as apt does by default. mmdebstrap turns them off.
            let fetch = "apt-get -o APT::Install-Recommends=true install --yes --download-only";
            mmdebstrap.arg(format!("--customize-hook=chroot \"$1\" {fetch} {}", lists[1]));
            mmdebstrap.arg("--skip=cleanup/apt");
        }
        // Releases that are no longer updated expire; their signatures are still valid.
        mmdebstrap.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
        let from = if UBUNTU.contains(&release) {
            let from = env::var(UBUNTU_MIRROR).map_err(|_| {
                Error::Missing(format!("{UBUNTU_MIRROR} names no mirror of Ubuntu"))
            })?;
            mmdebstrap.args(["--components=main,universe", "--keyring"]).arg(ubuntu_keyring()?);
            from
        } else {
            mirror()?
        };
        mmdebstrap.arg(release).arg(&part).arg(from);
        let out = mmdebstrap.output();
        let out = out.map_err(|e| Error::Missing(format!("mmdebstrap (a Debian package): {e}")))?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr);
            let last = said.lines().last().unwrap_or_default();
            return Err(Error::Missing(format!("mmdebstrap makes no {release}: {last}")));
        }
        let renamed = fs::rename(&part, &done);
        renamed.map_err(|e| Error::Failed(format!("{}: {e}", done.display())))?;
        Ok(done)
    }
}

/// Returns the keys that verify Ubuntu's releases: those of this machine, or else of Debian's
/// package, which apt verifies.
fn ubuntu_keyring() -> Result<PathBuf> {
    let own = Path::new("/").join(UBUNTU_KEYRING);
    if own.exists() {
        return Ok(own);
    }
    let done = cache()?.join("ubuntu-keyring");
    cached(&done, |scratch| {
        let (release, package) = KEYRING_PACKAGE;
        let unpacked = scratch.join("unpacked");
        for deb in download(release, "amd64", &[package], scratch)? {
            unpack(&deb, &unpacked)?;
        }
        Ok(unpacked)
    })?;
    Ok(done.join(UBUNTU_KEYRING))
}

/// Unpacks an archive into a directory that is removed when it is dropped.
pub(super) fn unpacked(archive: &Path) -> Result<tempfile::TempDir> {
    let root = tempfile::Builder::new().prefix("rxe-root-").tempdir();
    let root = root.map_err(|e| Error::Failed(format!("a temporary directory: {e}")))?;
    let mut tar = Command::new("tar");
    tar.args(["--no-same-owner", "--exclude=./dev/*", "-xpf"]).arg(archive);
    succeed("tar", tar.arg("-C").arg(root.path()))?;
    Ok(root)
}

/// Runs a command and returns its output if it succeeds.
pub(super) fn succeed(what: &str, command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let out = command.output().map_err(|e| Error::Missing(format!("{program}: {e}")))?;
    let [said, errors] = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    if out.status.success() {
        return Ok(said);
    }
    Err(Error::Failed(format!("{what}: {}\n{said}{errors}", out.status)))
}
