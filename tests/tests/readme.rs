//! Commands of the README that the test of the book does not run: between two hosts, and with a kernel.
//!
//! A block that starts with ```` ```sh host=server ```` or `host=client` has commands for two hosts, one in
//! each line: a line of the server with the same line of the client. `kernel` says that each line boots a VM.

use std::fs;
use std::path::Path;
use std::process::Command;

use xtask::vm::{Kernel, Net};
use xtask::{dist, or_skip};

mod common;
use common::{in_namespace, installed, rxe};

/// The lines of all blocks whose fence ends with `mark`.
fn lines(mark: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = fs::read_to_string(root.join("README.md")).expect("the README");
    dist::blocks(&readme, mark).flat_map(str::lines).map(str::to_owned).collect()
}

/// The README's hosts: `eth0` has 192.168.1.1 here, and 192.168.1.2 in `far`.
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
    let (servers, clients) = (lines("host=server"), lines("host=client"));
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
    // The release that the command takes if it is told none.
    let kernel = or_skip(Kernel::find("6.1")).is_some() && or_skip(Net::tap(1500)).is_some();
    if !kernel
        || !["ibv_rc_pingpong", "qemu-system-x86_64"].iter().all(|name| installed(test, name))
    {
        return;
    }
    let commands = lines("kernel");
    assert_eq!(commands.len(), 2, "{commands:?}");
    let programs = rxe().parent().expect("a directory").display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    for command in commands {
        let mut shell = Command::new("timeout");
        shell.args(["300", "sh", "-ec", &command]).env("PATH", &path);
        let out = shell.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("timeout");
        let [said, errors] =
            [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        assert!(
            out.status.success() && said.contains("1000 iters in"),
            "{command}\n{said}{errors}"
        );
    }
}
