//! Compiles the programs to package. Equal sources and Rust versions give equal bytes, in any
//! directory.

use super::Arch;
use crate::libs;
use crate::vm::{Error, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to compile, and for which target.
pub struct Build<'a> {
    /// The target architecture.
    pub arch: &'static Arch,
    /// The checkout.
    pub source: &'a Path,
    /// The target directory of cargo.
    pub target: &'a Path,
    /// The C library to link with ([`super::sysroot()`]), or `None` for the machine's own.
    pub sysroot: Option<&'a Path>,
}

/// Compiles `rxe`, the preload library and the versioned libraries. Returns their directory.
///
/// # Errors
/// The compilation fails.
pub fn build(what: &Build<'_>) -> Result<PathBuf> {
    let arch = what.arch;
    let linker = what.sysroot.map_or_else(Vec::new, |root| linked_with(arch, root));
    let mut flags: Vec<String> = paths(what)
        .into_iter()
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .collect();
    flags.extend(linker.iter().map(|flag| format!("-Clink-arg={flag}")));
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--target", arch.target]);
    cargo.args(["--package", "rxe-cli", "--package", "rxe-preload", "--target-dir"]);
    cargo.arg(what.target).current_dir(what.source);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    if !arch.is_own() {
        cargo.env(arch.variable("LINKER"), arch.compiler());
    }
    if !cargo.status().is_ok_and(|status| status.success()) {
        let hint = match arch.is_own() {
            true => String::new(),
            false => format!(
                " (does it have `rustup target add {}` and Debian's {}?)",
                arch.target,
                arch.packages()
            ),
        };
        return Err(Error::Failed(format!("rxe does not build{hint}")));
    }
    let built = what.target.join(arch.target).join("release");
    libs::build_with(&built, &arch.compiler(), &linker)?;
    Ok(built)
}

/// Returns the options with which a C compiler takes headers and libraries from another root
/// directory.
fn linked_with(arch: &Arch, root: &Path) -> Vec<String> {
    let root = root.display();
    // Without these options, Debian's gcc finds the libraries next to its own first.
    let beside = ["usr/lib", "lib"].map(|dir| format!("-B{root}/{dir}/{}/", arch.triplet));
    [vec![format!("--sysroot={root}")], beside.into()].concat()
}

/// Returns the directories of this machine, with the paths that replace them in panic messages and
/// line tables.
fn paths(what: &Build<'_>) -> Vec<(PathBuf, String)> {
    let mut paths = vec![(what.source.to_owned(), "/rxe".to_owned())];
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    // The directory of each registry has a name derived from the registry's address.
    let sources = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    let sources = sources.into_iter().flatten().flatten().map(|entry| entry.path());
    paths.extend(sources.map(|path| (path, "/cargo".to_owned())));
    // The last matching entry applies.
    paths.push((what.target.to_owned(), "/target".to_owned()));
    paths
}
