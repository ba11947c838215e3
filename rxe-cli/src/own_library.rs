//! Keeps the preload library out of `rxe` itself.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::commands::LIBRARY_NAME;

/// Restarts this process without rxe's preload library if `LD_PRELOAD` names it.
/// The variables of `rxe env` preload it in a whole shell. With it, `rxe doctor` would see rxe's
/// devices in /sys and take them for the kernel's.
pub(crate) fn leave() {
    let Ok(all) = env::var("LD_PRELOAD") else { return };
    let is_own = |path: &&str| Path::new(path).file_name() == Some(LIBRARY_NAME.as_ref());
    let (own, others): (Vec<&str>, Vec<&str>) =
        all.split([':', ' ']).filter(|path| !path.is_empty()).partition(is_own);
    if own.is_empty() {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    let mut args = env::args_os();
    let mut again = Command::new(program);
    again.arg0(args.next().unwrap_or_default()).args(args).env("LD_PRELOAD", others.join(":"));
    // If exec fails, this process continues with the library.
    let _ = again.exec();
}
