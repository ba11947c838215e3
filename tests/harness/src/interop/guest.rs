//! This engine in the VM, with AF_XDP on the driver of a virtio card: with zero copy if the kernel
//! supports it, with frames of one chunk if it supports no longer ones, and on a VLAN. No interface
//! of the host supports any of these. The other end is this engine too: on the host with UDP
//! sockets, or in another namespace of the VM.

use super::end::failed;
use super::pingpong::{listening, wait};
use super::world::World;
use crate::vm::{Cmd, LINK, Result, spawn};
use std::process::Stdio;
use std::time::Duration;

/// A cell of the table. Its function returns a remark.
pub(super) struct Cell {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) run: fn(&mut World<'_>) -> Result<Option<String>>,
}

pub(super) const ALL: &[Cell] = &[
    Cell {
        name: "generic",
        what: "`xdp:generic` in the VM, `udp` on the host: `rxe pingpong -c` of RC, UC, UD and SRQ with path \
               MTU 1024, of RC with the largest, `rxe perf` of WRITE, READ and SEND",
        run: |world| host(world, "generic"),
    },
    Cell { name: "driver", what: "the same with `xdp:driver`", run: |world| host(world, "driver") },
    Cell {
        name: "zerocopy",
        what: "the same with `xdp:zerocopy`",
        run: |world| host(world, "zerocopy"),
    },
    Cell {
        name: "vlan",
        what: "`xdp` on the interface of a VLAN at both ends, over two cards of the VM: the same programs",
        run: |world| wire(world, "vlan"),
    },
    Cell {
        name: "vlan/beside",
        what: "`xdp` in each mode on an interface while its VLAN carries RoCEv2 of another process, ping and \
               TCP",
        run: |world| wire(world, "beside"),
    },
];

/// The time limit of a program.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The programs and their options, with path MTU 1024. UD messages have one packet, the others
/// several. In perf, the bulk goes to the VM, from it, and in both directions. With `-u`, an
/// emulated machine that pauses for a second does not count as dead.
const PROGRAMS: [&str; 7] = [
    "pingpong -c --transport rc -m 1024 -s 65536 -n 30",
    "pingpong -c --transport uc -m 1024 -s 4096 -n 30",
    "pingpong -c --transport ud -s 1024 -n 30",
    "pingpong -c --transport srq -q 3 -m 1024 -s 16384 -n 30",
    "perf write bw -u 18 -m 1024 -s 65536 -n 100",
    "perf read bw -u 18 -m 1024 -s 65536 -n 100",
    "perf send lat -u 18 -s 64 -n 200",
];

/// The first kernel versions that support frames of several chunks, and zero copy in the virtio
/// driver.
const CHUNKS: (u32, u32) = (6, 6);
const ZERO_COPY: (u32, u32) = (6, 13);
/// An MTU for which the driver supports zero copy, and an older one XDP: a frame fits into a chunk.
const SMALL: u32 = 2200;

/// Runs our programs between the VM's card and the host.
fn host(world: &mut World<'_>, mode: &str) -> Result<Option<String>> {
    let kernel = take_over(world)?;
    let ours = format!("-d eth0 --backend xdp:{mode}");
    let whole = mode != "zerocopy" && kernel >= CHUNKS;
    let small = mode == "zerocopy" || mode == "driver" && !whole;
    set_mtu(world, if small { SMALL } else { world.net.mtu() })?;
    if mode == "zerocopy" && kernel < ZERO_COPY {
        return refused(world, &format!("pingpong {ours}"), "has no zero copy for AF_XDP")
            .map(Some);
    }
    for program in PROGRAMS {
        pair(world, program, &ours)?;
    }
    let pingpong = |mtu: u32| format!("pingpong -c -m {mtu} -s 65536 -n 30");
    pair(world, &pingpong(if whole { 4096 } else { 2048 }), &ours)?;
    let more = format!("pingpong -m 4096 {ours}");
    let remark = match whole {
        true => None,
        false => Some(refused(world, &more, "path MTU 4096 does not fit")?),
    };
    set_mtu(world, world.net.mtu())?;
    Ok(remark)
}

/// Removes the kernel's module, which may hold port 4791 even without a device. Returns the kernel
/// version.
fn take_over(world: &World<'_>) -> Result<(u32, u32)> {
    let script = "if [ -d /sys/module/rdma_rxe ]; then busybox rmmod rdma_rxe; fi; uname -r";
    let release = world.vm.run(Cmd::sh(format!("set -e; {script}")))?.ok()?;
    let mut numbers = release.trim().split('.').map(|n| n.parse().unwrap_or(0));
    Ok((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)))
}

fn set_mtu(world: &World<'_>, mtu: u32) -> Result<()> {
    world.vm.run(Cmd::sh(format!("ip link set eth0 mtu {mtu}")))?.ok().map(drop)
}

/// Runs a program that must refuse to start, with an error of one line that contains `words`.
/// Returns the line.
fn refused(world: &World<'_>, program: &str, words: &str) -> Result<String> {
    let rxe = world.options.rxe.display();
    let limit = TIMEOUT.as_secs();
    let out = world.vm.run(Cmd::sh(format!("timeout {limit} {rxe} {program} 2>&1")))?;
    let text = out.text();
    let line = text.trim();
    if out.code != 0 && out.code != 124 && line.contains(words) && !line.contains('\n') {
        return Ok(format!("`rxe {program}`: {line}"));
    }
    Err(failed(format!("rxe {program}: {}: {line}", out.code)))
}

/// Runs a program in the VM with these options, and then on the host. Both must succeed.
fn pair(world: &World<'_>, program: &str, ours: &str) -> Result<()> {
    let rxe = &world.options.rxe;
    let limit = TIMEOUT.as_secs();
    let server = Cmd::sh(format!("timeout {limit} {} {program} {ours} 2>&1", rxe.display()));
    let server = world.vm.spawn(server)?;
    listening(|| {
        let seen = world.vm.run(Cmd::sh("ss -tln | grep -q :18515"))?;
        Ok(seen.code == 0 || server.wait_timeout(Duration::ZERO)?.is_some())
    })?;
    let mut client = world.net.command(rxe);
    client.args(program.split(' ')).args(["-d", LINK, "--backend", "udp"]);
    client.arg(world.vm.v4().to_string());
    client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let client = spawn(client).map_err(|e| failed(format!("rxe: {e}")))?;
    let ended = || !matches!(server.wait_timeout(Duration::ZERO), Ok(None | Some(0)));
    let (good, said) = wait(client, ended);
    let left = if good { TIMEOUT } else { Duration::from_secs(1) };
    if server.wait_timeout(left)?.is_none() {
        server.kill("KILL");
    }
    let out = server.output()?;
    if good && out.code == 0 {
        return Ok(());
    }
    let both = format!("rxe {program}: in the VM: {}; on the host: {said}", out.text());
    Err(failed(both.trim().replace('\n', " | ")))
}

/// Runs a part of [`WIRE`] in the VM.
fn wire(world: &mut World<'_>, part: &str) -> Result<Option<String>> {
    let kernel = take_over(world)?;
    let modes = if kernel < ZERO_COPY { "generic driver" } else { "generic driver zerocopy" };
    let mut script = format!("rxe={}; modes=\"{modes}\"\n", world.options.rxe.display());
    let programs: Vec<_> = PROGRAMS.iter().map(|program| format!("  '{program}'")).collect();
    script.push_str(&format!("programs() {{ printf '%s\\n' {}; }}\n", programs.join("")));
    script.push_str(WIRE);
    script.push_str(part);
    let out = world.vm.run(Cmd::new("bash").args(["-c", &script]))?;
    let said = out.text();
    if out.code == 0 {
        return Ok(None);
    }
    let lines: Vec<_> = said.lines().collect();
    Err(failed(lines[lines.len().saturating_sub(12)..].join(" | ")))
}

/// The script for two cards that are connected to each other. One is in a namespace of its own;
/// both have a VLAN.
const WIRE: &str = include_str!("guest/wire.sh");
