//! `cargo xtask deps`: installs the Debian packages that the outer tests need.

use rxe_harness::vm::{Error, Result};
use std::env;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// The packages, each with the program or file that indicates it on machines without dpkg.
const PACKAGES: &[(&str, &str)] = &[
    // For the VMs and their link.
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("busybox-static", "busybox"),
    ("xz-utils", "xz"),
    ("iproute2", "rdma"),
    // RDMA libraries and programs.
    ("ibverbs-providers", "/etc/libibverbs.d/rxe.driver"),
    ("ibverbs-utils", "ibv_rc_pingpong"),
    ("infiniband-diags", "ibstat"),
    ("rdmacm-utils", "rping"),
    ("perftest", "ib_send_bw"),
    ("python3-pyverbs", "/usr/lib/python3/dist-packages/pyverbs"),
    ("qperf", "qperf"),
    ("ucx-utils", "ucx_perftest"),
    ("libfabric-bin", "fi_pingpong"),
    ("openmpi-bin", "mpirun"),
    ("fio", "fio"),
    ("iperf", "iperf"),
    ("netcat-traditional", "nc.traditional"),
    ("nftables", "nft"),
    ("python3-pip", "pip3"),
    ("python3-pytest", "/usr/lib/python3/dist-packages/pytest"),
    // For compiling the C programs of the tests.
    ("gcc", "gcc"),
    ("libc6-dev", "/usr/include/stdio.h"),
    ("libibverbs-dev", "/usr/include/infiniband/verbs.h"),
    ("librdmacm-dev", "/usr/include/rdma/rdma_cma.h"),
    ("libopenmpi-dev", "mpicc"),
    // Debugging tools. valgrind also counts instructions.
    ("gdb", "gdb"),
    ("strace", "strace"),
    ("valgrind", "valgrind"),
    // For checking scripts.
    ("shellcheck", "shellcheck"),
    // For inspecting frames.
    ("tcpdump", "tcpdump"),
    ("tshark", "tshark"),
];

/// This command has no options.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    match ensure() {
        None => {
            println!("everything the outer tests need is installed");
            Ok(ExitCode::SUCCESS)
        }
        Some(why) => Err(Error::Missing(why)),
    }
}

/// Installs the missing packages if this process may.
/// Otherwise returns a line that says what to install.
pub(crate) fn ensure() -> Option<String> {
    let missing = missing();
    if missing.is_empty() {
        return None;
    }
    let list = missing.join(" ");
    if !has("apt-get") {
        return Some(format!("not installed (these are Debian's names): {list}"));
    }
    let root = rustix::process::geteuid().is_root();
    if !root && !quiet(Command::new("sudo").args(["-n", "true"])) {
        return Some(format!("not installed: run `sudo apt-get install {list}`"));
    }
    println!("installing {list}");
    let apt = |args: &[&str]| {
        let mut cmd = Command::new(if root { "env" } else { "sudo" });
        if !root {
            cmd.args(["-n", "env"]);
        }
        cmd.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]);
        // A new machine often runs its own updates at that time.
        cmd.args(["-o", "DPkg::Lock::Timeout=300"]).args(args);
        quiet(&mut cmd)
    };
    let install = [&["install", "-y", "--no-install-recommends"], missing.as_slice()].concat();
    // A mirror may have changed since the package lists were read, or there may be no lists at all.
    if !apt(&install) {
        apt(&["update"]);
        if !apt(&install) {
            // One by one, so that a package missing from this release does not prevent the others.
            for name in &missing {
                apt(&["install", "-y", "--no-install-recommends", name]);
            }
        }
    }
    let still = self::missing();
    (!still.is_empty()).then(|| format!("apt-get cannot install {}", still.join(" ")))
}

fn missing() -> Vec<&'static str> {
    let dpkg = has("dpkg-query");
    let path = env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let there = |name: &str, known_by: &str| {
        if !dpkg {
            // Joining an absolute path replaces the directory.
            return path.split(':').any(|dir| Path::new(dir).join(known_by).exists());
        }
        let out = Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", name]).output();
        out.is_ok_and(|o| o.stdout == b"installed")
    };
    PACKAGES
        .iter()
        .filter(|(name, known_by)| !there(name, known_by))
        .map(|(name, _)| *name)
        .collect()
}

fn has(program: &str) -> bool {
    quiet(Command::new(program).arg("--version"))
}

/// Returns whether a command succeeds, and discards its output.
pub(super) fn quiet(cmd: &mut Command) -> bool {
    cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    cmd.status().is_ok_and(|s| s.success())
}
