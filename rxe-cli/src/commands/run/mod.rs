//! `rxe run` and `rxe env`: run unmodified verbs programs on this engine.

mod embedded;
mod environment;
pub(super) mod library;
mod program;
mod rdma;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::Error;
use environment::{PRELOAD, Settings};

/// Run a program that uses libibverbs, with this engine instead of a kernel's devices
///
/// Each network interface with an address is a device (`rxe devices` lists them). Nothing has to be
/// installed or loaded, and with the default backend no privileges are needed.
///
/// Exit code: the program's; 127 if there is no such program, 126 if it cannot be executed or nothing can be
/// preloaded into it, 1 or 2 if an option or the installation is wrong.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// The program and its arguments; put `--` before them
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// The variable with the options of ThreadSanitizer.
const TSAN: &str = "TSAN_OPTIONS";

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let mut variables = self.settings.variables()?;
        let (name, arguments) = self.program.split_first().expect("clap requires one");
        // Search with the PATH that the program will have.
        let path = variables.iter().find(|(name, _)| *name == "PATH").map(|(_, value)| value);
        let path = program::find(name, path.map_or(OsStr::new(""), |path| path))?;
        program::check(&path)?;
        if let Some(runtime) = program::sanitizer(&path) {
            for (_, preloaded) in variables.iter_mut().filter(|(name, _)| *name == PRELOAD) {
                let behind = std::mem::replace(preloaded, runtime.clone().into());
                preloaded.push(":");
                preloaded.push(behind);
            }
            if runtime.starts_with("libtsan") {
                // ThreadSanitizer does not see the accesses of a library that was built without it,
                // and would report data that the library passes between threads as races. Options
                // that are already set come later and take precedence.
                let mut options = OsString::from("ignore_noninstrumented_modules=1:");
                options.push(env::var_os(TSAN).unwrap_or_default());
                variables.push((TSAN, options));
            }
        }
        let mut command = Command::new(&path);
        command.arg0(name).args(arguments).envs(variables);
        // `exec` returns only if it fails.
        let failed = command.exec();
        Err(Error::new(format!("cannot run {}", path.display()), failed).not_executable())
    }
}

/// Print the variables that make a shell's programs use this engine: eval "$(rxe env)"
///
/// A program built with -fsanitize=address or =thread must load the sanitizer's library first. `rxe run`
/// does this itself; here use LD_PRELOAD=libasan.so.8:$LD_PRELOAD program (`ldd program` shows the
/// library's name). ThreadSanitizer also needs TSAN_OPTIONS=ignore_noninstrumented_modules=1.
#[derive(clap::Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    settings: Settings,
}

impl EnvArgs {
    pub(crate) fn run(self) -> Result<(), Error> {
        let mut text = String::new();
        for (name, value) in self.settings.variables()? {
            let value = value.to_string_lossy().replace('\'', r"'\''");
            text += &format!("export {name}='{value}'\n");
        }
        crate::common::print(&text)
    }
}

/// The file name of the preload library.
pub(crate) const LIBRARY_NAME: &str = "librxe_preload.so";

/// Returns whether `LD_PRELOAD` can name this file.
fn loader_takes(library: &Path) -> bool {
    !library.to_string_lossy().contains([':', ' '])
}

/// Returns the directory of the running program.
fn own_dir() -> Result<PathBuf, Error> {
    Ok(own_path()?.parent().map(PathBuf::from).unwrap_or_default())
}

fn own_path() -> Result<PathBuf, Error> {
    let exe = env::current_exe().and_then(|path| path.canonicalize());
    exe.map_err(|e| Error::new("cannot find out where rxe itself is", e))
}
