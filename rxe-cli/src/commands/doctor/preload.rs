//! Whether `rxe run` finds its library, and whether the loader takes it.

use std::env;
use std::path::Path;
use std::process::Command;

use super::super::run::library;
use super::finding::Finding;

const CHECK: &str = "library";

pub(super) fn check() -> Finding {
    let library = match library::find() {
        Ok(library) => library,
        Err(e) => return Finding::error(CHECK, &e),
    };
    match load(&library) {
        Ok(()) => Finding::ok(CHECK, format!("loads: {}", library.display())),
        Err(why) => {
            let todo = "install rxe and its library together: `cargo xtask install`";
            Finding::problem(CHECK, format!("{} does not load: {why}", library.display()), todo)
        }
    }
}

/// Starts this program with the library. The loader goes on without a library that it refuses, and
/// says so.
fn load(library: &Path) -> Result<(), String> {
    let own = env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(own);
    let out = command.arg("--version").env("LD_PRELOAD", library).output();
    let out = out.map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&out.stderr);
    if let Some(refusal) = said.lines().find(|line| line.contains("ld.so")) {
        // ERROR: ld.so: object 'PATH' from LD_PRELOAD cannot be preloaded (WHY): ignored.
        let why = refusal.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
        return Err(why.map_or(refusal, |(why, _)| why).to_owned());
    }
    if out.status.success() { Ok(()) } else { Err(format!("{} {}", out.status, said.trim())) }
}
