//! Helpers for the tests of several backends. They call a backend as under a shard's lock: nothing
//! that it does then may block.

use std::any::type_name_of_val;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::wire::{NetHeader, TxBatch};

use crate::sys::bpf::{self, MapKind};
use crate::{Backend, NetError, NonBlocking, SendStatus, Sharing};

pub(crate) mod link;
mod skipped;

use skipped::repeat_skipped;
pub(crate) use skipped::skipped;

/// Whether this process may not load BPF programs, or the kernel has no AF_XDP. Then says that the
/// test of this name is skipped.
pub(crate) fn skipped_without_bpf(name: &str) -> bool {
    let refused = bpf::create_map(MapKind::Xsk, 4, 4, 1).err();
    if let Some(e) = &refused {
        skipped(name, format_args!("XDP needs CAP_BPF and a kernel with AF_XDP ({e})"));
    }
    refused.is_some()
}

/// As [`in_namespace`], but in the user namespace that this process is in: where BPF is permitted to
/// root.
pub(crate) fn in_bpf_namespace<F: FnOnce()>(setup: &str, body: F) {
    if !skipped_without_bpf(test_name(&body)) {
        in_namespaces("-n", &format!("ip link set lo up\n{setup}"), body);
    }
}

/// Runs the body of a test in network and user namespaces of its own, with loopback up and after the
/// shell commands `setup`. To do so it starts this test once more as a process. If namespaces are not
/// allowed, the test is skipped with a message.
pub(crate) fn in_namespace<F: FnOnce()>(setup: &str, body: F) {
    in_namespaces("-Urn", &format!("ip link set lo up\n{setup}"), body);
}

/// As [`in_namespace`], with these options of unshare(1); only `setup` is run.
pub(crate) fn in_namespaces<F: FnOnce()>(options: &str, setup: &str, body: F) {
    const INSIDE: &str = "RXE_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let name = test_name(&body);
    let allowed = Command::new("unshare")
        .args([options, "ip", "link"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if !allowed {
        skipped(name, format_args!("`unshare {options}` or `ip` does not work here"));
        return;
    }
    let output = Command::new("unshare")
        .args([options, "sh", "-c"])
        .arg(format!("set -e\n{setup}\nexec \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in the namespace:\n{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "{name} did not run:\n{stdout}\n{stderr}");
    repeat_skipped(&stdout);
}

/// The test that this closure is in.
fn test_name<F>(body: &F) -> &'static str {
    let name = type_name_of_val(body);
    let name = name.split_once("::").map_or(name, |(_, path)| path);
    name.strip_suffix("::{{closure}}").expect("called with a test's closure")
}

/// Waits until the backend has something to receive.
pub(crate) fn wait_readable(backend: &impl Backend) {
    wait(backend, PollFlags::IN);
}

fn wait(backend: &impl Backend, what: PollFlags) {
    let mut fds = Vec::new();
    backend.for_each_fd(&mut |fd| fds.push(fd.clone()));
    let mut polls: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, what)).collect();
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert!(poll(&mut polls, Some(&limit)).unwrap() > 0, "nothing happened in 10 s");
}

/// Sends the whole batch.
pub(crate) fn send_all(backend: &mut impl Backend, batch: &mut TxBatch) {
    loop {
        let mark = NonBlocking::enter();
        let status = backend.send(batch).unwrap();
        drop(mark);
        match status {
            SendStatus::Done => return,
            SendStatus::Blocked => wait(backend, PollFlags::IN | PollFlags::OUT),
            SendStatus::Congested => wait(backend, PollFlags::IN),
        }
    }
}

/// Receives until `count` packets have come.
pub(crate) fn receive_packets(
    backend: &mut impl Backend,
    count: usize,
) -> Vec<(NetHeader, Vec<u8>)> {
    let mut packets = Vec::new();
    while packets.len() < count {
        wait_readable(backend);
        let _mark = NonBlocking::enter();
        backend
            .receive(count, &mut |f| packets.extend(f.packets().map(|(n, p)| (n, p.to_vec()))))
            .unwrap();
    }
    packets
}

/// Moves to these addresses, as a device does whose interface has changed.
pub(crate) fn move_to(
    backend: &mut impl Sharing,
    addresses: &[std::net::IpAddr],
) -> Result<(), NetError> {
    let groups = backend.port_groups().unwrap();
    groups.enter(addresses);
    let mark = NonBlocking::enter();
    let moved = backend.set_addresses(addresses);
    drop(mark);
    groups.release_left();
    moved
}
