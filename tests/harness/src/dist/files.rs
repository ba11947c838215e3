//! All installed files, below a prefix such as /usr.

use super::documents::documents;
use super::tree::{gzip, read};
use super::{Arch, Tree};
use crate::libs;
use crate::vm::{Error, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The paths of shell completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/rxe"),
    ("zsh", "share/zsh/site-functions/_rxe"),
    ("fish", "share/fish/vendor_completions.d/rxe.fish"),
];

/// The directories in which Wireshark looks for extcap programs: before version 4.6, and since. A
/// user's own directory is the first of them below `~/.local`. The program is a link to `rxe`.
pub(super) const EXTCAP: [(&str, &str); 2] = [
    ("lib/wireshark/extcap/rxe-extcap", "../../../bin/rxe"),
    ("libexec/wireshark/extcap/rxe-extcap", "../../../bin/rxe"),
];

/// Returns the files for a prefix: the programs built in `bin` for `arch`, and the documents of the
/// checkout `source`. The versioned libraries may be missing. On a machine of another architecture
/// `rxe` runs with the libraries below `root`.
///
/// # Errors
/// A file cannot be read, or the built `rxe` does not run.
/// If a file cannot be read, or the `rxe` that was built does not run.
pub fn files(bin: &Path, source: &Path, arch: &Arch, root: Option<&Path>) -> Result<Tree> {
    let rxe = |args: &[&str]| rxe(arch.command(&bin.join("rxe"), root), args);
    let mut tree = Tree::default();
    tree.program("bin/rxe", read(&bin.join("rxe"))?);
    tree.file("lib/rxe/librxe_preload.so", read(&bin.join("librxe_preload.so"))?);
    tree.file("lib/rxe/valgrind.supp", read(&source.join("rxe-preload/valgrind.supp"))?);
    for (library, link) in libs::names() {
        let versioned = bin.join(libs::DIRECTORY).join(library);
        if versioned.exists() {
            tree.file(&format!("lib/rxe/{}/{library}", libs::DIRECTORY), read(&versioned)?);
            tree.link(&format!("lib/rxe/{}/{link}", libs::DIRECTORY), library);
        }
    }
    for (path, program) in EXTCAP {
        tree.link(path, program);
    }
    for (shell, path) in COMPLETIONS {
        tree.file(path, rxe(&["completions", shell])?);
    }
    let pages = tempfile::tempdir().map_err(|e| Error::Failed(format!("a directory: {e}")))?;
    rxe(&["man", &pages.path().to_string_lossy()])?;
    for (name, bytes) in all(pages.path())? {
        tree.file(&format!("share/man/man1/{name}.gz"), gzip(&bytes)?);
    }
    tree.add("share/doc/rxe", documents(source)?);
    Ok(tree)
}

/// Runs a command of `rxe` and returns its output.
fn rxe(mut program: Command, args: &[&str]) -> Result<Vec<u8>> {
    let out = program.args(args).output();
    let name = program.get_program().to_string_lossy();
    let out = out.map_err(|e| Error::Failed(format!("{name}: {e}")))?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    Err(Error::Failed(String::from_utf8_lossy(&out.stderr).into_owned()))
}

/// Returns the files of a directory, without those of its subdirectories.
fn all(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let failed = |e| Error::Failed(format!("{}: {e}", dir.display()));
    let entries = fs::read_dir(dir).map_err(failed)?.flatten().map(|entry| entry.path());
    let files = entries.filter(|path| path.is_file()).map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, read(&path)?))
    });
    files.collect()
}
