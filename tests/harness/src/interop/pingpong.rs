//! The pingpong programs of rdma-core on the kernel's device against `rxe pingpong`. Each is server
//! and client once.

use super::Requester;
use super::end::failed;
use super::world::{Setting, World};
use crate::vm::{Cmd, Error, HOST_V4, HOST_V6, LINK, Result, spawn};
use serde_json::Value;
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A run of the two programs. The client is the requester of the cell's name.
pub(super) struct Pingpong {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    options: &'static str,
    /// The transport service, as in `ibv_rc_pingpong` and `--transport rc`.
    service: &'static str,
    v6: bool,
}

const fn run(name: &'static str, what: &'static str, options: &'static str) -> Pingpong {
    Pingpong { name, what, options, service: "rc", v6: false }
}

const fn over(
    service: &'static str,
    name: &'static str,
    what: &'static str,
    options: &'static str,
) -> Pingpong {
    Pingpong { name, what, options, service, v6: false }
}

pub(super) const ALL: &[Pingpong] = &[
    run("pingpong/1", "`ibv_rc_pingpong` and `rxe pingpong`, `-s 1 -n 200`", "-s 1 -n 200"),
    run("pingpong/1024", "`-s 1024 -n 200 -c`", "-s 1024 -n 200 -c"),
    run("pingpong/4096", "`-n 200 -c` (4096 bytes)", "-n 200 -c"),
    run("pingpong/65536", "`-s 65536 -n 50 -c`", "-s 65536 -n 50 -c"),
    run("pingpong/4096-mtu", "`-m 4096 -n 200 -c`", "-m 4096 -n 200 -c"),
    run("pingpong/events", "`-e -c -n 200`", "-e -c -n 200"),
    Pingpong {
        name: "pingpong/ipv6",
        what: "`-n 200 -c`, GIDs of IPv6",
        options: "-n 200 -c",
        service: "rc",
        v6: true,
    },
    over(
        "uc",
        "pingpong/uc",
        "`ibv_uc_pingpong` and `rxe pingpong --transport uc`, `-n 200` (4096 bytes)",
        "-n 200",
    ),
    over("uc", "pingpong/uc-events", "the same, `-e -n 200`", "-e -n 200"),
    Pingpong {
        name: "pingpong/uc-ipv6",
        what: "the same, `-n 200`, GIDs of IPv6",
        options: "-n 200",
        service: "uc",
        v6: true,
    },
    over(
        "ud",
        "pingpong/ud",
        "`ibv_ud_pingpong` and `rxe pingpong --transport ud`, `-s 1024 -n 200`",
        "-s 1024 -n 200",
    ),
    over("ud", "pingpong/ud-events", "the same, `-s 1 -n 200 -e`", "-s 1 -n 200 -e"),
    Pingpong {
        name: "pingpong/ud-ipv6",
        what: "the same, `-s 1024 -n 200`, GIDs of IPv6",
        options: "-s 1024 -n 200",
        service: "ud",
        v6: true,
    },
    over(
        "srq",
        "pingpong/srq",
        "`ibv_srq_pingpong` and `rxe pingpong --transport srq`, 16 QPs, `-n 200` (4096 bytes)",
        "-n 200",
    ),
    over("srq", "pingpong/srq-events", "the same, `-q 3 -r 8 -n 200 -e`", "-q 3 -r 8 -n 200 -e"),
    Pingpong {
        name: "pingpong/srq-ipv6",
        what: "the same, `-n 200`, GIDs of IPv6",
        options: "-n 200",
        service: "srq",
        v6: true,
    },
];

/// The time limit of a run.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The output of our end when the peer stops although our end has acknowledged everything. Kernel
/// 6.1 stops when its acknowledgement timer fires while it sends a long message: it sends part of
/// the message again, is told that all of it arrived, and never sends the next message
/// ([`Quirks::stops`]). Neither end reports an error, although both give up after half a second
/// without an acknowledgement.
///
/// [`Quirks::stops`]: super::world::Quirks::stops
const STOPPED: [&str; 2] = ["nothing came from the peer", "messages sent, all acknowledged,"];

impl Pingpong {
    pub(super) fn play(&self, world: &mut World<'_>, setting: Setting) -> Result<()> {
        match self.play_once(world, setting) {
            Err(Error::Failed(why))
                if world.quirks.stops && STOPPED.iter().all(|part| why.contains(part)) =>
            {
                eprintln!(
                    "{}: the kernel stopped sending, though all was acknowledged; again",
                    self.name
                );
                self.play_once(world, setting)
            }
            result => result,
        }
    }

    fn play_once(&self, world: &mut World<'_>, setting: Setting) -> Result<()> {
        let gid = |v4: std::net::Ipv4Addr, v6| if self.v6 { IpAddr::V6(v6) } else { v4.into() };
        let index = world.kernel_gid(gid(world.vm.v4(), world.vm.v6()))?;
        // Our end holds the address that the command needs.
        world.stop_ours();
        let program = format!("ibv_{}_pingpong", self.service);
        let theirs = Cmd::new(&program).args(["-g", &index.to_string()]);
        let theirs = theirs.args(self.options.split(' '));
        let mut ours = world.net.command(&world.options.rxe);
        ours.args(["pingpong", "-d", LINK, "--backend", setting.backend.name()]);
        ours.args(["--transport", self.service]);
        if self.v6 {
            ours.args(["-g", &our_gid(world, HOST_V6.into())?.to_string()]);
        }
        ours.args(self.options.split(' '));
        ours.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let own = |ours| spawn(ours).map_err(|e| failed(format!("rxe: {e}")));

        let (child, proc) = if setting.requester == Requester::Ours {
            let server = world.vm.spawn(theirs)?;
            listening(|| {
                let seen = world.vm.run(Cmd::sh("ss -tln | grep -q :18515"))?;
                Ok(seen.code == 0 || server.wait_timeout(Duration::ZERO)?.is_some())
            })?;
            ours.arg(world.vm.v4().to_string());
            (own(ours)?, server)
        } else {
            let mut server = own(ours)?;
            listening(|| {
                let mut ss = world.net.command("sh");
                ss.args(["-c", "ss -tln | grep -q :18515"]);
                let seen = ss.status().is_ok_and(|s| s.success());
                Ok(seen || server.try_wait().is_ok_and(|s| s.is_some()))
            })?;
            (server, world.vm.spawn(theirs.arg(HOST_V4.to_string()))?)
        };
        // If one program has failed, the other may wait forever.
        let ours = wait(child, || !matches!(proc.wait_timeout(Duration::ZERO), Ok(None | Some(0))));
        let left = if ours.0 { TIMEOUT } else { Duration::from_secs(1) };
        if proc.wait_timeout(left)?.is_none() {
            proc.kill("KILL");
        }
        let out = proc.output()?;
        let said = [out.stdout, out.stderr].concat();
        let theirs = (out.code == 0, String::from_utf8_lossy(&said).into_owned());
        for (who, (good, said)) in [(program.as_str(), &theirs), ("rxe pingpong", &ours)] {
            let whole = said.contains(" bytes in ") && said.contains(" usec/iter");
            if !good || !whole || said.contains("invalid data") {
                let both = format!("{program}: {}; rxe: {}", theirs.1, ours.1);
                return Err(failed(format!("{who}: {}", both.replace('\n', " | "))));
            }
        }
        Ok(())
    }
}

/// Waits until a server listens, or has ended.
pub(super) fn listening(mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + TIMEOUT;
    while !ready()? {
        if Instant::now() > end {
            return Err(failed("the server does not listen on port 18515"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits for our program to end, but only briefly once the other has `failed`. Returns whether it
/// succeeded, and its output.
pub(super) fn wait(mut child: Child, failed: impl Fn() -> bool) -> (bool, String) {
    let mut end = Instant::now() + TIMEOUT;
    while Instant::now() < end && child.try_wait().is_ok_and(|s| s.is_none()) {
        if failed() {
            end = end.min(Instant::now() + Duration::from_secs(1));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    match child.wait_with_output() {
        Ok(out) => {
            let said = [out.stdout, out.stderr].concat();
            (out.status.success(), String::from_utf8_lossy(&said).into_owned())
        }
        Err(e) => (false, e.to_string()),
    }
}

/// Returns the GID index of an address on our device.
fn our_gid(world: &World<'_>, ip: IpAddr) -> Result<u64> {
    let mut cmd = world.net.command(&world.options.rxe);
    let out = cmd.args(["gids", LINK, "--json"]).output();
    let out = out.map_err(|e| failed(format!("rxe gids: {e}")))?;
    let table: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
    let full = |gid: &Value| gid.as_str().and_then(|g| g.parse::<IpAddr>().ok());
    let rows = table.as_array().into_iter().flatten();
    let found = rows.into_iter().find(|row| full(&row["gid"]) == Some(ip));
    let index = found.and_then(|row| row["index"].as_u64());
    index.ok_or_else(|| failed(format!("rxe gids has no {ip}: {table}")))
}
