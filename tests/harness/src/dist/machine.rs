//! Runs the image's programs for another architecture in an emulated machine.
//!
//! qemu-user lacks a system call that processes need to send packets from one port. Therefore QEMU
//! emulates the whole machine. It boots a stock Debian kernel, whose first file system contains the
//! image's files, busybox and the pingpongs of rdma-core. The machine has no network except
//! loopback, and no access to this machine.

use super::Arch;
use super::systems::succeed;
use super::systems::unpacked;
use crate::debs::unpack;
use crate::vm::{Cpio, Error, Result, cache, cached, download, download_kernel};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest Debian kernel that supports everything the engine uses.
const KERNEL: &str = "6.1";

/// A shell and unmodified programs, from the release whose C library the image contains.
const PACKAGES: [&str; 2] = ["busybox-static", "ibverbs-utils"];
const RELEASE: &str = "bullseye";

/// The time limit of the machine in seconds. On an idle host it takes 30 s.
const TIMEOUT: &str = "900";

/// The init process.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin HOME=/tmp LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /run /tmp
mount -t tmpfs shm /dev/shm
ip link set lo up
cd /tmp
if sh -e /script > said 2>&1; then echo; echo all of it ran; else cat said; fi
poweroff -f
"#;

/// The test script: shared memory between two processes, and packets. Messages of two packets
/// suffice: on a busy host, the emulated machine answers so late that longer READs are
/// retransmitted constantly.
const SCRIPT: &str = r"
rxe --version
rxe doctor
rxe demo
rxe run -- ibv_devices | grep rxe_lo
for way in '' --no-shm; do
    rxe pingpong $way -d lo -c > server & server=$!
    sleep 3
    rxe run $way -- ibv_rc_pingpong -d rxe_lo -g 0 -c 127.0.0.1
    wait $server
    for operation in 'send bw -s 8K' 'write bw -s 8K' 'read bw -s 8K' 'atomic bw'; do
        rxe perf $way -d lo $operation -n 100 > server & server=$!
        sleep 3
        rxe perf $way $operation -n 100 127.0.0.1
        wait $server
    done
done
";

/// Boots a machine of that architecture and runs the programs of the image there.
///
/// # Errors
/// [`Error::Missing`] if this machine has no QEMU or no Debian mirror; [`Error::Failed`] with the
/// output of a failed command.
pub fn check_machine(arch: &Arch, layer: &Path) -> Result<()> {
    let parts = parts(arch)?;
    let root = unpacked(layer)?;
    let _ = fs::remove_dir_all(root.path().join("usr/share"));
    let io = |e: std::io::Error| Error::Failed(format!("the machine's first file system: {e}"));
    let mut cpio = Cpio::default();
    for dir in ["bin", "proc", "sys", "dev", "tmp"] {
        cpio.dir(dir);
    }
    cpio.file("init", 0o755, INIT.as_bytes());
    cpio.file("script", 0o644, SCRIPT.as_bytes());
    for tree in [root.path(), &parts.join("programs")] {
        cpio.tree(tree, tree).map_err(io)?;
    }
    let initrd = tempfile::NamedTempFile::new().map_err(io)?;
    fs::write(initrd.path(), cpio.finish()).map_err(io)?;

    let mut qemu = Command::new("timeout");
    qemu.args([TIMEOUT, &format!("qemu-system-{}", arch.name), "-machine", arch.machine]);
    qemu.args(["-cpu", "max", "-smp", "2", "-m", "1024", "-accel", "tcg,thread=multi"]);
    qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    qemu.arg("-kernel").arg(parts.join("vmlinuz")).arg("-initrd").arg(initrd.path());
    qemu.args(["-append", &format!("console={} quiet panic=-1", arch.console)]);
    qemu.args(["-chardev", "file,id=console,path=/dev/stdout", "-serial", "chardev:console"]);
    let said = succeed("the emulated machine", &mut qemu)?;
    if said.lines().any(|line| line.trim() == "all of it ran") {
        return Ok(());
    }
    Err(Error::Failed(format!("the emulated machine: {}", said.replace('\r', ""))))
}

/// Returns the directory in the cache with the kernel and the programs. Downloads them if they are
/// missing.
fn parts(arch: &Arch) -> Result<PathBuf> {
    let done = cache()?.join(format!("machine-{}", arch.debian));
    cached(&done, |scratch| fetch_parts(arch, scratch))?;
    Ok(done)
}

/// Downloads the kernel and the programs into a scratch directory. Returns the directory to keep.
fn fetch_parts(arch: &Arch, scratch: &Path) -> Result<PathBuf> {
    let (parts, kernel) = (scratch.join("made"), scratch.join("kernel"));
    let programs = parts.join("programs");
    for deb in download(RELEASE, arch.debian, &PACKAGES, scratch)? {
        unpack(&deb, &programs)?;
    }
    let _ = fs::remove_dir_all(programs.join("usr/share"));
    for deb in download_kernel(KERNEL, arch.debian, scratch)? {
        unpack(&deb, &kernel)?;
    }
    let io = |e: std::io::Error| Error::Failed(format!("the kernel's package: {e}"));
    let images = fs::read_dir(kernel.join("boot")).map_err(io)?.flatten().map(|entry| entry.path());
    let image = images.into_iter().find(|path| path.to_string_lossy().contains("vmlinuz"));
    let image = image.ok_or_else(|| Error::Failed("the kernel's package has no vmlinuz".into()))?;
    fs::rename(image, parts.join("vmlinuz")).map_err(io)?;
    Ok(parts)
}
