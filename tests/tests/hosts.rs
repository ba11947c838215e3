//! Tests of commands in the documents that the test of the book does not run: between two hosts,
//! and with a kernel.
//!
//! A block that starts with ```` ```sh host=server ```` or `host=client` contains commands for two
//! hosts, one in each line: a line of the server belongs to the corresponding line of the client.
//! `kernel` means that each line boots a VM. Blocks `host=kernel` and `host=rxe` are pairs, the
//! server's first: one host has a kernel's device. `host=capture` runs while two hosts send packets
//! to each other.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rxe_harness::vm::{HOST_V4, Kernel, LINK, Net};
use rxe_harness::{dist, or_skip};
use rxe_test_support::skipped;

mod common;
use common::{Dir, in_namespace, installed, rxe};

/// Returns the lines of all blocks of a document whose fence ends with `mark`.
fn lines(document: &str, mark: &str) -> Vec<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = fs::read_to_string(docs.join(document)).expect("the document");
    dist::blocks(&text, mark).flat_map(str::lines).map(str::to_owned).collect()
}

/// Returns a PATH that begins with the directory of `rxe`.
fn path() -> String {
    let programs = rxe().parent().expect("a directory").display();
    format!("{programs}:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// The page's hosts: `eth0` has 192.168.1.1 here, and 192.168.1.2 in `far`.
const HOSTS: &str = "
    PATH=$(dirname $RXE):$PATH
    ip link set veth0 down; ip link set veth0 name eth0; ip link set eth0 up
    ip -n far link set veth1 down; ip -n far link set veth1 name eth0; ip -n far link set eth0 up
    ip address flush dev eth0 scope global; ip address add 192.168.1.1/24 dev eth0
    ip -n far address flush dev eth0 scope global; ip -n far address add 192.168.1.2/24 dev eth0
    listening() { listens 192.168.1.1 || [ $(ss -Htln | wc -l) -gt 0 ]; }
";

#[test]
fn the_commands_between_two_hosts_run() {
    let test = "the_commands_between_two_hosts_run";
    if !["ibv_rc_pingpong", "ib_write_bw", "rping"].iter().all(|name| installed(test, name)) {
        return;
    }
    let page = |mark| lines("en/do/two-machines.md", mark);
    let (servers, clients) = (page("host=server"), page("host=client"));
    assert_eq!(servers.len(), clients.len());
    assert!(clients.len() >= 3, "{clients:?}");
    let mut script = HOSTS.to_owned();
    for (server, client) in servers.iter().zip(&clients) {
        script += &format!(
            "timeout 60 {server} > server 2>&1 & server=$!
             until listening; do kill -0 $server || {{ cat server; exit 1; }}; sleep 0.05; done
             ip netns exec far timeout 60 {client} > client 2>&1 || {{ cat server client; exit 1; }}
             wait $server || {{ cat server client; exit 1; }}\n"
        );
    }
    let Some(out) = in_namespace(test, &script) else { return };
    let [said, errors] = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    assert!(out.status.success(), "{said}{errors}");
}

#[test]
fn the_commands_with_a_kernel_run() {
    let test = "the_commands_with_a_kernel_run";
    // The kernel that the command uses by default.
    let kernel = or_skip(Kernel::find("6.1")).is_some() && or_skip(Net::tap(1500)).is_some();
    if !kernel
        || !["ibv_rc_pingpong", "qemu-system-x86_64"].iter().all(|name| installed(test, name))
    {
        return;
    }
    let page = |mark| lines("en/project/kernel-vm.md", mark);
    let commands = page("kernel");
    assert_eq!(commands.len(), 2, "{commands:?}");
    // The commands of the two hosts, in a VM and here: the server first, and then the client. One
    // VM suffices for all of them.
    let (theirs, ours) = (page("host=kernel"), page("host=rxe"));
    assert_eq!([theirs.len(), ours.len()], [2, 2], "{theirs:?} {ours:?}");
    let is_client = |command: &String| command.contains(" 10.47.91.");
    for (theirs, ours) in theirs.iter().zip(&ours) {
        assert!(is_client(theirs) != is_client(ours), "{theirs}; {ours}");
    }
    let [theirs, ours] = [theirs, ours].map(|commands| {
        let after_the_server = |command: &String| match is_client(command) {
            true => format!("until {command}; do sleep 1; done"),
            false => command.clone(),
        };
        format!("set -e; {}", commands.iter().map(after_the_server).collect::<Vec<_>>().join("; "))
    });
    let both = format!("cargo xtask kernel --host-command '{ours}' -- sh -c '{theirs}'");
    // Each time, at least one end reports the duration.
    for (command, times) in [(&commands[0], 1), (&commands[1], 1), (&both, 2)] {
        let mut shell = Command::new("timeout");
        shell.args(["300", "sh", "-ec", command]).env("PATH", path());
        let out = shell.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("timeout");
        let [said, errors] =
            [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        assert!(
            out.status.success() && said.matches("1000 iters in").count() >= times,
            "{command}\n{said}{errors}"
        );
    }
}

#[test]
fn a_live_capture_is_read_from_a_pipe() {
    let test = "a_live_capture_is_read_from_a_pipe";
    if !installed(test, "tcpdump") {
        return;
    }
    // tcpdump changes to a user of its own, which does not exist in a user namespace.
    if !fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        return skipped(test, "tcpdump needs root");
    }
    let commands = lines("en/do/find-a-fault.md", "host=capture");
    assert_eq!(commands.len(), 1, "{commands:?}");
    let Some((here, there)) = or_skip(Net::pair(1500)) else { return };
    let dir = Dir::new();
    let start = |net: &Net, script: &str| {
        let mut shell = net.command("timeout");
        shell.args(["60", "sh", "-ec", script]).env("PATH", path()).current_dir(&dir.0);
        shell.stdin(Stdio::null()).spawn().expect("timeout")
    };
    for net in [&here, &there] {
        let rename =
            format!("ip link set {LINK} down; ip link set {LINK} name eth0; ip link set eth0 up");
        assert!(start(net, &rename).wait().unwrap().success());
    }
    let read = |name: &str| fs::read_to_string(dir.0.join(name)).unwrap_or_default();
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(30);
        while !done() {
            let all = ["errors", "shown", "server", "client"].map(read);
            assert!(Instant::now() < end, "{what}: {all:#?}");
            sleep(Duration::from_millis(50));
        }
    };
    let mut capture = start(&here, &format!("({}) > shown 2> errors", commands[0]));
    until("tcpdump listens", &|| read("errors").contains("listening on eth0"));
    let mut server = start(&here, "rxe pingpong -d eth0 -n 3 > server 2>&1");
    let client = format!(
        "n=0; until rxe pingpong -n 3 {HOST_V4} > client 2>&1; do \
         n=$((n + 1)); [ $n -lt 50 ]; sleep 0.1; done"
    );
    assert!(start(&there, &client).wait().unwrap().success(), "{}", read("client"));
    assert!(server.wait().unwrap().success(), "{}", read("server"));
    until("packets are shown", &|| read("shown").matches("RC_SEND_LAST").count() >= 6);
    // `timeout` passes the signal to the process that it started.
    let _ = Command::new("kill").arg(capture.id().to_string()).status();
    let _ = capture.wait();
}
