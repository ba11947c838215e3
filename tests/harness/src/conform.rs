//! `cargo xtask conform`: runs the cases of `rxe conform` with real kernels and with this engine,
//! and writes the report page.

mod page;

use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::c::Compiled;
use crate::vm::{self, Cmd, Error, HOST_V4, HOST_V6, Kernel, LINK, Net, Result, Spec, Vm};
pub use page::{differences, page};

/// The source of the peer program, from the root of the sources.
const PEER: &str = "rxe-cli/src/common/peer/peer.c";

/// The compiler options of the peer program; it includes the part that uses the communication
/// manager.
const OPTIONS: [&str; 3] = ["-DWITH_CM", "-libverbs", "-lrdmacm"];

/// The tester's addresses when the peer is on this host too. If both ends shared one address,
/// either could receive a request that belongs to neither.
const OWN_V4: &str = "10.47.91.201";
const OWN_V6: &str = "fd47:91::c9";

/// How long the peer may take until it answers. VMs are emulated, and the machine may be busy.
const SET_UP: Duration = Duration::from_secs(60);

/// The TCP port of the peer.
const PORT: u16 = 18520;

/// The network protocol of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Over {
    /// Both protocols.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the name of the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    fn address_of(self, vm: &Vm) -> IpAddr {
        match self {
            Self::V4 => vm.v4().into(),
            Self::V6 => vm.v6().into(),
        }
    }
}

/// The results with one peer.
#[derive(Clone, Debug)]
pub struct Run {
    /// The name of the peer: `Linux 6.1`, or this engine.
    pub name: String,
    /// The network protocol.
    pub over: Over,
    /// The exact version of the peer.
    pub version: String,
    /// The results of the cases.
    pub cases: Vec<Case>,
}

/// A case and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The group of the case. The cases of a group are adjacent.
    pub group: String,
    /// The name of the case.
    pub name: String,
    /// The rule that is tested.
    pub rule: String,
    /// The packets that the peer is sent.
    pub sends: String,
    /// The behaviour of a conforming peer.
    pub allows: String,
    /// `conforms`, `deviates` or `not testable`.
    pub verdict: String,
    /// The behaviour of the peer, if it deviates.
    pub found: Option<String>,
}

/// Runs all cases with a kernel in a VM. `rxe` is the path of the command. A kernel that panics in
/// a case is booted again for the following cases.
///
/// # Errors
/// [`Error::Missing`] if this machine lacks something.
pub fn kernel(kernel: &str, over: Over, rxe: &Path) -> Result<Run> {
    let all = names(rxe)?;
    let (mut played, mut version) = (Vec::new(), String::new());
    while let Some(left) = all.get(played.len()..).filter(|left| !left.is_empty()) {
        let found = with_peer(kernel, |vm, net| {
            vm.run(Cmd::new("uname").arg("-r"))?.ok()?.trim().clone_into(&mut version);
            let peer = over.address_of(vm).to_string();
            let mut found = cases(&conform(net, rxe, &peer, &["--only", &left.join(",")])?)?;
            if let Some(last) = found.last_mut().filter(|_| vm.console().contains(PANIC)) {
                last.found = Some("the kernel panics".into());
            }
            Ok(found)
        })?;
        if found.is_empty() {
            return Err(Error::Failed(format!("Linux {kernel}: rxe conform plays no case")));
        }
        played.extend(found);
    }
    Ok(Run { name: format!("Linux {kernel}"), over, version, cases: played })
}

/// The message of a panicking kernel on its console.
const PANIC: &str = "Kernel panic";

/// Returns the names of all cases, in the order in which they are run.
fn names(rxe: &Path) -> Result<Vec<String>> {
    let out = Command::new(rxe).args(["conform", "--list", "--json"]).output();
    let out = out.map_err(|e| failed("rxe conform --list", &e))?;
    let all: Value = serde_json::from_slice(&out.stdout)
        .map_err(|e| Error::Failed(format!("rxe conform --list prints no JSON: {e}")))?;
    let names = all.as_array().into_iter().flatten();
    Ok(names.filter_map(|case| case["name"].as_str().map(str::to_owned)).collect())
}

/// Runs `rxe COMMAND --to PEER --json` for each of these commands, with a kernel in a VM as peer.
/// Returns the exit codes and the JSON outputs.
///
/// # Errors
/// As [`kernel`].
pub fn replays(kernel: &str, rxe: &Path, commands: &[Vec<String>]) -> Result<Vec<(i32, Value)>> {
    with_peer(kernel, |vm, net| {
        let to = vm.v4().to_string();
        let run = |command: &Vec<String>| {
            let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
            args.extend(["--json", "--to", &to]);
            json(net, rxe, &args)
        };
        commands.iter().map(run).collect()
    })
}

/// Calls `work` with a kernel in a VM in which the peer program runs.
fn with_peer<T>(kernel: &str, work: impl FnOnce(&Vm, &Net) -> Result<T>) -> Result<T> {
    let c = Compiled::linked(&[PEER], &OPTIONS)?;
    let net = Net::tap(1500)?;
    let vm = Vm::boot(&net, &Kernel::find(kernel)?, &Spec::default())?;
    let peer = vm.spawn(Cmd::new(c.path(PEER).display().to_string()))?;
    let done = work(&vm, &net);
    peer.kill("KILL");
    done
}

/// Runs all cases with this engine.
///
/// # Errors
/// As [`kernel`].
pub fn ours(over: Over, rxe: &Path) -> Result<Run> {
    let c = Compiled::linked(&[PEER], &OPTIONS)?;
    let net = Net::tap(1500)?;
    let (own, prefix, to) = match over {
        Over::V4 => (OWN_V4, 24, IpAddr::from(HOST_V4)),
        Over::V6 => (OWN_V6, 64, IpAddr::from(HOST_V6)),
    };
    let mut address = net.command("ip");
    address.args(["address", "add", &format!("{own}/{prefix}"), "dev", LINK]);
    // `nodad` makes an IPv6 address usable immediately.
    address.args(to.is_ipv6().then_some("nodad"));
    if !address.status().is_ok_and(|status| status.success()) {
        return Err(Error::Failed(format!("{LINK} cannot have the address {own} as well")));
    }
    let mut peer = net.command(rxe);
    peer.args(["run", "--explain", "off", "--"]).arg(c.path(PEER)).arg("-1");
    peer.stdin(Stdio::null()).stdout(Stdio::null());
    let mut peer = vm::spawn(peer).map_err(|e| failed("rxe run", &e))?;
    let report = conform(&net, rxe, &to.to_string(), &["--address", own]);
    end(&mut peer);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Run { name: "rxe".into(), over, version, cases: cases(&report?)? })
}

/// Runs `rxe conform` and returns its report. If the peer disappears in a case, the report ends
/// with that case.
fn conform(net: &Net, rxe: &Path, peer: &str, options: &[&str]) -> Result<Value> {
    let args = [&["conform", "--json", "--peer", peer], options].concat();
    json(net, rxe, &args).map(|(_, report)| report)
}

/// Runs a command once the peer listens. Returns its exit code and its JSON output.
fn json(net: &Net, rxe: &Path, args: &[&str]) -> Result<(i32, Value)> {
    let name = format!("rxe {}", args.join(" "));
    let started = Instant::now();
    loop {
        let mut command: Command = net.command(rxe);
        let out = command.args(args).output().map_err(|e| failed(&name, &e))?;
        let said = String::from_utf8_lossy(&out.stderr);
        let code = out.status.code().unwrap_or(-1);
        if code == 2 && out.stdout.is_empty() {
            // The peer may not listen yet, or the VM may be too slow to answer.
            let is_early = said.contains("nobody listens") || said.contains("and is silent for");
            if is_early && started.elapsed() < SET_UP {
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            return Err(Error::Failed(format!("{name}, TCP port {PORT}: {said}")));
        }
        let json = serde_json::from_slice(&out.stdout);
        let json =
            json.map_err(|e| Error::Failed(format!("{name} prints no JSON: {e}: {said}")))?;
        return Ok((code, json));
    }
}

fn cases(report: &Value) -> Result<Vec<Case>> {
    let strange = || Error::Failed("rxe conform prints other JSON".into());
    let all = report["cases"].as_array().ok_or_else(strange)?;
    let case = |value: &Value| {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Some(Case {
            group: text("group")?,
            name: text("name")?,
            rule: text("rule")?,
            sends: text("sends")?,
            allows: text("allows")?,
            verdict: text("verdict")?,
            found: text("found"),
        })
    };
    all.iter().map(|value| case(value).ok_or_else(strange)).collect()
}

/// Kills a child, which may have ended already, and reaps it.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn failed(what: &str, e: &std::io::Error) -> Error {
    Error::Failed(format!("{what}: {e}"))
}
