//! `cargo xtask install`: installs a build of this checkout, for this user or for all.

use rxe_harness::checkout::{self, cargo};
use rxe_harness::dist::{self, Arch, Tree};
use rxe_harness::libs;
use rxe_harness::vm::{Error, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The destination.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory with `bin`, `lib` and `share` [default: ~/.local]
    #[arg(long, value_name = "DIRECTORY")]
    prefix: Option<PathBuf>,
    /// Install nothing: only write a wheel into this directory, which is how `pip install .` builds
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "prefix")]
    wheel: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(dir) = &args.wheel {
        return wheel(dir);
    }
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".local"));
    let prefix = args.prefix.clone().or_else(home);
    let prefix = prefix.ok_or_else(|| Error::Failed("HOME is not set: name a --prefix".into()))?;
    let (tree, _) = built()?;
    tree.install(&prefix)?;
    let programs = prefix.join("bin");
    println!("installed {}", programs.join("rxe").display());
    let path = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|dir| dir == programs) {
        println!("PATH lacks its directory: export PATH=\"{}:$PATH\"", programs.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a wheel for this machine into a directory.
fn wheel(dir: &Path) -> Result<ExitCode> {
    let (mut tree, arch) = built()?;
    let root = checkout::root()?;
    tree.file("share/doc/rxe/copyright", dist::licences(&root)?);
    dist::split(&mut tree, arch)?;
    let (name, bytes) = dist::wheel(&tree, &root, arch, dist::glibc(&tree)?)?;
    let path = dir.join(name);
    fs::write(&path, bytes).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
    println!("wrote {}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds everything that is installed, for this machine.
fn built() -> Result<(Tree, &'static Arch)> {
    let root = checkout::root()?;
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "--package", "rxe-cli", "--package"]);
    let built = build.arg("rxe-preload").current_dir(&root).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err(Error::Failed("rxe does not build".into()));
    }
    let bin = target(&root).join("release");
    if let Err(why) = libs::build(&bin) {
        println!("without the libraries for programs that load libibverbs by themselves: {why}");
    }
    let arch = Arch::own().map_err(|e| Error::Failed(format!("packages are for {e}")))?;
    Ok((dist::files(&bin, &root, arch, None)?, arch))
}

fn target(root: &Path) -> PathBuf {
    // This program is target/debug/xtask.
    let here = env::current_exe().ok();
    let target = here.as_deref().and_then(|path| path.parent()?.parent());
    target.map_or_else(|| root.join("target"), Path::to_owned)
}
