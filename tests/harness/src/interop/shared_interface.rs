//! An endpoint of layer 2 on the interface of the kernel's own device in the VM. Each of the two
//! devices serves a program of the host while the other one is active.

use super::end::failed;
use super::world::World;
use crate::vm::{Cmd, Error, LINK, Proc, Result, spawn};
use std::net::Ipv4Addr;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The address of the endpoint in the VM.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 47, 91, 77);

/// The time limit for both conversations. Each takes a few seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The options of both ends of rping: the number and the size of the messages, which are compared.
const MESSAGES: &str = "-C 50 -S 20000 -V";

pub(super) fn play(world: &mut World<'_>) -> Result<()> {
    let (rxe, kernel, mtu) = (world.options.rxe.display(), world.vm.v4(), world.net.mtu());
    let missing = world.vm.run(Cmd::sh("command -v rping"))?.ok().is_err();
    if missing {
        return Err(Error::Missing("rping is not installed".into()));
    }
    let add = format!(
        "mkdir -p -m 700 /run/own; export XDG_RUNTIME_DIR=/run/own
        exec {rxe} link add own0 type rxe l2 if:eth0 address {OWN}/24 mtu {mtu}"
    );
    world.vm.run(Cmd::sh(add))?.ok()?;
    // The clients use the host's own address.
    world.stop_ours();
    let end = Instant::now() + TIMEOUT;
    let start = |run: &str, address: Ipv4Addr| -> Result<Conversation> {
        let server =
            format!("export XDG_RUNTIME_DIR=/run/own; exec {run} rping -s -a {address} {MESSAGES}");
        let server = world.vm.spawn(Cmd::sh(server))?;
        Ok(Conversation {
            address,
            server,
            client: None,
            output: String::new(),
            succeeded: false,
            done: false,
        })
    };
    let own = format!("{rxe} run --device own0 --");
    let mut both = [start(&own, OWN)?, start("", kernel)?];
    while both.iter().any(|one| !one.done) {
        for one in &mut both {
            one.go_on(world, end)?;
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A server in the VM and its client on the host.
struct Conversation {
    address: Ipv4Addr,
    server: Proc,
    client: Option<Child>,
    /// The output of the last client.
    output: String,
    /// Whether a client has succeeded.
    succeeded: bool,
    done: bool,
}

impl Conversation {
    /// Performs the next step without waiting. Fails if the server or client has failed, or after
    /// `end`.
    fn go_on(&mut self, world: &World<'_>, end: Instant) -> Result<()> {
        let server = self.server.wait_timeout(Duration::ZERO)?;
        if server.is_some_and(|code| code != 0) {
            return Err(self.why("the server has failed"));
        }
        // rping's server ends after its client.
        self.done = self.succeeded && server.is_some();
        if !self.done && Instant::now() > end {
            return Err(self.why("it has not ended"));
        }
        if self.succeeded {
            return Ok(());
        }
        let Some(client) = &mut self.client else {
            self.client = Some(self.start(world)?);
            return Ok(());
        };
        let Some(status) = client.try_wait().map_err(|e| failed(format!("rping: {e}")))? else {
            return Ok(());
        };
        self.output = output_of(self.client.take());
        self.succeeded = status.success();
        // A client that starts before its server listens is refused, and is started again. In all
        // other cases no second client is started: rping's server takes a second request for the
        // end of the first.
        let early = ["REJECTED", "UNREACHABLE", "ADDR_ERROR"]
            .iter()
            .any(|event| self.output.contains(&format!("RDMA_CM_EVENT_{event}")));
        if self.succeeded || early { Ok(()) } else { Err(self.why("the client has failed")) }
    }

    fn start(&self, world: &World<'_>) -> Result<Child> {
        let mut client = world.net.command(&world.options.rxe);
        client.args(["run", "--device", LINK, "--", "rping", "-c", "-a"]);
        client.arg(self.address.to_string()).args(MESSAGES.split(' '));
        client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        spawn(client).map_err(|e| failed(format!("rxe: {e}")))
    }

    /// Returns the outputs as one line, because the page has one line for each failure.
    fn why(&mut self, what: &str) -> Error {
        if let Some(client) = &mut self.client {
            let _ = client.kill();
        }
        self.output += &output_of(self.client.take());
        self.server.kill("KILL");
        let server = self.server.output().map(|out| [out.stdout, out.stderr].concat());
        let server = server.unwrap_or_default();
        let server = String::from_utf8_lossy(&server);
        let why = format!("{}: {what}; server: {server}; client: {}", self.address, self.output);
        failed(why.trim().replace('\n', " | "))
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(client) = &mut self.client {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

/// Returns the output of a client that has ended.
fn output_of(client: Option<Child>) -> String {
    let out = client.map(Child::wait_with_output).and_then(std::result::Result::ok);
    out.map_or_else(String::new, |out| {
        String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
    })
}
