//! Checks other systems and processors as far as this machine can.
//! `cargo xtask test --all` does so.

use super::deps::quiet;
use super::stages::Count;
use rxe_harness::checkout::cargo;
use rxe_harness::dist::{Arch, arch};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates that compile without system calls.
/// Of rxe-net, that is the contract, the fabric, and the rules of faults.
const PORTABLE: [&str; 5] = ["rxe-core", "rxe-net", "rxe-words", "rxe-lab", "rxe-web"];

/// The targets for which [`PORTABLE`] must compile. Except for the first, so must `rxe` with the
/// commands that need no device.
const TARGETS: [&str; 4] = [
    "wasm32-unknown-unknown",
    "x86_64-apple-darwin",
    "x86_64-unknown-freebsd",
    "x86_64-pc-windows-gnu",
];

/// The directory in which Debian installs the libraries of cross compilers.
const LIBRARIES: &str = "/usr";

/// Checks [`PORTABLE`] for each target, and runs tests for other processors.
pub(super) fn check(count: &mut Count) {
    for target in TARGETS {
        let name = format!("the portable crates for {target}");
        if !has_target(target) {
            count.skip(&format!("{name}: `rustup target add {target}` is to be run before"));
            continue;
        }
        let mut cmd = cargo();
        cmd.args(["check", "--quiet", "--target", target, "--target-dir", "target/cross"]);
        cmd.args(PORTABLE.iter().flat_map(|package| ["--package", package]));
        if !target.starts_with("wasm") {
            cmd.args(["--package", "rxe-cli"]);
        }
        let checked = count.watch(&mut cmd);
        count.check(&name, checked);
    }
    for arch in arch::ALL.iter().filter(|arch| !arch.is_own()) {
        run_tests(arch, count);
    }
}

/// Runs the unit tests of the engine and of the ring in shared memory with qemu-user.
fn run_tests(arch: &Arch, count: &mut Count) {
    let name = format!("tests for {}", arch.name);
    let root = Path::new(LIBRARIES).join(arch.triplet);
    let qemu = arch.command(Path::new("--version"), None);
    let compiler = Command::new(arch.compiler());
    let missing = [qemu, compiler].iter_mut().any(|program| !quiet(program.arg("--version")));
    if missing || !has_target(arch.target) {
        let (target, packages) = (arch.target, arch.packages());
        return count.skip(&format!(
            "{name}: they need `rustup target add {target}` and Debian's {packages}"
        ));
    }
    let runner = format!("qemu-{} -L {}", arch.name, root.display());
    for [package, filter] in [["rxe-core", ""], ["rxe-net", "shm::ring"]] {
        let mut cmd = cargo();
        cmd.args(["test", "--target", arch.target, "--target-dir", "target/cross", "--lib"]);
        cmd.args(["--package", package, "--", filter]);
        cmd.env(arch.variable("LINKER"), arch.compiler());
        cmd.env(arch.variable("RUNNER"), &runner);
        count.check_tests(&format!("{name}: {package}"), &mut cmd);
    }
}

/// Returns whether the standard library for this target is installed.
pub(super) fn has_target(target: &str) -> bool {
    libraries(Some(target)).is_some()
}

/// Returns the directory of a target's standard library, if it is installed. `None` is this machine.
pub(super) fn libraries(target: Option<&str>) -> Option<PathBuf> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir"]);
    rustc.args(target.iter().flat_map(|target| ["--target", *target]));
    let out = rustc.output().ok().filter(|out| out.status.success())?;
    let dir = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
    dir.is_dir().then_some(dir)
}
