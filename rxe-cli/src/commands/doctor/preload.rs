//! Checks whether `rxe run` finds its libraries, and whether the loader accepts them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::run::library;
use super::finding::Finding;

const CHECK: &str = "library";

pub(super) fn check() -> Vec<Finding> {
    let library = match library::find() {
        Ok(library) => library,
        Err(e) => return vec![Finding::error(CHECK, &e)],
    };
    if let Err(why) = load(std::slice::from_ref(&library)) {
        let todo = "install rxe and its library together: `cargo xtask install`";
        let text = format!("{} does not load: {why}", library.display());
        return vec![Finding::problem(CHECK, text, todo)];
    }
    vec![Finding::ok(CHECK, format!("loads: {}", library.display())), by_name(&library)]
}

/// Checks the versioned libraries, for programs that load libibverbs themselves.
fn by_name(library: &Path) -> Finding {
    let missing = |why: String| {
        let text = format!("programs that load libibverbs by themselves find no device: {why}");
        Finding::note(CHECK, text, library::how_to_get_versioned())
    };
    let (dir, all) = library::versioned_in(library);
    if let Some(name) = library::VERSIONED.iter().find(|name| !dir.join(name).exists()) {
        return missing(format!("there is no {name} in {}", dir.display()));
    }
    match load(&[&[library.to_owned()], &all[..]].concat()) {
        Ok(()) => Finding::ok(CHECK, format!("for programs that load it: {}", dir.display())),
        Err(why) => missing(format!("what is in {} does not load: {why}", dir.display())),
    }
}

/// Runs this program with the libraries preloaded. The loader continues without a library that it
/// refuses, so its message on standard error is checked.
fn load(libraries: &[PathBuf]) -> Result<(), String> {
    let own = env::current_exe().map_err(|e| e.to_string())?;
    let all = env::join_paths(libraries).map_err(|e| e.to_string())?;
    let mut command = Command::new(own);
    let out = command.arg("--version").env("LD_PRELOAD", all).output();
    let out = out.map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&out.stderr);
    if let Some(refusal) = said.lines().find(|line| line.contains("ld.so")) {
        // ERROR: ld.so: object 'PATH' from LD_PRELOAD cannot be preloaded (WHY): ignored.
        let why = refusal.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
        return Err(why.map_or(refusal, |(why, _)| why).to_owned());
    }
    if out.status.success() { Ok(()) } else { Err(format!("{} {}", out.status, said.trim())) }
}
