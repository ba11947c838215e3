//! A virtual machine run by QEMU.

use super::channel::{Channel, Cmd, Output, Proc};
use super::kernel::Kernel;
use super::net::{HOST_V4, HOST_V6, Net, spawn};
use super::{Error, Result, initrd};
use std::collections::VecDeque;
use std::env;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The configuration of a VM.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The number of processors.
    pub cpus: u32,
    /// The memory size in MiB.
    pub memory: u32,
    /// Directories of the host that commands in the VM may write to, at the same path.
    pub shares: Vec<PathBuf>,
    /// Whether to create `rxe0` on `eth0`.
    pub rxe: bool,
    /// Whether AF_XDP sockets on its cards can use zero copy, if the driver supports it. Two
    /// further cards, `eth1` and `eth2`, are then connected to each other.
    pub xdp: bool,
    /// Whether to show the VM's console on standard error.
    pub verbose: bool,
    /// The time limit for booting.
    pub timeout: Duration,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            cpus: 2,
            memory: 1500,
            shares: Vec::new(),
            rxe: true,
            xdp: false,
            verbose: false,
            timeout: Duration::from_secs(180),
        }
    }
}

/// A running VM. Dropping this ends it.
#[derive(Debug)]
pub struct Vm {
    qemu: Child,
    channel: Channel,
    console: Console,
    index: u8,
    env: Vec<(String, String)>,
    boot: Duration,
    /// The directory of the sockets between `eth1` and `eth2`.
    _wire: Option<TempDir>,
}

/// The driver permits others to pass addresses to the card only for a card declared to be behind an
/// IOMMU. No IOMMU is needed.
const XDP: &str = ",disable-legacy=on,iommu_platform=on";

/// virtio-net without offloads: a capture on the link shows the frames of a wire, with every
/// checksum filled in and no frame larger than the MTU.
const NO_OFFLOADS: &str = "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,\
     guest_ecn=off,guest_ufo=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off";

impl Vm {
    /// Boots `kernel` on `net` and waits until its agent answers and its addresses are set: `eth0`
    /// with [`Vm::v4`] and [`Vm::v6`], and `rxe0` on it.
    ///
    /// # Errors
    /// [`Error::Missing`] if this machine lacks a program or permission; [`Error::Failed`] with the
    /// end of the console otherwise.
    pub fn boot(net: &Net, kernel: &Kernel, spec: &Spec) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::Missing("the VM harness knows amd64 only".into()));
        }
        let start = Instant::now();
        let initrd = initrd::build(kernel)?;
        let (index, netdev) = net.attach()?;
        let start_vm = || Self::start(net, kernel, spec, &initrd, index, &netdev);
        let mut vm = start_again(start_vm, crate::say::say)?;
        vm.set_up(net.mtu(), spec)?;
        vm.boot = start.elapsed();
        Ok(vm)
    }

    /// Starts QEMU and waits until the agent answers.
    fn start(
        net: &Net,
        kernel: &Kernel,
        spec: &Spec,
        initrd: &Path,
        index: u8,
        netdev: &str,
    ) -> std::result::Result<Self, NoBoot> {
        let pair = || UnixStream::pair().map_err(|e| Error::Failed(format!("socketpair: {e}")));
        let ((ctl, ctl_qemu), (con, con_qemu)) = (pair()?, pair()?);
        let mut cmd = net.command("qemu-system-x86_64");
        let name = format!("vm{index}");
        let accel = env::var("RXE_VM_ACCEL").unwrap_or_else(|_| "tcg,thread=multi".into());
        cmd.args(["-name", &name, "-accel", &accel, "-cpu", "max"]);
        cmd.args(["-smp", &spec.cpus.to_string(), "-m", &spec.memory.to_string()]);
        cmd.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        cmd.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(initrd);
        // On an overloaded machine an emulated timer is late, and the kernel would consider it
        // broken (no_timer_check). A booting kernel rewrites its code in many places. QEMU may then
        // execute the outdated code, a breakpoint, on another processor, and the kernel panics
        // because it no longer knows the breakpoint. Therefore the other processors are started
        // after booting (maxcpus). A kernel that finds its clock (TSC) late uses the clock of a
        // device instead, which is slow, and rewrites its code for it (tsc=reliable).
        let line = "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off no_timer_check \
                    tsc=reliable maxcpus=1";
        cmd.args(["-append", line]);
        cmd.args(["-chardev", "socket,id=con,fd=1", "-serial", "chardev:con"]);
        cmd.args(["-chardev", "socket,id=ctl,fd=0", "-device", "virtio-serial-pci"]);
        cmd.args(["-device", "virtserialport,chardev=ctl,name=rxe.ctl"]);
        let mtu = net.mtu();
        let xdp = if spec.xdp { XDP } else { "" };
        let mut card = |netdev: &str, id: &str, card: u8| {
            let nic = format!(
                "virtio-net-pci,netdev={id},mac=52:54:00:47:{:02x}:{index:02x},host_mtu={mtu}",
                0x91 + card
            );
            cmd.args(["-netdev", &format!("{netdev},id={id}")]);
            cmd.args(["-device", &format!("{nic},romfile=,{NO_OFFLOADS}{xdp}")]);
        };
        card(netdev, "net", 0);
        let wire = if spec.xdp { Some(wire()?) } else { None };
        if let Some(dir) = &wire {
            let [a, b] = ["a", "b"].map(|end| dir.path().join(end).display().to_string());
            for (own, peer, id, n) in [(&a, &b, "wire1", 1), (&b, &a, "wire2", 2)] {
                let local = format!("dgram,local.type=unix,local.path={own}");
                card(&format!("{local},remote.type=unix,remote.path={peer}"), id, n);
            }
        }
        cmd.args(["-device", "virtio-rng-pci"]);
        let fs = "security_model=none,multidevs=remap";
        cmd.args(["-virtfs", &format!("local,path=/,mount_tag=host,readonly=on,{fs}")]);
        for (i, dir) in spec.shares.iter().enumerate() {
            // A comma that is not doubled ends the option.
            let dir = dir.display().to_string().replace(',', ",,");
            cmd.args(["-virtfs", &format!("local,path={dir},mount_tag=share{i},{fs}")]);
        }
        cmd.stdin(OwnedFd::from(ctl_qemu)).stdout(OwnedFd::from(con_qemu)).stderr(Stdio::piped());
        let mut qemu = spawn(cmd).map_err(|e| Error::program("qemu-system-x86_64", &e))?;
        let console = Console::default();
        let (said, of) = (console.clone(), name.clone());
        let why = Arc::new(move || said.why_gone(&of));
        let channel = Channel::new(ctl, why.clone());
        let channel = channel.map_err(|e| Error::Failed(format!("{name}: {e}")))?;
        let end = channel.end();
        // A kernel that should end the VM when it panics may hang instead.
        console.follow(con, spec.verbose, move || end(why()));
        if let Some(err) = qemu.stderr.take() {
            console.follow(err, spec.verbose, || {});
        }
        let (env, boot) = (environment(), Duration::ZERO);
        let mut vm = Self { qemu, channel, console, index, env, boot, _wire: wire };
        if vm.channel.ready(spec.timeout) {
            return Ok(vm);
        }
        let ended = vm.qemu.try_wait().ok().flatten();
        let console = &vm.console;
        Err(if console.has_panicked() {
            NoBoot::Again(console.why_gone(&name))
        } else if let Some(status) = ended {
            let console = console.tail();
            NoBoot::Other(Error::Failed(format!("{name} ended ({status}); console: {console}")))
        } else {
            let (limit, console) = (spec.timeout.as_secs(), console.tail());
            NoBoot::Again(format!("{name} did not boot in {limit} s; console: {console}"))
        })
    }

    /// Returns the IPv4 address on the link.
    pub fn v4(&self) -> Ipv4Addr {
        let [a, b, c, _] = HOST_V4.octets();
        Ipv4Addr::new(a, b, c, 10 + self.index)
    }

    /// Returns the IPv6 address on the link.
    pub fn v6(&self) -> Ipv6Addr {
        let mut segments = HOST_V6.segments();
        // The last group looks like the last number of the IPv4 address: fd47:91::11 for VM 1.
        segments[7] = 0x10 + u16::from(self.index);
        Ipv6Addr::from(segments)
    }

    /// Returns the time that booting took.
    pub fn boot_time(&self) -> Duration {
        self.boot
    }

    /// Returns the last lines of the console.
    pub fn console(&self) -> String {
        self.console.tail()
    }

    /// Starts a command.
    ///
    /// # Errors
    /// The VM is gone.
    pub fn spawn(&self, cmd: impl Into<Cmd>) -> Result<Proc> {
        self.channel.spawn(&cmd.into(), &self.env)
    }

    /// Runs a command without input to its end.
    ///
    /// # Errors
    /// The command cannot be started, or the VM is gone. A command that fails is not an error here:
    /// see [`Output::ok`].
    pub fn run(&self, cmd: impl Into<Cmd>) -> Result<Output> {
        let proc = self.spawn(cmd)?;
        drop(proc.stdin());
        proc.output()
    }

    /// Loads modules that were not loaded at boot, in this order.
    ///
    /// # Errors
    /// The kernel refuses a module, or the VM is gone.
    pub fn insert(&self, modules: &[PathBuf]) -> Result<()> {
        for module in modules {
            let out = self.run(Cmd::new("busybox").arg("insmod").arg(module.to_string_lossy()))?;
            out.ok().map_err(|e| Error::Failed(format!("{}: {e}", module.display())))?;
        }
        Ok(())
    }

    fn set_up(&self, mtu: u32, spec: &Spec) -> Result<()> {
        let (v4, v6) = (self.v4(), self.v6());
        let mut script = format!(
            "set -e; hostname vm{}; ip link set lo up; ip link set eth0 mtu {mtu} up; \
             ip addr add {v4}/24 dev eth0; ip addr add {v6}/64 dev eth0 nodad; ",
            self.index
        );
        // Without duplicate address detection the link-local address, and so GID 0, is usable
        // immediately.
        script.insert_str(7, "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad; ");
        if spec.rxe {
            script.push_str("rdma link add rxe0 type rxe netdev eth0; ");
        }
        for (i, dir) in spec.shares.iter().enumerate() {
            let dir = dir.display().to_string().replace('\'', "'\\''");
            let options = "trans=virtio,version=9p2000.L,cache=none,msize=262144";
            script.push_str(&format!("mount -t 9p -o {options} share{i} '{dir}'; "));
        }
        let out = self.run(Cmd::sh(script))?;
        out.ok().map(drop).map_err(|e| Error::Failed(format!("setting up vm{}: {e}", self.index)))
    }
}

/// The reason why a VM did not boot.
enum NoBoot {
    /// The VM was not ready in time, or its kernel panicked.
    Again(String),
    Other(Error),
}

impl From<Error> for NoBoot {
    fn from(e: Error) -> Self {
        Self::Other(e)
    }
}

/// Starts a VM. If it does not boot in time, as on a busy machine, or if its kernel panics before
/// our first packet, it is started once more. A line that `cargo xtask test` counts reports this,
/// because the second start must not hide an intermittent fault.
fn start_again<T>(
    mut start: impl FnMut() -> std::result::Result<T, NoBoot>,
    say: impl FnOnce(&str),
) -> Result<T> {
    let why = match start() {
        Err(NoBoot::Again(why)) => why,
        other => return other.map_err(NoBoot::error),
    };
    say(&format!("STARTED TWICE: {why}"));
    start().map_err(NoBoot::error)
}

impl NoBoot {
    fn error(self) -> Error {
        match self {
            Self::Again(why) => Error::Failed(why),
            Self::Other(e) => e,
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Creates a directory for the sockets between two cards.
fn wire() -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("rxe-wire-").tempdir();
    dir.map_err(|e| Error::Failed(format!("a directory for sockets: {e}")))
}

/// A directory of the VM's own: see `init.sh`.
const TMP: &str = "/run/tmp";

/// Returns the environment of commands in a VM: the host's paths and language, and writable
/// directories.
fn environment() -> Vec<(String, String)> {
    let path = env::var("PATH").unwrap_or_default();
    let mut out = vec![
        ("PATH".into(), format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")),
        ("HOME".into(), TMP.into()),
        ("TMPDIR".into(), TMP.into()),
        ("USER".into(), "root".into()),
    ];
    for key in ["LANG", "TERM"] {
        out.extend(env::var(key).ok().map(|v| (key.into(), v)));
    }
    out
}

/// The message of a panicking kernel.
const PANIC: &str = "Kernel panic - not syncing";

/// The last output of a VM's console.
#[derive(Clone, Debug, Default)]
struct Console(Arc<Mutex<VecDeque<u8>>>);

impl Console {
    const KEPT: usize = 16 << 10;

    /// Stores the output of the console. After the kernel's first panic a thread calls `panicked`.
    fn follow(
        &self,
        mut from: impl Read + Send + 'static,
        verbose: bool,
        panicked: impl FnOnce() + Send + 'static,
    ) {
        let (kept, console) = (self.0.clone(), self.clone());
        let mut panicked = Some(panicked);
        thread::spawn(move || {
            let mut buf = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buf) {
                if verbose {
                    let _ = std::io::stderr().write_all(&buf[..n]);
                }
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&buf[..n]);
                let over = kept.len().saturating_sub(Self::KEPT);
                kept.drain(..over);
                drop(kept);
                if let Some(panicked) = panicked.take_if(|_| console.has_panicked()) {
                    thread::spawn(panicked);
                }
            }
        });
    }

    /// Returns the last lines or, after a crash of the kernel, its messages about the crash.
    fn tail(&self) -> String {
        /// The number of lines of a crash that include the function and its callers.
        const CRASH: usize = 40;
        const LINES: usize = 12;
        let text = self.text();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        let crash = |line: &&str| ["BUG: ", "Oops: ", PANIC].iter().any(|say| line.contains(say));
        let (from, count) = match lines.iter().position(crash) {
            Some(from) => (from, CRASH),
            None => (lines.len().saturating_sub(LINES), LINES),
        };
        lines[from..].iter().take(count).copied().collect::<Vec<_>>().join(" | ")
    }

    /// Returns the reason why VM `name` no longer answers.
    fn why_gone(&self, name: &str) -> String {
        // The last output may not have arrived yet.
        thread::sleep(Duration::from_millis(500));
        let what = if self.has_panicked() { "'s kernel panicked" } else { " is gone" };
        format!("{name}{what}; console: {}", self.tail())
    }

    fn has_panicked(&self) -> bool {
        self.text().contains(PANIC)
    }

    fn text(&self) -> String {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(kept.make_contiguous()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of starts that end like `ends`, their number, and the output.
    fn starts(mut ends: Vec<std::result::Result<u8, NoBoot>>) -> (Result<u8>, usize, String) {
        let (mut count, mut said) = (0, String::new());
        let start = || {
            count += 1;
            ends.remove(0)
        };
        let got = start_again(start, |line| said = line.to_owned());
        (got, count, said)
    }

    #[test]
    fn a_vm_that_is_late_is_started_again_once_which_is_said() {
        let late = || Err(NoBoot::Again("vm1 is late".into()));
        let said = "STARTED TWICE: vm1 is late".to_owned();
        assert_eq!(starts(vec![Ok(1)]), (Ok(1), 1, String::new()));
        assert_eq!(starts(vec![late(), Ok(2)]), (Ok(2), 2, said.clone()));
        let failed = Err(Error::Failed("vm1 is late".into()));
        assert_eq!(starts(vec![late(), late()]), (failed, 2, said));
    }

    #[test]
    fn a_vm_that_ends_is_not_started_again() {
        let ended = Error::Failed("vm1 ended".into());
        let ends = vec![Err(NoBoot::Other(ended.clone()))];
        assert_eq!(starts(ends), (Err(ended), 1, String::new()));
    }

    fn console(text: &str) -> Console {
        Console(Arc::new(Mutex::new(text.bytes().collect())))
    }

    #[test]
    fn a_console_tells_its_end_or_the_crash_of_its_kernel() {
        let numbered = |n: usize| (0..n).map(|i| format!("line {i}\r\n")).collect::<String>();
        let booting = console(&numbered(100));
        assert!(!booting.has_panicked());
        assert!(booting.tail().starts_with("line 88 | line 89 | "), "{}", booting.tail());
        let crash = "[ 3.6] BUG: unable to handle page fault\r\n[ 3.7] RIP: 0010:list_del\r\n";
        let panic = "[ 3.8] Kernel panic - not syncing: Fatal exception in interrupt\r\n";
        let crashed = console(&format!("{}{crash}{}{panic}", numbered(50), numbered(20)));
        assert!(crashed.has_panicked());
        let said = crashed.tail();
        assert!(said.starts_with("[ 3.6] BUG: ") && said.contains("RIP: 0010:list_del"), "{said}");
        assert!(said.ends_with("Fatal exception in interrupt"), "{said}");
    }
}
