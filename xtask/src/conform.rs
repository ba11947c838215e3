//! `cargo xtask conform`: the cases of `rxe conform` with real kernels and with our own engine, and the
//! page that shows them.

mod page;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::c::Compiled;
use crate::vm::{self, Cmd, Error, HOST_V4, Kernel, Net, Result, Spec, Vm};
pub use page::{differences, page};

/// The peer program, from the root of the sources.
const PEER: &str = "rxe-cli/src/common/peer/peer.c";

/// The TCP port of the peer.
const PORT: u16 = 18520;

/// A run with one peer.
#[derive(Clone, Debug)]
pub struct Run {
    /// Who the peer was: `Linux 6.1`, or this engine.
    pub name: String,
    /// The exact version of the peer.
    pub version: String,
    /// What was found of each case.
    pub cases: Vec<Case>,
}

/// A case and what was found of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The cases of a group stand together.
    pub group: String,
    /// Its name.
    pub name: String,
    /// The rule.
    pub rule: String,
    /// What the peer is sent.
    pub sends: String,
    /// What a conforming peer does.
    pub allows: String,
    /// `conforms`, `deviates` or `not testable`.
    pub verdict: String,
    /// What the peer did instead.
    pub found: Option<String>,
}

/// Plays all cases with a kernel in a VM. `rxe` is our command.
///
/// # Errors
/// [`Error::Missing`] if this machine lacks something.
pub fn kernel(kernel: &str, rxe: &Path) -> Result<Run> {
    let c = Compiled::linked(&[PEER], &["-libverbs"])?;
    let net = Net::tap(1500)?;
    let vm = Vm::boot(&net, &Kernel::find(kernel)?, &Spec::default())?;
    let release = vm.run(Cmd::new("uname").arg("-r"))?.ok()?;
    let peer = vm.spawn(Cmd::new(c.path(PEER).display().to_string()).arg("-1"))?;
    let report = conform(&net, rxe, &vm.v4().to_string());
    peer.kill("KILL");
    let name = format!("Linux {kernel}");
    Ok(Run { name, version: release.trim().to_owned(), cases: cases(&report?)? })
}

/// Plays all cases with our own engine.
///
/// # Errors
/// As [`kernel`].
pub fn ours(rxe: &Path) -> Result<Run> {
    let c = Compiled::linked(&[PEER], &["-libverbs"])?;
    let net = Net::tap(1500)?;
    let mut peer = net.command(rxe);
    peer.args(["run", "--explain", "off", "--"]).arg(c.path(PEER)).arg("-1");
    peer.stdin(Stdio::null()).stdout(Stdio::null());
    let mut peer = vm::spawn(peer).map_err(|e| failed("rxe run", &e))?;
    let report = conform(&net, rxe, &HOST_V4.to_string());
    end(&mut peer);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Run { name: "rxe".into(), version, cases: cases(&report?)? })
}

/// Runs `rxe conform` once the peer listens. Returns what it prints.
fn conform(net: &Net, rxe: &Path, peer: &str) -> Result<Value> {
    let started = Instant::now();
    loop {
        let mut command: Command = net.command(rxe);
        command.args(["conform", "--json", "--peer", peer]);
        let out = command.output().map_err(|e| failed("rxe conform", &e))?;
        let said = String::from_utf8_lossy(&out.stderr);
        if out.status.code() == Some(2) {
            // The peer may not listen yet.
            if said.contains("nobody listens") && started.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            return Err(Error::Failed(format!("rxe conform, TCP port {PORT}: {said}")));
        }
        return serde_json::from_slice(&out.stdout)
            .map_err(|e| Error::Failed(format!("rxe conform prints no JSON: {e}: {said}")));
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

/// Ends a child that may have ended already.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn failed(what: &str, e: &std::io::Error) -> Error {
    Error::Failed(format!("{what}: {e}"))
}
