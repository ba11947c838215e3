//! Downloads Debian packages, mostly kernels, without touching the machine's own apt state.
//!
//! A private apt configuration (its own source list, lists and cache) names the suites that contain
//! the kernel. The mirror is the one in the machine's own sources; apt verifies every download
//! against Debian's keyring. Packages are downloaded, never installed.

use super::{Error, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Debian's releases, each with its kernel version. Newer kernels are in backports.
const RELEASES: [(&str, &str); 3] = [("bullseye", "5.10"), ("bookworm", "6.1"), ("trixie", "6.12")];

/// The suite with kernels newer than those of any release.
const BACKPORTS: &str = "trixie-backports";

/// A downloaded kernel: the image package's name and the files to unpack.
pub(super) struct Packages {
    pub(super) name: String,
    pub(super) files: Vec<PathBuf>,
}

/// Downloads the newest kernel of `version` (such as `6.1`) for a Debian architecture into `dir`.
///
/// # Errors
/// [`Error::Missing`] with one line about what the machine's sources do not offer.
pub(super) fn fetch(version: &str, arch: &str, dir: &Path) -> Result<Packages> {
    let release = RELEASES.iter().find(|(_, v)| *v == version).map(|(r, _)| *r);
    let apt = Apt::new(release, version, arch, true, dir)?;
    let update = apt.update()?;
    let names = apt.candidates(version, arch)?;
    for name in &names {
        // Newer kernels are split: the image package only depends on the others.
        let Some(depends) = apt.depends(name)? else { continue };
        let parts = depends.into_iter().filter(|d| {
            (d.starts_with("linux-binary-") || d.starts_with("linux-modules-"))
                && d.ends_with(&format!("-{arch}"))
        });
        let wanted: Vec<String> = std::iter::once(name.clone()).chain(parts).collect();
        let files = apt.download(&wanted)?;
        return Ok(Packages { name: name.clone(), files });
    }
    let suites = apt.suites.join(", ");
    let why = update.map(|e| format!(" ({e})")).unwrap_or_default();
    Err(Error::Missing(format!("no package linux-image-{version}*-{arch} in {suites}{why}")))
}

struct Apt {
    dir: PathBuf,
    options: Vec<String>,
    suites: Vec<String>,
}

/// Downloads the newest packages with these names from a Debian release into `dir`. `release` is a
/// name such as `bullseye`, `arch` a Debian architecture.
///
/// # Errors
/// [`Error::Missing`] with one line about what the machine's sources do not offer.
/// [`Error::Missing`] with one line on what the machine's sources do not offer.
pub(crate) fn download(
    release: &str,
    arch: &str,
    names: &[&str],
    dir: &Path,
) -> Result<Vec<PathBuf>> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let with = |updates| {
        let apt = Apt::new(Some(release), release, arch, updates, dir)?;
        apt.update()?;
        apt.download(&names)
    };
    // Some mirrors list updates for an architecture that they do not have.
    with(true).or_else(|why| with(false).map_err(|_| why))
}

/// Downloads the packages of the newest kernel of a version, like [`fetch`].
///
/// # Errors
/// As for [`download`].
pub(crate) fn download_kernel(version: &str, arch: &str, dir: &Path) -> Result<Vec<PathBuf>> {
    fetch(version, arch, dir).map(|packages| packages.files)
}

/// Returns the Debian mirror in the machine's own sources.
///
/// # Errors
/// [`Error::Missing`] if the sources name none.
pub(crate) fn mirror() -> Result<String> {
    mirrors().map(|(base, _)| base.into_iter().next().unwrap_or_default())
}

impl Apt {
    /// Creates a configuration for a release, with or without its updates, or for [`BACKPORTS`].
    /// `name` is the name of its state in `dir`.
    fn new(
        release: Option<&str>,
        name: &str,
        arch: &str,
        updates: bool,
        dir: &Path,
    ) -> Result<Self> {
        let (base, security) = mirrors()?;
        let mut sources = Vec::new();
        let mut suites = Vec::new();
        let mut add = |uri: &str, suite: String| {
            let by = if Path::new(KEYRING).exists() { KEYRING } else { "" };
            let by = if by.is_empty() { String::new() } else { format!("[signed-by={by}] ") };
            sources.push(format!("deb {by}{uri} {suite} main\n"));
            suites.push(suite);
        };
        for uri in &base {
            match release {
                Some(r) => {
                    add(uri, r.into());
                    if updates {
                        add(uri, format!("{r}-updates"));
                    }
                }
                None => add(uri, BACKPORTS.into()),
            }
        }
        if let Some(r) = release.filter(|_| updates) {
            for uri in &security {
                add(uri, format!("{r}-security"));
            }
        }
        suites.sort();
        suites.dedup();
        let make = |p: &Path| fs::create_dir_all(p).map_err(|e| Error::io(p, &e));
        // The lists of two kernels that are downloaded simultaneously must not mix.
        let state = dir.join(format!("apt-{name}"));
        make(&state.join("lists/partial"))?;
        make(&state.join("cache/archives/partial"))?;
        let list = state.join("sources.list");
        fs::write(&list, sources.concat()).map_err(|e| Error::io(&list, &e))?;
        // An empty status file: versions installed on this machine are no candidates.
        let installed = state.join("status");
        fs::write(&installed, "").map_err(|e| Error::io(&installed, &e))?;
        let options = [
            format!("Dir::State::status={}", installed.display()),
            format!("Dir::Etc::sourcelist={}", list.display()),
            "Dir::Etc::sourceparts=-".into(),
            "Dir::Etc::preferences=-".into(),
            "Dir::Etc::preferencesparts=-".into(),
            format!("Dir::State::Lists={}", state.join("lists").display()),
            format!("Dir::Cache={}", state.join("cache").display()),
            format!("APT::Architecture={arch}"),
            format!("APT::Architectures::={arch}"),
            "APT::Sandbox::User=root".into(),
            "Acquire::Languages=none".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "Acquire::http::Timeout=20".into(),
            "Acquire::https::Timeout=20".into(),
            "Acquire::Retries=1".into(),
            // Suites that are no longer updated expire; their signatures are still valid.
            "Acquire::Check-Valid-Until=false".into(),
        ];
        let options = options.into_iter().flat_map(|o| ["-o".to_owned(), o]).collect();
        Ok(Self { dir: dir.to_owned(), options, suites })
    }

    /// Reads the suites' package lists. A missing suite is not yet a failure; the first error
    /// message is returned for the case that no package is found.
    fn update(&self) -> Result<Option<String>> {
        let out = self.run("apt-get", &["update"])?;
        let complaint = out.stderr.lines().find(|l| l.starts_with("E:") || l.starts_with("W:"));
        Ok(complaint.map(str::to_owned))
    }

    /// Returns the names of the ordinary (not cloud, rt, debug or unsigned) images, newest first.
    fn candidates(&self, version: &str, arch: &str) -> Result<Vec<String>> {
        let prefix = format!("linux-image-{version}.");
        let out = self.run("apt-cache", &["pkgnames", &prefix])?;
        let plain = |name: &&str| {
            name.strip_suffix(arch).and_then(|n| n.strip_suffix('-')).is_some_and(|n| {
                !n.ends_with("-cloud") && !n.ends_with("-rt") && !n.contains("deb11")
            })
        };
        let mut names: Vec<String> = out.stdout.lines().filter(plain).map(Into::into).collect();
        names.sort_by_key(|n| std::cmp::Reverse(version_key(n)));
        Ok(names)
    }

    /// Returns the dependencies of a package, or `None` if the package is only mentioned, not
    /// offered.
    fn depends(&self, name: &str) -> Result<Option<BTreeSet<String>>> {
        let out = self.run("apt-cache", &["show", "--no-all-versions", name])?;
        if !out.stdout.contains("\nFilename:") {
            return Ok(None);
        }
        let line = out.stdout.lines().find_map(|l| l.strip_prefix("Depends:")).unwrap_or_default();
        let first = |d: &str| d.split_whitespace().next().map(str::to_owned);
        Ok(Some(line.split(',').filter_map(first).collect()))
    }

    fn download(&self, names: &[String]) -> Result<Vec<PathBuf>> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let out = self.run("apt-get", &[&["download"], names.as_slice()].concat())?;
        let mut files = Vec::new();
        for name in names {
            let entries = fs::read_dir(&self.dir).map_err(|e| Error::io(&self.dir, &e))?;
            let found = entries.flatten().map(|e| e.path()).find(|p| {
                let file = p.file_name().map(|f| f.to_string_lossy().into_owned());
                file.is_some_and(|f| f.starts_with(&format!("{name}_")) && f.ends_with(".deb"))
            });
            let why = || format!("cannot download {name}: {}", out.stderr.trim());
            files.push(found.ok_or_else(|| Error::Missing(why()))?);
        }
        Ok(files)
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<Text> {
        let mut cmd = Command::new(program);
        cmd.args(&self.options).args(args).current_dir(&self.dir).env("LC_ALL", "C");
        text(program, cmd)
    }
}

struct Text {
    stdout: String,
    stderr: String,
}

fn text(program: &str, mut cmd: Command) -> Result<Text> {
    let out = cmd.stdin(Stdio::null()).output().map_err(|e| Error::program(program, &e))?;
    Ok(Text {
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}

/// Returns the Debian mirrors in the machine's own sources: for releases, and for security.
fn mirrors() -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    // Unlike `indextargets` this works before any list has been downloaded.
    let mut cmd = Command::new("apt-get");
    cmd.args(["--print-uris", "-o", "Dir::State::Lists=/nonexistent", "update"]);
    let out = text("apt-get", cmd)?;
    let (mut base, mut security) = (BTreeSet::new(), BTreeSet::new());
    for line in out.stdout.lines() {
        let Some(uri) = line.split('\'').nth(1) else { continue };
        let Some((site, rest)) = uri.split_once("/dists/") else { continue };
        let suite = rest.split('/').next().unwrap_or_default();
        if suite.ends_with("-security") || rest.contains("/updates/") {
            security.insert(site.to_owned());
        } else if is_debian(suite) {
            base.insert(site.to_owned());
        }
    }
    if base.is_empty() {
        let what =
            "the machine's apt sources name no Debian mirror; name a kernel's .deb or folder";
        return Err(Error::Missing(what.into()));
    }
    if security.is_empty() {
        security = base.iter().map(|b| format!("{b}-security")).collect();
    }
    Ok((base, security))
}

fn is_debian(suite: &str) -> bool {
    let name = suite.split('-').next().unwrap_or_default();
    let others = ["stable", "oldstable", "oldoldstable", "testing", "unstable", "sid", "forky"];
    RELEASES.iter().any(|(r, _)| *r == name) || others.contains(&name)
}

/// Returns a key that orders names by the numbers in them.
pub(super) fn version_key(name: &str) -> Vec<u64> {
    let numbers = name.split(|c: char| !c.is_ascii_digit()).filter(|s| !s.is_empty());
    numbers.map(|s| s.parse().unwrap_or(u64::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_ordered_by_their_numbers() {
        let mut names = ["linux-image-7.2.9+deb13-amd64", "linux-image-7.2.12+deb13-amd64"];
        names.sort_by_key(|n| std::cmp::Reverse(version_key(n)));
        assert_eq!(names[0], "linux-image-7.2.12+deb13-amd64");
    }

    #[test]
    fn suites_of_other_distributions_are_not_debian() {
        assert!(is_debian("trixie-updates"));
        assert!(!is_debian("noble-updates"));
    }
}
