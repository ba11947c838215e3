//! `cargo xtask kernel`: runs a command in a VM with a real kernel.

use rxe_harness::vm::{
    self, Cmd, Frames, HOST_V4, HOST_V6, Kernel, LINK, Net, Proc, Result, Spec, Vm,
};
use std::env;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The VM to boot and the command to run in it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// 5.10, 6.1, 6.12, 7.2, the version of another Debian backport, a .deb, or a directory of
    /// unpacked packages
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// The number of VMs; with two, they and the host share a bridge
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    vms: u8,
    /// The link's MTU (path MTU 4096 needs 4176)
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: u32,
    /// A directory that the VM may write to, at the same path; everything else is read-only
    #[arg(long, value_name = "DIR")]
    share: Vec<PathBuf>,
    /// Memory in MiB
    #[arg(long, default_value_t = 1500)]
    memory: u32,
    /// A shell command for the host's end of the link, run at the same time
    #[arg(long, value_name = "SCRIPT")]
    host_command: Option<String>,
    /// A shell command for the second VM, run at the same time
    #[arg(long, value_name = "SCRIPT")]
    vm2_command: Option<String>,
    /// Write the packets on the link to a pcap file
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Do not create rxe0
    #[arg(long)]
    no_rxe: bool,
    /// Network cards on which AF_XDP has zero copy, and two more of them that are connected to each
    /// other
    #[arg(long)]
    xdp: bool,
    /// Show the console and how long booting took
    #[arg(long, short)]
    verbose: bool,
    /// The command for the (first) VM; without one, a shell
    #[arg(last = true)]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let kernel = Kernel::find(&args.kernel)?;
    let net = if args.vms == 1 { Net::tap(args.mtu)? } else { Net::bridge(args.mtu)? };
    let full = |p: &PathBuf| p.canonicalize().map_err(|e| failed(&p.display().to_string(), &e));
    let spec = Spec {
        memory: args.memory,
        shares: args.share.iter().map(full).collect::<Result<_>>()?,
        rxe: !args.no_rxe,
        xdp: args.xdp,
        verbose: args.verbose,
        ..Spec::default()
    };
    let vms = boot(&net, &kernel, &spec, args.vms)?;
    if args.verbose {
        let took: Vec<String> = vms.iter().map(|v| format!("{:?}", v.boot_time())).collect();
        eprintln!("xtask: {} booted in {}", kernel.name, took.join(", "));
    }
    let capture = match &args.capture {
        Some(file) => Some(net.capture(file, Frames::Whole)?),
        None => None,
    };
    let code = if args.command.is_empty() { shell(&vms[0]) } else { commands(args, &net, &vms) };
    if let Some(c) = capture {
        // Packets that were just sent must reach the file.
        thread::sleep(Duration::from_millis(200));
        c.stop();
    }
    Ok(ExitCode::from(u8::try_from(code?).unwrap_or(1)))
}

fn boot(net: &Net, kernel: &Kernel, spec: &Spec, count: u8) -> Result<Vec<Vm>> {
    thread::scope(|s| {
        let all: Vec<_> = (0..count).map(|_| s.spawn(|| Vm::boot(net, kernel, spec))).collect();
        let mut vms = all
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(vm::Error::Failed("booting panicked".into()))))
            .collect::<Result<Vec<_>>>()?;
        vms.sort_by_key(Vm::v4);
        Ok(vms)
    })
}

fn commands(args: &Args, net: &Net, vms: &[Vm]) -> Result<i32> {
    let here = env::current_dir().unwrap_or_default().display().to_string();
    let start = |vm: &Vm, cmd: Cmd| Guest::start(vm, cmd.cwd(here.clone()));
    let first = start(&vms[0], Cmd::from(args.command.as_slice()))?;
    if io::stdin().is_terminal() {
        drop(first.proc.stdin());
    } else {
        forward(io::stdin(), first.proc.stdin());
    }
    let mut guests = vec![first];
    if let (Some(script), Some(vm)) = (&args.vm2_command, vms.get(1)) {
        let guest = start(vm, Cmd::sh(script))?;
        drop(guest.proc.stdin());
        guests.push(guest);
    }
    let mut host = None;
    if let Some(script) = &args.host_command {
        let mut cmd = net.command("/bin/sh");
        cmd.args(["-c", script]).stdin(Stdio::null());
        cmd.env("RXE_LINK", LINK).env("RXE_V4", HOST_V4.to_string());
        cmd.env("RXE_V6", HOST_V6.to_string()).env("RXE_VM_V4", vms[0].v4().to_string());
        cmd.env("RXE_VM_V6", vms[0].v6().to_string());
        host = Some(vm::spawn(cmd).map_err(|e| failed("/bin/sh", &e))?);
    }
    wait(guests, host)
}

/// A command in a VM, whose output is forwarded to ours.
struct Guest {
    proc: Proc,
    output: [JoinHandle<()>; 2],
}

impl Guest {
    fn start(vm: &Vm, cmd: Cmd) -> Result<Self> {
        let proc = vm.spawn(cmd)?;
        let output = [forward(proc.stdout(), io::stdout()), forward(proc.stderr(), io::stderr())];
        Ok(Self { proc, output })
    }
}

/// Waits for all commands. The first failure ends the others and is the result.
fn wait(mut guests: Vec<Guest>, mut host: Option<Child>) -> Result<i32> {
    let mut code = 0;
    while code == 0 && (!guests.is_empty() || host.is_some()) {
        if let Some(guest) = guests.pop() {
            match guest.proc.wait_timeout(Duration::from_millis(10))? {
                None => guests.insert(0, guest),
                Some(c) => {
                    code = c;
                    for t in guest.output {
                        let _ = t.join();
                    }
                }
            }
        } else {
            thread::sleep(Duration::from_millis(10));
        }
        if let Some(child) = &mut host
            && let Ok(Some(status)) = child.try_wait()
        {
            host = None;
            code = if code == 0 { status.code().unwrap_or(1) } else { code };
        }
    }
    if let Some(mut child) = host {
        let _ = child.kill();
        let _ = child.wait();
    }
    Ok(code)
}

/// Runs a shell on a terminal in the VM, which `script` creates.
/// The host's terminal is in raw mode.
fn shell(vm: &Vm) -> Result<i32> {
    let here = env::current_dir().unwrap_or_default().display().to_string();
    let size = stty(&["size"]).unwrap_or_default();
    let mut size = size.split_whitespace();
    let (rows, cols) = (size.next().unwrap_or("24"), size.next().unwrap_or("80"));
    let inner = format!("stty rows {rows} cols {cols} 2>/dev/null; exec bash -l");
    let proc = vm.spawn(Cmd::new("script").args(["-qec", &inner, "/dev/null"]).cwd(here))?;
    let saved = stty(&["-g"]);
    if saved.is_some() {
        stty(&["raw", "-echo"]);
    }
    forward(proc.stdout(), io::stdout());
    forward(io::stdin(), proc.stdin());
    let code = proc.wait();
    if let Some(saved) = saved {
        stty(&[saved.trim()]);
    }
    code
}

fn stty(args: &[&str]) -> Option<String> {
    let out = Command::new("stty").args(args).stdin(Stdio::inherit()).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

fn forward(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buf = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buf) {
            if to.write_all(&buf[..n]).and_then(|()| to.flush()).is_err() {
                break;
            }
        }
    })
}

fn failed(what: &str, e: &io::Error) -> vm::Error {
    vm::Error::Failed(format!("{what}: {e}"))
}
