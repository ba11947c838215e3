//! The places where programs run: here under `rxe run`, and in a VM on a kernel's `rdma_rxe`.

use super::watch::{KERNEL, Watch};
use crate::c::Compiled;
use crate::skipped;
use crate::vm::{Cmd, Error, HOST_V4, LINK, Net, Proc, Result, Vm, spawn};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// The sides of the server and the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// Both are ours, on one address.
    OursOurs,
    /// The server is ours, the client is the kernel's.
    OursKernel,
    /// The server is the kernel's, the client is ours.
    KernelOurs,
}

impl Sides {
    /// All values, in the order of the table.
    pub const ALL: [Self; 3] = [Self::OursOurs, Self::OursKernel, Self::KernelOurs];

    /// Returns the name in the table and in filters: server, client.
    pub fn name(self) -> &'static str {
        match self {
            Self::OursOurs => "rxe–rxe",
            Self::OursKernel => "rxe–kernel",
            Self::KernelOurs => "kernel–rxe",
        }
    }
}

/// The rows to run with a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All rows.
    All,
    /// Rows with a kernel on one side. Rows with both sides ours do not depend on the kernel.
    WithKernel,
    /// Every other row with a kernel on one side; [`Which::Odd`] has the other half. The kernel's
    /// role changes from row to row. Both halves omit some programs, and report them.
    Even,
    /// The rows with a kernel that [`Which::Even`] omits.
    Odd,
}

impl Which {
    /// Returns whether this is a part of the rows.
    fn is_brief(self) -> bool {
        matches!(self, Self::Even | Self::Odd)
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only rows whose `PROGRAM OPTIONS, SIDES` contains this string are run.
    pub filter: Option<String>,
    /// The rows to run.
    pub which: Which,
    /// The backend of our end; `None` for the programs' default.
    pub backend: Option<String>,
    /// The path of the command `rxe`, with the library next to it.
    pub rxe: PathBuf,
    /// Whether to report each row on standard error.
    pub verbose: bool,
}

impl Options {
    /// Returns whether only one of our processes can use the interface.
    pub(super) fn is_alone(&self) -> bool {
        let name = self.backend.as_deref().and_then(|backend| backend.split(':').next());
        name == Some("xdp")
    }
}

/// The outcome of one row.
#[derive(Clone, Debug)]
pub struct Row {
    /// The program and its options.
    pub what: String,
    /// The sides of the server and the client.
    pub sides: Sides,
    /// The reason of the failure, if the row failed.
    pub failed: Option<String>,
}

/// The time limit of a run.
pub(super) const TIMEOUT: Duration = Duration::from_secs(240);

/// The code of the acknowledgement timeout of both sides: 1 s. Programs set 67 ms, and would
/// abandon a VM that gets no processor for 0.54 s.
pub(super) const ACK_TIMEOUT: &str = "18";

pub(super) struct World<'a> {
    pub(super) kernel: &'a str,
    pub(super) vm: &'a Vm,
    pub(super) net: &'a Net,
    pub(super) options: &'a Options,
    pub(super) kernel_gid: u32,
    /// The compiled C programs, if this machine can compile them.
    pub(super) c: Option<Compiled>,
    /// A file of random bytes for programs that send a file. Both sides can read it.
    pub(super) file: NamedTempFile,
    /// The number of the next row.
    pub(super) number: Cell<usize>,
}

/// A running program.
pub(super) enum Running {
    Ours(Child),
    Theirs(Proc),
}

impl World<'_> {
    /// Returns, and reports, whether a program is omitted because not all rows run.
    pub(super) fn leaves_out(&self, what: &str) -> bool {
        let brief = self.options.which.is_brief();
        if brief {
            skipped(&format!("{what} with kernel {}", self.kernel), "only with --all");
        }
        brief
    }

    /// Runs a row if it is chosen, and records its outcome.
    pub(super) fn row(
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
            _ if sides == Sides::OursOurs => false,
            Which::WithKernel => true,
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
        let is_watched = self.kernel == KERNEL && sides != Sides::OursOurs;
        let outcome = if is_watched { self.watch(&id, &play) } else { play() };
        let failed = outcome.err().map(|e| e.to_string());
        if self.options.verbose {
            let how = failed.as_deref().unwrap_or("ok");
            let time = start.elapsed().as_secs_f64();
            eprintln!("{time:7.2} s  {} {id}: {how}", self.kernel);
        }
        rows.push(Row { what, sides, failed });
    }

    /// Runs a row with kernel 6.1, and once more if it fails and the packets prove the kernel's
    /// bug.
    fn watch(&self, id: &str, play: impl Fn() -> Result<()>) -> Result<()> {
        let watch = Watch::begin(self.net)?;
        let Err(why) = play() else { return Ok(()) };
        let Some(changed) = watch.changed_request(&self.options.rxe, self.vm.v4())? else {
            return Err(why);
        };
        eprintln!("{} {id}: run again, the kernel changed a request: {changed}", self.kernel);
        play()
    }

    /// Returns the IPv4 address of one side.
    pub(super) fn address(&self, ours: bool) -> Ipv4Addr {
        if ours { HOST_V4 } else { self.vm.v4() }
    }

    /// Returns the device of one side.
    pub(super) fn device(ours: bool) -> &'static str {
        // Our device is named after the interface, `LINK`.
        if ours { "rxe_link0" } else { "rxe0" }
    }

    /// Returns the index of [`World::address`] in the GID table of one side. Index 0 of our device
    /// is derived from the hardware address.
    pub(super) fn gid(&self, ours: bool) -> u32 {
        if ours { 1 } else { self.kernel_gid }
    }

    /// Returns `rxe run` with the options of our side, without the program.
    pub(super) fn rxe_run(&self) -> Vec<String> {
        let rxe = self.options.rxe.to_string_lossy();
        let backend = self.options.backend.iter().flat_map(|name| ["--backend", name.as_str()]);
        let options = [&*rxe, "run", "--device", LINK, "--ack-timeout", ACK_TIMEOUT];
        let words = options.into_iter().chain(backend).chain(["--"]);
        words.map(str::to_owned).collect()
    }

    /// Starts a program on one side.
    pub(super) fn spawn(&self, program: &str, args: &[String], ours: bool) -> Result<Running> {
        let compiled = self.c.as_ref().filter(|_| program.ends_with(".c"));
        let program = compiled.map_or(PathBuf::from(program), |c| c.path(program));
        if !ours {
            let program = program.to_string_lossy();
            return Ok(Running::Theirs(self.vm.spawn(Cmd::new(&*program).args(args))?));
        }
        let run = self.rxe_run();
        let mut command = self.net.command(&run[0]);
        command.args(&run[1..]).arg(program).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn(command).map_err(|e| failed(format!("rxe run: {e}")))?;
        Ok(Running::Ours(child))
    }

    /// Waits until a server listens, or has ended.
    pub(super) fn listening(&self, port: u16, server: &mut Running) -> Result<()> {
        let look = format!("ss -Htln 'sport = :{port}' | grep -q .");
        self.until(&look, server, &format!("the server does not listen on port {port}"))
    }

    /// Waits until a shell command succeeds on the server's side, or the server has ended.
    pub(super) fn until(&self, look: &str, server: &mut Running, otherwise: &str) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        while Instant::now() < end {
            let seen = match server {
                Running::Ours(_) => {
                    let mut shell: Command = self.net.command("sh");
                    shell.args(["-c", look]).status().is_ok_and(|s| s.success())
                }
                Running::Theirs(_) => self.vm.run(Cmd::sh(look))?.code == 0,
            };
            if seen || server.has_ended()? {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(failed(otherwise))
    }
}

impl Running {
    pub(super) fn has_ended(&mut self) -> Result<bool> {
        match self {
            Self::Ours(child) => Ok(child.try_wait().is_ok_and(|s| s.is_some())),
            Self::Theirs(proc) => Ok(proc.wait_timeout(Duration::ZERO)?.is_some()),
        }
    }

    fn has_failed(&mut self) -> Result<bool> {
        match self {
            Self::Ours(child) => {
                Ok(child.try_wait().is_ok_and(|s| s.is_some_and(|s| !s.success())))
            }
            Self::Theirs(proc) => {
                Ok(proc.wait_timeout(Duration::ZERO)?.is_some_and(|code| code != 0))
            }
        }
    }

    /// Waits until the program ends, and kills it after `timeout`. Returns whether it succeeded,
    /// and its output.
    pub(super) fn end(self, timeout: Duration) -> Result<(bool, String)> {
        self.end_unless(timeout, || Ok(false))
    }

    /// Like [`Running::end`], but kills the program soon after the server has failed. It may wait
    /// forever.
    pub(super) fn end_with(self, server: &mut Self, timeout: Duration) -> Result<(bool, String)> {
        self.end_unless(timeout, || server.has_failed())
    }

    fn end_unless(
        mut self,
        timeout: Duration,
        mut partner_failed: impl FnMut() -> Result<bool>,
    ) -> Result<(bool, String)> {
        /// How long the program may still print its error.
        const GRACE: Duration = Duration::from_secs(5);
        let (mut end, mut alone) = (Instant::now() + timeout, false);
        while Instant::now() < end && !self.has_ended()? {
            if !alone && partner_failed()? {
                alone = true;
                end = end.min(Instant::now() + GRACE);
            }
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
        let said = String::from_utf8_lossy(&said);
        let good = good || asked_too_late(&said);
        let why = if ended { "" } else { "(it did not end) " };
        Ok((good && ended, format!("{why}{said}")))
    }
}

/// Returns whether a program that failed has succeeded, by its output. Before rdma-core 61, rping may
/// fail when all is done: one thread destroys the event channel, and another then asks for an event.
/// If anything else went wrong, it says what failed.
fn asked_too_late(said: &str) -> bool {
    let late = |line: &str| line.starts_with("rdma_get_cm_event: Bad file descriptor");
    said.lines().any(late) && !said.contains("failed")
}

/// Creates a file of `bytes` random bytes.
///
/// # Errors
/// The file cannot be written.
pub(super) fn random_file(bytes: u64) -> Result<NamedTempFile> {
    let failed = |e: io::Error| failed(format!("a file with random bytes: {e}"));
    let mut file = NamedTempFile::with_prefix("rxe-sent-").map_err(failed)?;
    let random = File::open("/dev/urandom").map_err(failed)?;
    io::copy(&mut random.take(bytes), &mut file).map_err(failed)?;
    Ok(file)
}

pub(super) fn failed(why: impl Into<String>) -> Error {
    Error::Failed(why.into())
}

/// Returns whether this machine has the program; the VM runs the same programs.
pub(super) fn installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|out| out.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_for_one_process_with_xdp_only() {
        let options = |backend: Option<&str>| Options {
            filter: None,
            which: Which::WithKernel,
            backend: backend.map(str::to_owned),
            rxe: PathBuf::new(),
            verbose: false,
        };
        assert!(options(Some("xdp")).is_alone() && options(Some("xdp:generic")).is_alone());
        assert!(!options(Some("packet")).is_alone() && !options(None).is_alone());
    }

    #[test]
    fn a_client_whose_server_has_failed_ends() {
        let start = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            Running::Ours(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        };
        const HOUR: Duration = Duration::from_secs(3600);
        let mut failed = start("exit 1");
        let (good, said) = start("exec sleep 3600").end_with(&mut failed, HOUR).unwrap();
        assert!(!good && said.starts_with("(it did not end)"), "{said}");
        let mut good_server = start("exit 0");
        let client = start("sleep 1; echo done").end_with(&mut good_server, HOUR).unwrap();
        assert_eq!(client, (true, "done\n".to_owned()));
    }
}
