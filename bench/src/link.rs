//! Creates two network namespaces with a veth pair between them, and runs measurements: a server in
//! one, a client in the other, each on its own CPU if there are two.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use rxe_harness::vm::{Net, Result, spawn};

/// The two namespaces, and the CPUs of their processes.
pub(super) struct Link {
    server: Net,
    client: Net,
    cpus: Option<(usize, usize)>,
}

/// A server and a client to run.
pub(super) struct ServerAndClient<'a> {
    /// The programs with their arguments.
    pub(super) server: &'a [String],
    pub(super) client: &'a [String],
    /// The TCP port on which the server listens when it is ready.
    pub(super) port: u16,
    /// Environment variables for both programs.
    pub(super) env: &'a [(&'a str, &'a str)],
    /// Whether both run in the server's namespace.
    pub(super) one_host: bool,
    /// Whether each has its own CPU, if there are two.
    pub(super) bound: bool,
}

impl<'a> ServerAndClient<'a> {
    pub(super) fn new(server: &'a [String], client: &'a [String]) -> Self {
        Self { server, client, port: 0, env: &[], one_host: false, bound: true }
    }
}

/// One of several programs that run simultaneously.
pub(super) struct Process {
    /// The program with its arguments.
    pub(super) program: Vec<String>,
    /// Whether it runs in the client's namespace, rather than the server's.
    pub(super) at_client: bool,
    /// The CPUs that it may use, such as `0,1`.
    pub(super) cpus: String,
    /// The TCP port on which it listens when the next program may be started.
    pub(super) port: Option<u16>,
}

/// The result of a [`ServerAndClient`].
pub(super) struct RunResult {
    /// The client's output.
    pub(super) text: String,
    /// The CPU time of both, in user and kernel mode.
    pub(super) cpu: Duration,
}

impl RunResult {
    /// Runs `run`, which returns the text, and measures the CPU time of its children.
    fn of(
        run: impl FnOnce() -> std::result::Result<String, String>,
    ) -> std::result::Result<Self, String> {
        let before = cpu_of_children();
        let text = run()?;
        Ok(Self { text, cpu: cpu_of_children().saturating_sub(before) })
    }
}

/// Returns the CPU time of the children that have ended.
pub(super) fn cpu_of_children() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Duration::ZERO };
    let time = |t: TimeVal| Duration::from_micros(u64::try_from(t.num_microseconds()).unwrap_or(0));
    time(usage.user_time()) + time(usage.system_time())
}

/// The longest time that a measurement may take.
const LIMIT: Duration = Duration::from_secs(60);

impl Link {
    /// Creates the two namespaces, with this MTU on the link between them.
    pub(super) fn new(mtu: u32) -> Result<Self> {
        let (server, client) = Net::pair(mtu)?;
        Ok(Self { server, client, cpus: two_cpus() })
    }

    /// Runs both and returns the client's output.
    /// The client is started when the server listens on its TCP port, and the server is ended when
    /// the client is done.
    pub(super) fn run(&self, pair: &ServerAndClient<'_>) -> std::result::Result<RunResult, String> {
        RunResult::of(|| self.run_both(pair))
    }

    /// Runs a program that starts its other end itself, in the server's namespace.
    /// It is not bound to CPUs.
    pub(super) fn run_one(&self, program: &[String]) -> std::result::Result<RunResult, String> {
        let mut cmd = self.server.command(&program[0]);
        cmd.args(&program[1..]).stdin(Stdio::null());
        cmd.stdout(Stdio::piped()).stderr(Stdio::piped());
        RunResult::of(|| {
            let running = spawn(cmd).map_err(|e| format!("{}: {e}", program[0]))?;
            said(&output_within(running, LIMIT)?)
        })
    }

    fn run_both(&self, pair: &ServerAndClient<'_>) -> std::result::Result<String, String> {
        self.run_while(pair, |_| Ok(())).map(|(text, ())| text)
    }

    /// Runs both, and `work` while the client runs.
    /// `work` gets the process IDs of server and client.
    pub(super) fn run_while<T>(
        &self,
        pair: &ServerAndClient<'_>,
        work: impl FnOnce([u32; 2]) -> std::result::Result<T, String>,
    ) -> std::result::Result<(String, T), String> {
        let ServerAndClient { server, client, port, env, one_host, bound: is_bound } = *pair;
        let cpus = self.cpus.filter(|_| is_bound);
        let make = |net: &Net, cpu: Option<usize>, args: &[String]| {
            let mut cmd = match cpu {
                Some(cpu) => bound(net, &cpu.to_string(), args),
                None => {
                    let mut cmd = net.command(&args[0]);
                    cmd.args(&args[1..]);
                    cmd
                }
            };
            cmd.envs(env.iter().copied()).stdin(Stdio::null());
            cmd
        };
        let mut cmd = make(&self.server, cpus.map(|c| c.0), server);
        cmd.stdout(Stdio::null()).stderr(Stdio::null());
        let mut serving = Ended(spawn(cmd).map_err(|e| format!("{}: {e}", server[0]))?);
        serving.wait_for(port)?;
        let net = if one_host { &self.server } else { &self.client };
        let mut cmd = make(net, cpus.map(|c| c.1), client);
        cmd.stdout(Stdio::piped()).stderr(Stdio::piped());
        let measuring = spawn(cmd).map_err(|e| format!("{}: {e}", client[0]))?;
        let worked = work([serving.0.id(), measuring.id()]);
        let text = said(&output_within(measuring, LIMIT)?)?;
        Ok((text, worked?))
    }

    /// Starts the servers, one after the other, and then all clients.
    /// Returns the output of each client. The servers are ended when all clients are done.
    pub(super) fn run_all(
        &self,
        servers: &[Process],
        clients: &[Process],
    ) -> std::result::Result<Vec<String>, String> {
        let start = |part: &Process, output: fn() -> Stdio| {
            let net = if part.at_client { &self.client } else { &self.server };
            let mut cmd = bound(net, &part.cpus, &part.program);
            cmd.stdin(Stdio::null()).stdout(output()).stderr(output());
            spawn(cmd).map_err(|e| format!("{}: {e}", part.program[0]))
        };
        let mut serving = Vec::new();
        for part in servers {
            let mut server = Ended(start(part, Stdio::null)?);
            if let Some(port) = part.port {
                server.wait_for(port)?;
            }
            serving.push(server);
        }
        let measuring: Vec<_> = clients.iter().map(|part| start(part, Stdio::piped)).collect();
        // All clients are waited for, even after one has failed.
        let ended: Vec<_> = measuring.into_iter().map(|m| output_within(m?, LIMIT)).collect();
        ended.into_iter().map(|output| said(&output?)).collect()
    }

    /// Returns a command that runs a program in the client's namespace.
    pub(super) fn at_client(&self, program: &str) -> Command {
        self.client.command(program)
    }

    /// Returns the CPUs of server and client, if each has its own.
    pub(super) fn cpus(&self) -> Option<(usize, usize)> {
        self.cpus
    }

    /// Returns the server's address.
    pub(super) fn host(&self) -> String {
        rxe_harness::vm::HOST_V4.to_string()
    }
}

/// Returns a command that runs a program with its arguments on these CPUs.
fn bound(net: &Net, cpus: &str, program: &[String]) -> Command {
    let mut cmd = net.command("taskset");
    cmd.args(["-c", cpus]).args(program);
    cmd
}

/// Returns the output of a program, or its last line as an error if it failed.
fn said(Output { status, stdout, stderr }: &Output) -> std::result::Result<String, String> {
    let text = String::from_utf8_lossy(stdout).into_owned();
    if status.success() {
        return Ok(text);
    }
    let said = String::from_utf8_lossy(stderr).into_owned();
    let last = said.lines().chain(text.lines()).last().unwrap_or("it said nothing");
    Err(format!("{status}: {last}"))
}

/// A process that is ended when this value is dropped.
struct Ended(Child);

impl Ended {
    /// Waits until the server listens on this TCP port, over IPv4 or IPv6.
    fn wait_for(&mut self, port: u16) -> std::result::Result<(), String> {
        let start = Instant::now();
        loop {
            // The text matches local port, remote address 0 and state LISTEN, in the server's own
            // namespace.
            let listens = [("tcp", 8), ("tcp6", 32)].into_iter().any(|(table, digits)| {
                let text = fs::read_to_string(format!("/proc/{}/net/{table}", self.0.id()));
                let line = format!(":{port:04X} {}:0000 0A", "0".repeat(digits));
                text.is_ok_and(|text| text.contains(&line))
            });
            if listens {
                return Ok(());
            }
            if let Ok(Some(status)) = self.0.try_wait() {
                return Err(format!("the server ended: {status}"));
            }
            if start.elapsed() > Duration::from_secs(10) {
                return Err("the server does not listen".into());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // Most servers end by themselves when the client has gone.
        for _ in 0..50 {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn output_within(child: Child, limit: Duration) -> std::result::Result<Output, String> {
    let pid = rustix::process::Pid::from_child(&child);
    let (done, wait) = std::sync::mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    match wait.recv_timeout(limit) {
        Ok(output) => output.map_err(|e| e.to_string()),
        Err(_) => {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            Err(format!("not done after {limit:?}"))
        }
    }
}

/// Returns the first two CPUs that this process may use.
/// `None` if there are fewer, or `taskset` cannot be run.
pub(super) fn two_cpus() -> Option<(usize, usize)> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    let mut cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let two = cpus.next().zip(cpus.next())?;
    let version = Command::new("taskset").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|s| s.success()).then_some(two)
}
