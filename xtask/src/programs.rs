//! `cargo xtask programs`: unmodified verbs programs over the preloaded library (`rxe run`), with
//! themselves and with the same programs on a real kernel's rdma_rxe, as server and as client.

use crate::c::{Compiled, TUTORIALS};
use crate::skipped;
use crate::vm::{Cmd, Error, HOST_V4, Kernel, LINK, Net, Proc, Result, Spec, Vm, spawn};
use crate::{programs_cm, programs_fabric, programs_ucx};
use std::cell::Cell;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Which side is the server and which the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// Both are ours, on one address.
    OursOurs,
    /// Our server, the kernel's client.
    OursKernel,
    /// The kernel's server, our client.
    KernelOurs,
}

impl Sides {
    /// All, in the order of the table.
    pub const ALL: [Self; 3] = [Self::OursOurs, Self::OursKernel, Self::KernelOurs];

    /// The name in the table and in filters: server, client.
    pub fn name(self) -> &'static str {
        match self {
            Self::OursOurs => "ours–ours",
            Self::OursKernel => "ours–kernel",
            Self::KernelOurs => "kernel–ours",
        }
    }
}

/// A program and its options.
struct Program {
    name: &'static str,
    options: &'static str,
    /// Runs between two of ours only, mostly because kernel rxe cannot do it.
    ours_only: bool,
}

const fn with(name: &'static str, options: &'static str) -> Program {
    Program { name, options, ours_only: false }
}

const fn ours(name: &'static str, options: &'static str) -> Program {
    Program { name, options, ours_only: true }
}

const ALL: &[Program] = &[
    with("ibv_rc_pingpong", "-n 200 -c"),
    with("ibv_rc_pingpong", "-n 200 -c -e"),
    ours("ibv_rc_pingpong", "-n 200 -c -t"),
    with("ibv_uc_pingpong", "-n 200"),
    with("ibv_uc_pingpong", "-n 200 -e"),
    with("ibv_ud_pingpong", "-n 200 -s 1024"),
    with("ibv_ud_pingpong", "-n 200 -s 1024 -e"),
    with("ibv_srq_pingpong", "-n 200"),
    with("ibv_srq_pingpong", "-n 200 -e"),
    ours("ibv_xsrq_pingpong", "-n 200"),
    with("ib_send_bw", "-n 100"),
    with("ib_send_bw", "-n 100 -s 1024 -c UC -r 200"),
    with("ib_send_bw", "-n 100 -c UD -r 200"),
    with("ib_send_bw", "-n 100 -b"),
    with("ib_send_bw", "-n 100 -e"),
    with("ib_send_bw", "-n 100 --use-srq"),
    with("ib_send_bw", "-n 100 -q 8"),
    with("ib_send_bw", "-D 2"),
    with("ib_send_lat", "-n 100"),
    // It hangs with a 7.2 kernel, and also between two 7.2 kernels.
    ours("ib_send_lat", "-n 100 -e"),
    with("ib_send_lat", "-n 100 -I 64 -s 64"),
    with("ib_send_lat", "-n 100 -c UC"),
    with("ib_send_lat", "-n 100 -c UD"),
    with("ib_write_bw", "-n 100"),
    with("ib_write_bw", "-n 100 -c UC"),
    with("ib_write_bw", "-n 100 -b"),
    with("ib_write_bw", "-n 100 -q 8"),
    with("ib_write_bw", "-n 100 -s 1"),
    with("ib_write_bw", "-n 10 -s 1048576"),
    with("ib_write_bw", "-n 5 -a"),
    with("ib_write_bw", "-D 2"),
    with("ib_write_lat", "-n 100"),
    with("ib_write_lat", "-n 100 -c UC"),
    with("ib_write_lat", "-n 100 -I 64 -s 64"),
    with("ib_read_bw", "-n 100"),
    with("ib_read_bw", "-n 100 -b"),
    with("ib_read_bw", "-n 100 -e"),
    with("ib_read_bw", "-n 100 -q 8"),
    with("ib_read_bw", "-D 2"),
    with("ib_read_lat", "-n 100"),
    with("ib_atomic_bw", "-n 100"),
    with("ib_atomic_bw", "-n 100 -b"),
    with("ib_atomic_bw", "-n 100 -q 8"),
    with("ib_atomic_bw", "-D 2"),
    with("ib_atomic_lat", "-n 100"),
    with(TUTORIALS[0], "-p 18515"),
];

/// Which rows to run with a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// Rows with a kernel on one side. Rows with both sides ours do not depend on the kernel.
    WithKernel,
    /// Every other row; [`Which::Odd`] has the rest. The kernel's role changes from row to row.
    Even,
    /// The rows that [`Which::Even`] leaves out.
    Odd,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only rows of which `PROGRAM OPTIONS, SIDES` contains this.
    pub filter: Option<String>,
    /// Which of the rows.
    pub which: Which,
    /// The command `rxe`, with the library beside it.
    pub rxe: PathBuf,
    /// Whether to report each row on standard error.
    pub verbose: bool,
}

/// The outcome of one row.
#[derive(Clone, Debug)]
pub struct Row {
    /// The program and its options.
    pub what: String,
    /// Which side was the server and which the client.
    pub sides: Sides,
    /// Why it failed.
    pub failed: Option<String>,
}

/// Runs all programs with one kernel, such as `6.1`.
///
/// # Errors
/// When there is no VM: [`Error::Missing`] if this machine cannot have it.
pub fn run(kernel: &str, options: &Options) -> Result<Vec<Row>> {
    let found = Kernel::find(kernel)?;
    let net = Net::tap(LINK_MTU)?;
    let vm = Vm::boot(&net, &found, &Spec::default())?;
    let kernel_gid = gid_in_vm(&vm)?;
    let c = match Compiled::new(&TUTORIALS) {
        Ok(compiled) => Some(compiled),
        Err(Error::Missing(why)) => {
            skipped("the C programs of tests/c/tutorial", &why);
            None
        }
        Err(e) => return Err(e),
    };
    let world = World { kernel, vm: &vm, net: &net, options, kernel_gid, c, number: Cell::new(0) };
    let mut rows = Vec::new();
    for program in ALL {
        for sides in Sides::ALL {
            let what = format!("{} {}", program.name, program.options);
            if !program.ours_only || sides == Sides::OursOurs {
                world.row(what, sides, || world.play(program, sides), &mut rows);
            }
        }
    }
    programs_cm::run(&world, &mut rows);
    programs_ucx::run(&world, &mut rows);
    programs_fabric::run(&world, &mut rows);
    Ok(rows)
}

/// The link's MTU, large enough for path MTU 4096.
const LINK_MTU: u32 = 4200;

/// The most time that one run may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(240);

/// The rows as a Markdown table; results with several kernels are merged.
pub fn table(rows: &[(&str, Vec<Row>)]) -> String {
    let mut out = "| program | options |".to_owned();
    for sides in Sides::ALL {
        let _ = write!(out, " {} |", sides.name());
    }
    out += "\n| --- | --- | --- | --- | --- |\n";
    let ours = ALL.iter().map(|p| (p.name, p.options));
    let by_address = programs_cm::ALL.iter().map(|p| (p.name, p.options));
    let by_tcp = programs_fabric::ALL.iter().map(|p| (p.name, p.options));
    for (name, options) in ours.chain(by_address).chain(programs_ucx::names()).chain(by_tcp) {
        let what = format!("{name} {options}");
        let mark = |sides| {
            let of_all =
                rows.iter().flat_map(|(kernel, rows)| rows.iter().map(move |r| (kernel, r)));
            let mut found = of_all.filter(|(_, r)| r.what == what && r.sides == sides).peekable();
            if found.peek().is_none() {
                return "".to_owned();
            }
            let bad: Vec<_> = found.filter(|(_, r)| r.failed.is_some()).map(|(k, _)| *k).collect();
            if bad.is_empty() { "ok".into() } else { format!("FAILED ({})", bad.join(", ")) }
        };
        let marks = Sides::ALL.map(mark);
        let options = options.replace('|', "\\|");
        let _ = writeln!(out, "| {name} | `{options}` | {} |", marks.join(" | "));
    }
    out
}

pub(crate) struct World<'a> {
    pub(crate) kernel: &'a str,
    pub(crate) vm: &'a Vm,
    net: &'a Net,
    options: &'a Options,
    kernel_gid: u32,
    /// The compiled C programs, if this machine can compile them.
    c: Option<Compiled>,
    /// Of the next row.
    number: Cell<usize>,
}

/// A running program.
pub(crate) enum Running {
    Ours(Child),
    Theirs(Proc),
}

/// What our end reports when kernel 6.1 resends a message wrongly. On a busy machine the kernel
/// sometimes has to resend, and now and then starts one packet too early (SEND ONLY in place of SEND
/// FIRST, FIRST in place of the first MIDDLE). The only answer to that is a NAK.
const SHIFTED: &str = "this packet does not continue the message before it";

impl World<'_> {
    /// Runs a row if it is wanted, and records its outcome.
    pub(crate) fn row(
        &self,
        what: String,
        sides: Sides,
        play: impl Fn() -> Result<()>,
        rows: &mut Vec<Row>,
    ) {
        let id = format!("{what}, {}", sides.name());
        let filter = self.options.filter.as_ref();
        let number = self.number.replace(self.number.get() + 1);
        let wanted = match self.options.which {
            Which::All => true,
            Which::WithKernel => sides != Sides::OursOurs,
            Which::Even => number.is_multiple_of(2),
            Which::Odd => !number.is_multiple_of(2),
        };
        if !wanted || self.c.is_none() && what.starts_with("tests/c/") {
            return;
        }
        if !filter.is_none_or(|filter| id.contains(filter.as_str())) {
            return;
        }
        let start = Instant::now();
        let mut failed = play().err().map(|e| e.to_string());
        if failed.as_ref().is_some_and(|why| why.contains(SHIFTED)) {
            eprintln!("{} {id}: the kernel sent a message again wrongly; again", self.kernel);
            failed = play().err().map(|e| e.to_string());
        }
        if self.options.verbose {
            let how = failed.as_deref().unwrap_or("ok");
            let time = start.elapsed().as_secs_f64();
            eprintln!("{time:7.2} s  {} {id}: {how}", self.kernel);
        }
        rows.push(Row { what, sides, failed });
    }

    fn play(&self, program: &Program, sides: Sides) -> Result<()> {
        let server_is_ours = sides != Sides::KernelOurs;
        let mut server = self.start(program, server_is_ours, None)?;
        self.listening(PORT, server_is_ours, &mut server)?;
        let address = if server_is_ours { HOST_V4 } else { self.vm.v4() }.to_string();
        let client = self.start(program, sides != Sides::OursKernel, Some(&address))?;
        let (client_good, client_said) = client.end(TIMEOUT)?;
        // If the client failed, the server may wait forever.
        let left = if client_good { TIMEOUT } else { Duration::from_secs(2) };
        let (server_good, server_said) = server.end(left)?;
        if client_good && server_good {
            return Ok(());
        }
        let both = format!("server: {server_said}; client: {client_said}");
        Err(failed(both.replace('\n', " | ")))
    }

    fn start(&self, program: &Program, ours: bool, server: Option<&str>) -> Result<Running> {
        let gid = if ours { OUR_GID } else { self.kernel_gid }.to_string();
        let mut args: Vec<&str> =
            match program.name.starts_with("ibv_") || program.name.ends_with(".c") {
                true => vec!["-g", &gid],
                // No complaints about the CPU's frequency.
                false => vec!["-x", &gid, "-F"],
            };
        args.extend(program.options.split(' '));
        args.extend(server);
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        self.spawn(program.name, &args, ours)
    }

    /// Starts a program on one side.
    pub(crate) fn spawn(&self, program: &str, args: &[String], ours: bool) -> Result<Running> {
        let compiled = self.c.as_ref().filter(|_| program.ends_with(".c"));
        let program = compiled.map_or(PathBuf::from(program), |c| c.path(program));
        if !ours {
            let program = program.to_string_lossy();
            return Ok(Running::Theirs(self.vm.spawn(Cmd::new(&*program).args(args))?));
        }
        let mut command = self.net.command(&self.options.rxe);
        command.args(["run", "--device", LINK, "--"]).arg(program).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn(command).map_err(|e| failed(format!("rxe run: {e}")))?;
        Ok(Running::Ours(child))
    }

    /// Waits until a server listens, or has ended.
    pub(crate) fn listening(&self, port: u16, ours: bool, server: &mut Running) -> Result<()> {
        let look = format!("ss -Htln 'sport = :{port}' | grep -q .");
        self.until(&look, ours, server, &format!("the server does not listen on port {port}"))
    }

    /// Waits until a shell command succeeds on one side, or `server` has ended.
    pub(crate) fn until(
        &self,
        look: &str,
        ours: bool,
        server: &mut Running,
        otherwise: &str,
    ) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        while Instant::now() < end {
            let seen = if ours {
                let mut shell: Command = self.net.command("sh");
                shell.args(["-c", look]).status().is_ok_and(|s| s.success())
            } else {
                self.vm.run(Cmd::sh(look))?.code == 0
            };
            if seen || server.has_ended()? {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(failed(otherwise))
    }
}

/// The TCP port of the pingpongs and perftest.
const PORT: u16 = 18515;

/// The GID index of [`HOST_V4`] on our device: index 0 is made of the hardware address.
const OUR_GID: u32 = 1;

/// The GID index of the VM's IPv4 address on its device.
fn gid_in_vm(vm: &Vm) -> Result<u32> {
    let [a, b, c, d] = vm.v4().octets();
    let gid = format!("ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
    let look = format!(
        "cd /sys/class/infiniband/*/ports/1/gids && grep -l {gid} [0-9]* 2> /dev/null | head -n 1"
    );
    let out = vm.run(Cmd::sh(look))?;
    let text = out.text();
    text.trim().parse().map_err(|_| failed(format!("the VM's device has no {gid}: {text}")))
}

impl Running {
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        match self {
            Self::Ours(child) => Ok(child.try_wait().is_ok_and(|s| s.is_some())),
            Self::Theirs(proc) => Ok(proc.wait_timeout(Duration::ZERO)?.is_some()),
        }
    }

    /// Waits for its end, and ends it where that takes too long: whether it was a good one, and what
    /// it said.
    pub(crate) fn end(mut self, timeout: Duration) -> Result<(bool, String)> {
        let end = Instant::now() + timeout;
        while Instant::now() < end && !self.has_ended()? {
            thread::sleep(Duration::from_millis(10));
        }
        let ended = self.has_ended()?;
        let (good, said) = match self {
            Self::Ours(mut child) => {
                let _ = child.kill();
                let out = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
                (out.status.success(), [out.stdout, out.stderr].concat())
            }
            Self::Theirs(proc) => {
                if !ended {
                    proc.kill("KILL");
                }
                let out = proc.output()?;
                (out.code == 0, [out.stdout, out.stderr].concat())
            }
        };
        let why = if ended { "" } else { "(it did not end) " };
        Ok((good && ended, format!("{why}{}", String::from_utf8_lossy(&said))))
    }
}

pub(crate) fn failed(why: impl Into<String>) -> Error {
    Error::Failed(why.into())
}
