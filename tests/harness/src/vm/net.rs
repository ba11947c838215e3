//! A network namespace for one run, with the link of its VMs.
//!
//! Only file descriptors of this process hold the namespace, so it vanishes with the process,
//! however the process ends. As root it is a network namespace; for an ordinary user a user
//! namespace around one (`unshare -Urn`), in which the user is root. The link is called [`LINK`]:
//! with one VM the tap itself, with several a bridge of taps. No interface of the host is touched.
//!
//! Where namespaces and taps are not permitted, the link of one VM can be a unix socket
//! ([`Net::socket`]): its other end is the process that connects, with addresses of its own.

use super::{Error, Result};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use tempfile::TempDir;

/// The host's interface on the link.
pub const LINK: &str = "link0";

/// The host's own IPv4 address on the link (`/24`); VM n has the address that ends in 10 + n.
pub const HOST_V4: Ipv4Addr = Ipv4Addr::new(10, 47, 91, 1);

/// The host's own IPv6 address on the link (`/64`); VM n has the address that ends in 10 + n.
pub const HOST_V6: Ipv6Addr = Ipv6Addr::new(0xfd47, 0x91, 0, 0, 0, 0, 0, 1);

/// A network namespace with a link for VMs.
#[derive(Debug)]
pub struct Net {
    user: Option<File>,
    /// The network namespace; `None` for a socket.
    net: Option<File>,
    mtu: u32,
    shape: Shape,
    vms: AtomicU8,
    /// The number of VMs on other links that are numbered first.
    before: u8,
    /// The directory of the link's socket.
    dir: Option<TempDir>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Tap,
    Bridge,
    Veth,
    Socket,
}

impl Net {
    /// Creates a link for one VM: [`LINK`] is the tap that the VM's interface is connected to.
    ///
    /// # Errors
    /// [`Error::Missing`] if this process may not create namespaces or taps.
    pub fn tap(mtu: u32) -> Result<Self> {
        Self::new(mtu, Shape::Tap)
    }

    /// Creates a link for several VMs: [`LINK`] is a bridge, on which a capture sees all of them.
    ///
    /// # Errors
    /// [`Error::Missing`] if this process may not create namespaces, bridges or taps.
    pub fn bridge(mtu: u32) -> Result<Self> {
        Self::new(mtu, Shape::Bridge)
    }

    /// Creates two namespaces connected by a veth pair, with [`LINK`] in each: the first has
    /// [`HOST_V4`], the second the address of a first VM.
    ///
    /// # Errors
    /// [`Error::Missing`] if this process may not create namespaces or veth pairs.
    pub fn pair(mtu: u32) -> Result<(Self, Self)> {
        let (user, net) = unshare()?;
        let new = |user, net| Self {
            user,
            net: Some(net),
            mtu,
            shape: Shape::Veth,
            vms: AtomicU8::new(0),
            before: 0,
            dir: None,
        };
        let first = new(user, net);
        let clone = first.user.as_ref().map(File::try_clone).transpose();
        let user = clone.map_err(|e| Error::Failed(format!("a namespace's descriptor: {e}")))?;
        let mut linked = Ok(());
        let mut make = Command::new("unshare");
        first.enter(make.arg("-n"));
        let held = hold(make, false, |pid| {
            linked = first.ip(&format!(
                "link add {LINK} mtu {mtu} type veth peer name {LINK} mtu {mtu} netns {pid}"
            ));
        });
        let (_, net) =
            held.map_err(|e| Error::Missing(format!("cannot make a network namespace ({e})")))?;
        linked?;
        let second = new(user, net);
        for (net, last) in [(&first, 1), (&second, 11)] {
            net.ip("link set lo up")?;
            net.ip(&format!("link set {LINK} up"))?;
            let [a, b, c, _] = HOST_V4.octets();
            net.ip(&format!("addr add {a}.{b}.{c}.{last}/24 dev {LINK}"))?;
            let v6 = Ipv6Addr::from(u128::from(HOST_V6) - 1 + last);
            net.ip(&format!("addr add {v6}/64 dev {LINK} nodad"))?;
        }
        Ok((first, second))
    }

    fn new(mtu: u32, shape: Shape) -> Result<Self> {
        let (user, net) = unshare()?;
        let net =
            Self { user, net: Some(net), mtu, shape, vms: AtomicU8::new(0), before: 0, dir: None };
        net.ip("link set lo up")?;
        match shape {
            Shape::Veth | Shape::Socket => {}
            Shape::Tap => net.ip(&format!("tuntap add dev {LINK} mode tap"))?,
            Shape::Bridge => {
                net.ip(&format!("link add {LINK} type bridge forward_delay 0 mcast_snooping 0"))?;
            }
        }
        net.ip(&format!("link set {LINK} mtu {mtu} up"))?;
        net.ip(&format!("addr add {HOST_V4}/24 dev {LINK}"))?;
        net.ip(&format!("addr add {HOST_V6}/64 dev {LINK} nodad"))?;
        Ok(net)
    }

    /// Creates a link for one VM without any privilege: the unix socket [`Net::socket_path`], on
    /// which QEMU listens. Commands run in this process's namespaces.
    ///
    /// # Errors
    /// No directory for the socket can be created.
    pub fn socket(mtu: u32) -> Result<Self> {
        Self::numbered_socket(mtu, 0)
    }

    /// Like [`Net::socket`], for a VM whose number is `before` greater.
    pub(super) fn numbered_socket(mtu: u32, before: u8) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("rxe-vm-").tempdir();
        let dir = dir.map_err(|e| Error::Failed(format!("a directory for a socket: {e}")))?;
        let shape = Shape::Socket;
        let vms = AtomicU8::new(0);
        Ok(Self { user: None, net: None, mtu, shape, vms, before, dir: Some(dir) })
    }

    /// Returns the path of the socket of [`Net::socket`].
    pub fn socket_path(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.path().join("link"))
    }

    /// Returns the link's MTU in bytes (of IP).
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Returns a command that runs inside the namespace. It dies with the *thread* that spawns it:
    /// pass it to [`spawn`] if it should live as long as this process.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut cmd = Command::new(program);
        self.enter(&mut cmd);
        cmd
    }

    /// Makes `cmd` run inside the namespace, as [`Net::command`] does.
    pub fn enter(&self, cmd: &mut Command) {
        let user = self.user.as_ref().map(AsRawFd::as_raw_fd);
        let net = self.net.as_ref().map(AsRawFd::as_raw_fd);
        let me = rustix::process::getpid();
        let setup = move || {
            use std::os::fd::BorrowedFd;
            // SAFETY: the parent keeps both files open while `self` lives, and the child of a fork
            // has its own copies of the descriptors; close-on-exec acts after this closure.
            let [user, net] =
                unsafe { [user, net].map(|fd| fd.map(|fd| BorrowedFd::borrow_raw(fd))) };
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(me) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if let Some(user) = user {
                move_into_link_name_space(user, Some(LinkNameSpaceType::User))?;
            }
            if let Some(net) = net {
                move_into_link_name_space(net, Some(LinkNameSpaceType::Network))?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes system calls only (prctl, getppid, setns):
        // no allocation, no lock.
        unsafe { cmd.pre_exec(setup) };
    }

    /// Captures the RoCEv2 packets on the link into `file` (pcap), until [`Capture::stop`] is
    /// called.
    ///
    /// # Errors
    /// tcpdump is missing or does not start.
    pub fn capture(&self, file: &Path, frames: Frames) -> Result<Capture> {
        let snaplen = match frames {
            Frames::Whole => "0",
            Frames::Headers => "96",
        };
        let mut cmd = self.command("tcpdump");
        cmd.args(["-i", LINK, "--immediate-mode", "-U", "-n", "-s", snaplen, "-Z", "root", "-w"]);
        cmd.arg(file)
            .arg("udp port 4791")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = spawn(cmd).map_err(|e| Error::program("tcpdump", &e))?;
        // tcpdump prints "listening on …" when it has started.
        let mut said = String::new();
        let mut err = child.stderr.take().map(BufReader::new);
        while let Some(r) = &mut err {
            let from = said.len();
            match r.read_line(&mut said) {
                Ok(0) | Err(_) => {
                    return Err(Error::Failed(format!("tcpdump ended at once: {}", said.trim())));
                }
                Ok(_) if said[from..].contains("listening on") => break,
                Ok(_) => {}
            }
        }
        thread::spawn(move || {
            if let Some(mut r) = err {
                let _ = io::copy(&mut r, &mut io::sink());
            }
        });
        Ok(Capture { child })
    }

    /// Makes room for one more VM. Returns its number, and the value of QEMU's `-netdev` without
    /// the `id`.
    pub(super) fn attach(&self) -> Result<(u8, String)> {
        let here = self.vms.fetch_add(1, Ordering::Relaxed) + 1;
        let index = self.before + here;
        let netdev = |tap: &str| format!("tap,ifname={tap},script=no,downscript=no");
        if here > 1 && matches!(self.shape, Shape::Tap | Shape::Socket) {
            return Err(Error::Failed("this link holds one VM; use a bridge".into()));
        }
        if let Some(path) = self.socket_path() {
            let path = path.display();
            return Ok((index, format!("stream,server=on,addr.type=unix,addr.path={path}")));
        }
        if self.shape == Shape::Tap {
            return Ok((1, netdev(LINK)));
        }
        let tap = format!("tap{index}");
        self.ip(&format!("tuntap add dev {tap} mode tap"))?;
        self.ip(&format!("link set {tap} mtu {} master {LINK} up", self.mtu))?;
        Ok((index, netdev(&tap)))
    }

    fn ip(&self, args: &str) -> Result<()> {
        let out = self.command("ip").args(args.split(' ')).stdin(Stdio::null()).output();
        let out = out.map_err(|e| Error::program("ip", &e))?;
        if out.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        Err(Error::Missing(format!("ip {args}: {why}")))
    }
}

/// Returns whether commands in a [`Net`] may load BPF programs. No user namespace has that right.
pub fn bpf_is_permitted() -> bool {
    let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
    let has = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    has && map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// The captured part of each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// The whole frame.
    Whole,
    /// The first 96 bytes, which contain all headers.
    Headers,
}

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    child: Child,
}

impl Capture {
    /// Stops the capture; the file is complete when this returns.
    pub fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, Signal::INT);
        let _ = self.child.wait();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Spawns a command from a thread that lives as long as this process: a "parent death signal" is
/// sent when the spawning *thread* ends, and a test's thread ends long before the process.
///
/// # Errors
/// As for [`Command::spawn`].
pub fn spawn(cmd: Command) -> io::Result<Child> {
    type Job = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = channel::<Job>();
        thread::spawn(move || {
            for (mut cmd, reply) in inbox {
                let _ = reply.send(cmd.spawn());
            }
        });
        jobs
    });
    let (reply, answer) = channel();
    let gone = |_| io::Error::other("the spawner thread is gone");
    spawner.send((cmd, reply)).map_err(|_| io::Error::other("the spawner thread is gone"))?;
    answer.recv().map_err(gone)?
}

/// Creates the namespaces in a child and keeps them open after the child has ended.
fn unshare() -> Result<(Option<File>, File)> {
    let root = rustix::process::geteuid().is_root();
    let tries: &[(&str, bool)] =
        if root { &[("-n", false), ("-Urn", true)] } else { &[("-Urn", true)] };
    let mut why = String::new();
    for (flag, user) in tries {
        let mut cmd = Command::new("unshare");
        cmd.arg(flag);
        match hold(cmd, *user, |_| ()) {
            Ok(files) => return Ok(files),
            Err(e) => why = format!("unshare {flag}: {e}"),
        }
    }
    Err(Error::Missing(format!("cannot make a network namespace ({why})")))
}

/// Runs this `unshare` command, opens its namespaces, and calls `f` with its process ID.
fn hold(mut unshare: Command, user: bool, f: impl FnOnce(u32)) -> io::Result<(Option<File>, File)> {
    let mut child = unshare
        .args(["sh", "-c", "echo up; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    let open = |kind: &str| File::open(format!("/proc/{}/ns/{kind}", child.id()));
    let files = if line.trim() == "up" {
        open("net").and_then(|net| Ok((if user { Some(open("user")?) } else { None }, net)))
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    };
    if files.is_ok() {
        f(child.id());
    }
    // Closing its input ends the child.
    drop(child.stdin.take());
    let out = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    let (user, net) =
        files.map_err(|e| if said.is_empty() { e } else { io::Error::other(said) })?;
    debug_assert!(net.as_fd().as_raw_fd() > 2);
    Ok((user, net))
}
