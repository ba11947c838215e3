//! Tests of the Python package: its wheel in venvs of unprivileged users, the module, and the
//! fixture for pytest.
//!
//! The wheel contains the programs that cargo built for tests. `cargo xtask dist` builds it from a
//! release.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rxe_harness::dist::{self, Arch, VERSION};
use rxe_harness::{book, everything, or_skip, paths, vm, wheel};
use rxe_test_support::skipped;

mod common;
use common::{Dir, Where, both, installed, rxe};

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Writes the wheel into a directory that every user may read. Returns its name, or `None` without
/// a C compiler.
fn write_wheel(dir: &Path) -> Option<String> {
    let built = Dir::new();
    for name in ["rxe", "librxe_preload.so"] {
        fs::copy(rxe().with_file_name(name), built.0.join(name)).unwrap();
    }
    or_skip(rxe_harness::libs::build(&built.0))?;
    let arch = Arch::own().unwrap();
    let mut tree = dist::files(&built.0, &source(), arch, None).unwrap();
    dist::split(&mut tree, arch).unwrap();
    let glibc = dist::glibc(&tree).unwrap();
    let (name, bytes) = dist::wheel(&tree, &source(), arch, glibc).unwrap();
    fs::write(dir.join(&name), bytes).unwrap();
    Some(name)
}

/// A directory of an unprivileged user, with the files that the user needs.
struct User {
    dir: Dir,
    python: PathBuf,
    wheel: String,
}

impl User {
    /// Creates the directory with the wheel in `wheels`, and the venv `venv`.
    fn new(test: &str) -> Option<Self> {
        let dir = Dir::new();
        let wheels = dir.0.join("wheels");
        fs::create_dir(&wheels).unwrap();
        let wheel = write_wheel(&wheels)?;
        if rustix::process::geteuid().is_root() {
            let open = Permissions::from_mode(0o777);
            fs::set_permissions(&dir.0, open).unwrap();
        }
        // Root's own interpreter may be in a directory that only root may enter.
        let own = or_skip(wheel::python())?;
        let python = if paths::is_usable(&own) { own } else { "/usr/bin/python3".into() };
        let user = Self { dir, python, wheel };
        let venv = format!("{} -m venv venv", user.python.display());
        match user.run(&venv) {
            Ok(_) => Some(user),
            Err(why) => {
                skipped(test, format_args!("{venv}: {}", why.lines().last().unwrap_or_default()));
                None
            }
        }
    }

    /// Runs a shell script in this directory, in a network of its own, with the venv in `PATH`.
    /// Returns its output, as an error if it fails.
    fn run(&self, script: &str) -> Result<String, String> {
        let mut command = Command::new("timeout");
        command.arg("300");
        if rustix::process::geteuid().is_root() {
            command.args(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        }
        let script = format!("exec 2>&1; ip link set lo up\n{script}");
        command.args(["unshare", "-Urn", "sh", "-ec", &script]).env_clear();
        let path = format!("{}/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin", self.dir.0.display());
        command.env("PATH", path).env("HOME", self.dir.0.join("home")).current_dir(&self.dir.0);
        command.env("TMPDIR", &self.dir.0);
        command.env("LC_ALL", "C.UTF-8").env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        // As in other tests: a peer that gets no processor for half a second is not abandoned.
        command.env("RXE_ACK_TIMEOUT", "17").env("PIP_NO_INPUT", "1");
        let out = command.output().map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        if out.status.success() { Ok(said) } else { Err(said) }
    }

    /// Like [`User::run`], but a failure of the script fails the test.
    #[track_caller]
    fn said(&self, script: &str) -> String {
        self.run(script).unwrap_or_else(|said| panic!("{script}\n{said}"))
    }

    /// Copies modules to a directory that this user may read, and returns it.
    fn copy(&self, modules: &Path) -> PathBuf {
        let to = self.dir.0.join("modules");
        let copied = Command::new("cp").arg("-r").args([modules, &to]).status();
        assert!(copied.is_ok_and(|status| status.success()));
        let open = Command::new("chmod").args(["-R", "a+rX"]).arg(&to).status();
        assert!(open.is_ok_and(|status| status.success()));
        to
    }
}

/// Lists all files and directories of a venv, except those that Python writes when it runs.
const FILES: &str = "find venv home -not -path '*/__pycache__*' 2> errors | sort";

/// A test of `pyverbs` in the system's Python, for which Debian has the package.
const PYVERBS: &str = r#"
from pyverbs.device import Context
from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE
from pyverbs.mr import MR
from pyverbs.pd import PD

with Context(name="rxe_lo") as context, PD(context) as pd, MR(pd, 4096, IBV_ACCESS_LOCAL_WRITE) as mr:
    assert mr.lkey and context.query_device().max_qp
    print("pyverbs has registered memory")
"#;

/// Runs the test of `pyverbs` in the venv, if it is installed.
fn pyverbs(test: &str, user: &User) {
    let modules = "/usr/lib/python3/dist-packages";
    if user.python != Path::new("/usr/bin/python3") || !Path::new(modules).join("pyverbs").exists()
    {
        return skipped(
            test,
            "pyverbs: /usr/bin/python3 is not used, or lacks it (python3-pyverbs)",
        );
    }
    fs::write(user.dir.0.join("verbs.py"), PYVERBS).unwrap();
    let said = user.said(&format!("PYTHONPATH={modules} rxe run -- python verbs.py"));
    assert!(said.contains("pyverbs has registered memory"), "{said}");
}

#[test]
fn pip_installs_by_name_and_removes_without_a_trace() {
    let test = "pip_installs_by_name_and_removes_without_a_trace";
    let Some(user) = User::new(test) else { return };
    // A simple index: a page for the project, with a link to each file.
    let page = user.dir.0.join("index/rxe");
    fs::create_dir_all(&page).unwrap();
    let link = format!("<!DOCTYPE html><a href=\"../../wheels/{0}\">{0}</a>", user.wheel);
    fs::write(page.join("index.html"), link).unwrap();
    let before = user.said(FILES);
    for from in [
        "--no-index --find-links wheels".to_owned(),
        format!("--index-url file://{}/index", user.dir.0.display()),
    ] {
        user.said(&format!("pip install --quiet {from} rxe"));
        let said = user.said("rxe demo; rxe --version; pip show rxe");
        assert!(said.contains("every byte verified"), "{said}");
        assert!(said.contains(&format!("\nrxe {VERSION}")), "{said}");
        assert!(said.contains(&format!("Version: {VERSION}\n")), "{said}");
        user.said("rm rxe-demo.pcapng; rxe doctor");
        the_module_works(&user);
        if from.starts_with("--no-index") {
            pyverbs(test, &user);
        }
        user.said("pip uninstall --quiet --yes rxe; rm -rf home");
        assert_eq!(user.said(FILES), before);
    }
}

/// Tests `rxe.env` and `rxe.argv` in the venv.
fn the_module_works(user: &User) {
    let script = r#"
import os, subprocess, sys
import rxe

assert rxe.command() == os.path.abspath("venv/bin/rxe"), rxe.command()
env = rxe.env(device="rxe_lo", fault="drop 2%", seed=7, pcap="it's.pcapng", no_shm=True, ack_timeout=16, explain=None)
assert env["RXE_DEVICE"] == "rxe_lo" and env["RXE_SEED"] == "7" and env["RXE_SHM"] == "off", env
assert env["RXE_PCAP"] == os.path.abspath("it's.pcapng") and env["RXE_ACK_TIMEOUT"] == "16", env
assert "RXE_EXPLAIN" not in env and env["LD_PRELOAD"].endswith("/venv/lib/rxe/librxe_preload.so"), env

# A program that finds the library by itself.
script = 'import ctypes; ctypes.CDLL("libibverbs.so"); print(open("/proc/self/maps").read())'
line = [sys.executable, "-c", script]
for done in (
    subprocess.run(line, env={**os.environ, **env}, stdout=subprocess.PIPE, check=True),
    subprocess.run(rxe.argv(line, device="rxe_lo"), stdout=subprocess.PIPE, check=True),
):
    assert b"/venv/lib/rxe/rxe-libs/libibverbs.so" in done.stdout, done.stdout
assert rxe.argv("true", as_="mlx5")[1:] == ["run", "--as=mlx5", "--", "true"]
try:
    rxe.env(device="none")
except rxe.Error as why:
    assert "none" in str(why), why
else:
    raise AssertionError("there is no such device")
"#;
    fs::write(user.dir.0.join("module.py"), script).unwrap();
    user.said("python module.py; rm module.py");
}

#[test]
fn uv_installs_and_removes_it_too() {
    let test = "uv_installs_and_removes_it_too";
    let Some(uv) = or_skip(wheel::fetch(wheel::UV)) else { return };
    let Some(user) = User::new(test) else { return };
    let data = wheel::UV.replace("==", "-") + ".data";
    let program = user.copy(&uv.join(data).join("scripts")).join("uv");
    wheel::executable(&program).unwrap();
    // uv leaves empty directories, and a file of its own.
    let files =
        "find venv home -type f -not -path '*/__pycache__*' -not -name .lock 2> errors | sort";
    let before = user.said(files);
    let uv = format!("{} --offline --no-cache --quiet pip", program.display());
    user.said(&format!("{uv} install --python venv --no-index --find-links wheels rxe"));
    the_module_works(&user);
    let said = user.said("rxe demo");
    assert!(said.contains("every byte verified"), "{said}");
    user.said(&format!("{uv} uninstall --python venv rxe; rm -rf home"));
    assert_eq!(user.said(files), before);
}

/// A file of tests. Tests with `fails` in their name fail.
const TESTS: &str = r#"
import subprocess
import pytest

SERVER = ["ibv_rc_pingpong", "-d", "rxe_lo", "-g", "0", "-n", "100", "-p"]


def pingpong(rxe, port, **options):
    server = rxe.start([*SERVER, str(port)], port=port)
    said = rxe.run([*SERVER, str(port), "127.0.0.1"], no_shm=True, **options).stdout
    assert "100 iters" in said
    assert server.wait(timeout=60) == 0


@pytest.mark.parametrize("fault", [None, "drop 2%", "reorder 2%; dup 2%"])
def test_passes(rxe, fault):
    pingpong(rxe, 18601, fault=fault, seed=None if fault is None else 1)
    assert len(list(rxe.captures.iterdir())) == 2


def test_fails_after_a_conversation(rxe):
    pingpong(rxe, 18602, fault="drop 2%", seed=1)
    assert False, "on purpose"


def test_fails_with_its_program(rxe):
    rxe.run(["sh", "-c", "ibv_devices; echo last words; exit 3"])


def test_fails_while_a_server_runs(rxe):
    server = rxe.start([*SERVER, "18603"], port=18603)
    print("server is", server.pid)
    raise ValueError("on purpose")


@pytest.fixture
def broken(rxe):
    rxe.start([*SERVER, "18604"], port=18604)
    raise ValueError("on purpose")


def test_fails_in_a_fixture(broken):
    pass


def test_ends_what_it_leaves(rxe):
    with pytest.raises(RuntimeError, match="exit code 0 before it listens on port 18605"):
        rxe.start(["true"], port=18605)
    with pytest.raises(subprocess.TimeoutExpired):
        rxe.run(["sleep", "60"], timeout=0.1)
    # Both earlier servers are gone.
    rxe.start([*SERVER, "18603"], port=18603)
    rxe.start([*SERVER, "18604"], port=18604)
    with pytest.raises(RuntimeError, match="another program listens on TCP port 18604"):
        rxe.start(["true"], port=18604)
"#;

#[test]
fn the_fixture_runs_programs_and_keeps_the_captures_of_failed_tests() {
    let test = "the_fixture_runs_programs_and_keeps_the_captures_of_failed_tests";
    if !installed(test, "ibv_rc_pingpong") {
        return;
    }
    let Some(pytest) = or_skip(wheel::modules(wheel::PYTEST)) else { return };
    let Some(user) = User::new(test) else { return };
    let modules = user.copy(&pytest);
    user.said("pip install --quiet --no-index --find-links wheels rxe");
    // With the test on the package's page, and the rest of that page after it.
    let page = fs::read_to_string(source().join("python/README.md")).unwrap();
    let (tests, rest): (Vec<_>, Vec<_>) = book::blocks(&page)
        .into_iter()
        .filter(|block| block.language() == "python")
        .partition(|block| block.text.contains("def test_"));
    assert_eq!((tests.len(), rest.len()), (1, 1));
    fs::write(user.dir.0.join("rest.py"), &rest[0].text).unwrap();
    assert_eq!(user.said("python rest.py").matches("rxe_lo").count(), 2);
    fs::write(user.dir.0.join("test_pingpong.py"), TESTS.to_owned() + &tests[0].text).unwrap();
    let run = |options: &str| {
        let path = modules.display();
        let script = format!(
            "PYTHONPATH={path} python -m pytest -q -p no:cacheprovider {options} && exit 1; [ $? = 1 ]"
        );
        user.said(&script)
    };
    let kept = |said: &str| -> Vec<PathBuf> {
        let paths = said.lines().filter_map(|line| line.strip_prefix("capture: "));
        let paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
        for path in &paths {
            assert_eq!(path.extension(), Some(OsStr::new("pcapng")), "{said}");
            assert!(path.is_file(), "{}:\n{said}", path.display());
        }
        paths
    };

    let said = run("--basetemp=tmp");
    // An error in a fixture is not counted as a failure.
    assert!(said.contains("3 failed, 5 passed, 1 error"), "{said}");
    assert!(said.contains("last words") && said.contains("exit status 3"), "{said}");
    let paths = kept(&said);
    // Two captures of a conversation, one of each server, and one of ibv_devices, if that opens a
    // device.
    assert!(paths.len() >= 4, "{said}");
    let of_test = |path: &String| path.contains("rxe-test_fails_after_a_conversation");
    let own: Vec<_> = paths.iter().map(|path| path.display().to_string()).filter(of_test).collect();
    assert_eq!(own.len(), 2, "{said}");
    let check = user.run(&format!("rxe check {}", own.join(" ")));
    let (Ok(check) | Err(check)) = check;
    assert!(check.contains("sent again"), "{check}");
    let left = user.said("find tmp -name '*.pcapng'");
    assert_eq!(left.lines().count(), paths.len(), "those of tests that passed are gone: {left}");

    // In a directory that a CI system keeps.
    let said = run("--rxe-captures kept");
    let paths = kept(&said);
    let here = user.dir.0.join("kept");
    assert!(paths.iter().all(|path| path.parent() == Some(&here)), "{said}");
    assert_eq!(fs::read_dir(&here).unwrap().count(), paths.len());
    assert!(said.contains("kept/test_fails_while_a_server_runs-"), "{said}");
}

#[test]
fn what_python_s_tools_say_of_the_wheel() {
    let dir = Dir::new();
    let Some(name) = write_wheel(&dir.0) else { return };
    let path = dir.0.join(&name);
    let run = |requirements: &str, module: &str, args: &[&OsStr]| {
        let modules = or_skip(wheel::modules(requirements))?;
        let python = or_skip(wheel::python())?;
        let mut command = Command::new(python);
        command.arg("-m").arg(module).args(args).env("PYTHONPATH", modules).current_dir(&dir.0);
        let out = command.output().unwrap();
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(out.status.success(), "{module}: {said}");
        Some(said)
    };
    let [check, strict, show] = ["check", "--strict", "show"].map(OsStr::new);
    if let Some(said) = run(wheel::TWINE, "twine", &[check, strict, path.as_os_str()]) {
        assert!(said.contains("PASSED") && !said.contains("WARNING"), "{said}");
    }
    if let Some(said) = run(wheel::AUDITWHEEL, "auditwheel", &[show, path.as_os_str()]) {
        // The tag in the name is the oldest system that auditwheel finds.
        let tag = name.split("none-").nth(1).unwrap().trim_end_matches(".whl");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            said.contains(&format!("consistent with the following platform tag: \"{tag}\"")),
            "{tag}: {said}"
        );
    }
    let module = source().join("python/rxe");
    let args = ["--strict", "--cache-dir=/dev/null"].map(OsStr::new);
    // mypy needs the types of pytest.
    let mypy = format!("{} {}", wheel::MYPY, wheel::PYTEST);
    run(&mypy, "mypy", &[&args[..], &[module.as_os_str()]].concat());
}

#[test]
fn programs_of_other_wheels_run_in_the_same_venv() {
    let test = "programs_of_other_wheels_run_in_the_same_venv";
    let dir = Dir::new();
    if write_wheel(&dir.0).is_none() {
        return;
    }
    let Some(python) = or_skip(wheel::python()) else { return };
    let venv = dir.0.join("venv");
    let made = Command::new(&python).args(["-m", "venv"]).arg(&venv).output().unwrap();
    if !made.status.success() {
        return skipped(test, String::from_utf8_lossy(&made.stdout).trim());
    }
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-index", "--find-links"]);
    assert!(pip.arg(&dir.0).arg("rxe").status().unwrap().success());
    // The other packages are unpacked in the cache. A line in a .pth file is equivalent to a copy
    // in site-packages.
    let others = || -> vm::Result<[PathBuf; 3]> {
        Ok([wheel::fetch(wheel::NIXL)?, wheel::fetch(wheel::NUMPY)?, wheel::mooncake()?])
    };
    let Some(others) = or_skip(others()) else { return };
    let lines: String = others.iter().map(|other| format!("{}\n", other.display())).collect();
    let mut packages = fs::read_dir(venv.join("lib")).unwrap().flatten().map(|entry| entry.path());
    let packages =
        packages.find_map(|dir| Some(dir.join("site-packages")).filter(|dir| dir.is_dir()));
    fs::write(packages.unwrap().join("others.pth"), lines).unwrap();

    let venv = venv.join("bin").display().to_string();
    let script =
        |name: &str| format!("{venv}/python {}/tests/python/{name}", paths::checkout().display());
    let setup =
        format!("RXE={venv}/rxe; export UCX_TLS=rc_verbs,ud_verbs:aux UCX_NET_DEVICES=rxe_veth0:1");
    let nixl = script("nixl_bytes.py");
    let (server, client) = (format!("{nixl} 10.9.0.1"), format!("{nixl} 10.9.0.1 10.9.0.1"));
    let Some(said) = both("python3", 4790, &setup, &server, &client, Where::OneAddress) else {
        return;
    };
    assert!(said.contains("8998818 bytes are the same"), "{said}");

    let setup = format!("RXE={venv}/rxe; export MC_GID_INDEX=1");
    let mooncake = script("mooncake_bytes.py");
    let server = format!("{mooncake} rxe_veth0 10.9.0.1");
    let client = format!("{mooncake} rxe_veth0 10.9.0.1 10.9.0.1");
    let Some(said) = both("python3", 4790, &setup, &server, &client, Where::OneAddress) else {
        return;
    };
    assert!(said.contains("4264946 bytes are the same"), "{said}");
}

#[test]
fn pip_builds_a_wheel_from_a_checkout() {
    let test = "pip_builds_a_wheel_from_a_checkout";
    if !everything() {
        return skipped(test, "only with --all: it builds everything for release");
    }
    let Some(python) = or_skip(wheel::python()) else { return };
    let dir = Dir::new();
    let venv = dir.0.join("venv");
    let made = Command::new(&python).args(["-m", "venv"]).arg(&venv).output().unwrap();
    if !made.status.success() {
        return skipped(test, String::from_utf8_lossy(&made.stdout).trim());
    }
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--no-index"]).arg(source());
    pip.env("CARGO_TARGET_DIR", source().join("target/install-test"))
        .env("CARGO_NET_OFFLINE", "true");
    // An unoptimised build takes a third of the time.
    pip.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    let out = pip.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let script = "import rxe, subprocess\nsubprocess.run(rxe.argv('true'), check=True)\nprint(rxe.command())";
    let run = Command::new(venv.join("bin/python")).args(["-c", script]).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert_eq!(said.trim_end(), venv.join("bin/rxe").display().to_string(), "{run:?}");
}
