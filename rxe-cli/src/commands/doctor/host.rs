//! Checks the limits and permissions of this host and this process.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::thread::JoinHandle;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use rxe_net::probe::{self, BufferSize, Offloads};
use rxe_net::{BackendKind, Interface, NetError, XdpRefusal};
use rxe_verbs::device::DeviceInfo;

use super::devices::refused_by;
use super::finding::Finding;

/// Reports how much memory the process may lock.
pub(super) fn locked_memory() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let limit = limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
    Finding::ok("locked memory", format!("limit {limit}; only the xdp backend locks memory"))
}

/// Checks the sizes of the socket buffers that the kernel grants.
pub(super) fn buffers() -> Vec<Finding> {
    const CHECK: &str = "socket buffers";
    match probe::socket_buffers() {
        Ok([receive, send]) => vec![
            buffer(CHECK, "receive", "rmem_max", receive),
            buffer(CHECK, "send", "wmem_max", send),
        ],
        Err(e) => vec![failed(CHECK, &e, "let the sandbox permit UDP sockets")],
    }
}

/// Judges a buffer. Half of the requested size is enough for all packets that a device may have in
/// flight.
fn buffer(check: &'static str, which: &str, limit: &str, size: BufferSize) -> Finding {
    let text = format!("{which} {} KiB of {} KiB", size.given >> 10, size.asked >> 10);
    if size.given >= size.asked / 2 {
        return Finding::ok(check, text);
    }
    let effect = if limit == "rmem_max" {
        "many simultaneous senders overflow it"
    } else {
        "long messages are sent in more steps"
    };
    let text = format!("{text}: {effect}");
    Finding::note(check, text, format!("`sudo sysctl -w net.core.{limit}={}`", size.asked))
}

/// Checks whether the kernel segments and coalesces UDP packets.
pub(super) fn offloads(offered: &[DeviceInfo]) -> Option<Finding> {
    const CHECK: &str = "UDP GSO and GRO";
    // Link-local addresses are skipped, because they would need a scope.
    let addresses = offered.iter().flat_map(|d| &d.interface().addresses);
    let usable = addresses.filter(|a| !a.tentative).map(|a| a.ip);
    let address = usable.into_iter().find(|ip| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !Ipv6Addr::is_unicast_link_local(ip),
    })?;
    // Packets from a host to itself go over loopback.
    let loopback = Interface::list().unwrap_or_default().into_iter().find(|i| i.loopback);
    let todo = match loopback {
        Some(lo) if lo.running => {
            "let the firewall pass what a host sends to itself (`iif lo accept`)"
        }
        _ => "`ip link set lo up`",
    };
    Some(match probe::offloads(address) {
        Ok(found) => offload(CHECK, found),
        Err(e) => failed(CHECK, &e, todo).into_note(),
    })
}

/// Judges the offloads that were found.
fn offload(check: &'static str, found: Offloads) -> Finding {
    let lacking = match (found.segments, found.merges) {
        (true, true) => return Finding::ok(check, "both work"),
        (true, false) => "received packets are not merged (UDP_GRO)",
        (false, true) => "bursts are not segmented (UDP_SEGMENT)",
        (false, false) => "neither works",
    };
    let todo = "programs run, but slower; use Linux 5.0 or later, not gVisor";
    Finding::note(check, lacking, todo)
}

/// Checks shared memory.
/// Programs on one host use it to find each other and to exchange packets.
pub(super) fn shared_memory() -> Vec<Finding> {
    const CHECK: &str = "shared memory";
    let ring = match probe::shared_ring() {
        Ok(()) => Finding::ok(CHECK, "a ring was made, mapped and used"),
        Err(e) => {
            failed(CHECK, &e, "let the sandbox permit memfd_create, or use --no-shm").into_note()
        }
    };
    let directory = match probe::directory() {
        Ok(path) => Finding::ok(CHECK, format!("processes meet in {}", path.display())),
        Err((why, remedy)) => {
            let text = format!("only one process can use an address: {why}");
            let writable = "make /dev/shm or /tmp writable (containers: --ipc=host)";
            Finding::note(CHECK, text, remedy.as_deref().unwrap_or(writable))
        }
    };
    vec![ring, directory]
}

/// Checks whether the threads of devices may have a real-time priority.
pub(super) fn realtime() -> Finding {
    const CHECK: &str = "real-time priority";
    // The thread's priority ends with it.
    let tried = rxe_sys::spawn_thread("rxe-doctor", rxe_sys::set_realtime);
    match tried.map(JoinHandle::join) {
        Ok(Ok(Ok(()))) => {
            Finding::ok(CHECK, "permitted: packets do not wait for programs that poll memory")
        }
        _ => Finding::note(
            CHECK,
            "not permitted: if programs poll memory on every CPU, packets wait for milliseconds",
            "run as root, or raise the limit RLIMIT_RTPRIO to 1 (ulimit -r 1)",
        ),
    }
}

/// Checks what restricts the system calls of this process. `opened` says that all devices could be
/// opened.
pub(super) fn sandbox(opened: bool) -> Finding {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let label = fs::read_to_string("/proc/self/attr/current").unwrap_or_default();
    confined("sandbox", &status, &label, opened)
}

/// Judges this process's status and security label (AppArmor, SELinux) from /proc.
fn confined(check: &'static str, status: &str, label: &str, opened: bool) -> Finding {
    let filtered = status.lines().any(|l| l.split_whitespace().eq(["Seccomp:", "2"]));
    let label = label.trim_matches(['\0', '\n', ' ']);
    let label = Some(label).filter(|l| !l.is_empty() && !l.starts_with("unconfined"));
    let seccomp = filtered.then_some("a seccomp filter");
    let all: Vec<_> = seccomp.into_iter().chain(label).collect();
    if all.is_empty() {
        return Finding::ok(check, "none: no seccomp filter, no confining label");
    }
    let all = all.join(", ");
    if opened {
        return Finding::ok(check, format!("{all}: it permits all that a device needs"));
    }
    Finding::note(check, format!("{all}: may be why a device cannot be opened"), "try without it")
}

/// Checks the backends that need privileges, on the first device with a usable address.
pub(super) fn backends(offered: &[DeviceInfo]) -> Vec<Finding> {
    const CHECK: &str = "packet backend";
    let usable = |device: &DeviceInfo| -> Vec<IpAddr> {
        let addresses = device.interface().addresses.iter().filter(|a| !a.tentative);
        addresses.map(|a| a.ip).collect()
    };
    // A new IPv6 address is tentative for a second or two.
    let device = offered.iter().find(|d| !usable(d).is_empty()).or(offered.first());
    let Some(device) = device else { return Vec::new() };
    let interface = device.interface();
    let packet = match rxe_net::open(BackendKind::Packet, &interface.name, &usable(device)) {
        Ok(_) => Finding::ok(CHECK, format!("opened on {}", device.name())),
        Err(e) => refused_by(CHECK, device.name(), &e).into_note(),
    };
    vec![packet, xdp(&interface.name)]
}

/// Checks whether this process may use the `xdp` backend.
fn xdp(netdev: &str) -> Finding {
    const CHECK: &str = "xdp backend";
    let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
    let has = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let outermost = map.split_whitespace().eq(["0", "0", "4294967295"]);
    if has && outermost {
        return Finding::ok(
            CHECK,
            "permitted; not tried, it would load a program into the interface",
        );
    }
    let refused = NetError::Xdp { netdev: netdev.into(), reason: XdpRefusal::NotPermitted };
    Finding::error(CHECK, &refused).into_note()
}

/// Returns a problem for a failed system call, whose error does not name a remedy.
fn failed(check: &'static str, error: &NetError, todo: &str) -> Finding {
    Finding::problem(check, error, todo)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    #[test]
    fn a_small_buffer_is_noted_with_the_limit_to_raise() {
        let asked = 8 << 20;
        let judge =
            |given| buffer("socket buffers", "receive", "rmem_max", BufferSize { asked, given });
        let small = judge(212_992);
        assert_eq!(small.status, Status::Note);
        assert_eq!(
            small.text,
            "receive 208 KiB of 8192 KiB: many simultaneous senders overflow it"
        );
        assert_eq!(small.remedy.unwrap(), "`sudo sysctl -w net.core.rmem_max=8388608`");
        assert_eq!(judge(asked / 2).status, Status::Ok);
    }

    #[test]
    fn an_offload_that_is_missing_is_named() {
        let judge = |segments, merges| offload("UDP GSO and GRO", Offloads { segments, merges });
        assert_eq!(judge(true, true).status, Status::Ok);
        for (segments, merges, text) in [
            (true, false, "received packets are not merged (UDP_GRO)"),
            (false, true, "bursts are not segmented (UDP_SEGMENT)"),
            (false, false, "neither works"),
        ] {
            let found = judge(segments, merges);
            assert_eq!((found.status, &*found.text), (Status::Note, text));
            assert!(found.remedy.unwrap().contains("Linux 5.0"));
        }
    }

    #[test]
    fn a_filter_or_a_label_is_noted_only_if_devices_do_not_open() {
        const FREE: &str = "Name:\trxe\nSeccomp:\t0\nSeccomp_filters:\t0\n";
        const FILTERED: &str = "Name:\trxe\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let judge = |status, label, opened| confined("sandbox", status, label, opened);
        // Without a security module the file is empty. SELinux ends a label with a NUL.
        for label in ["", "unconfined\n", "unconfined_u:unconfined_r:unconfined_t:s0\0"] {
            for opened in [true, false] {
                let found = judge(FREE, label, opened);
                let text = "none: no seccomp filter, no confining label";
                assert_eq!((found.status, &*found.text), (Status::Ok, text), "{label}");
            }
        }
        for (status, label, named) in [
            (FILTERED, "", "a seccomp filter"),
            (FREE, "docker-default (enforce)\n", "docker-default (enforce)"),
            (
                FILTERED,
                "system_u:system_r:container_t:s0:c1,c2\0",
                "a seccomp filter, system_u:system_r:container_t:s0:c1,c2",
            ),
        ] {
            let found = judge(status, label, true);
            let text = format!("{named}: it permits all that a device needs");
            assert_eq!((found.status, &found.text), (Status::Ok, &text));
            let found = judge(status, label, false);
            let text = format!("{named}: may be why a device cannot be opened");
            assert_eq!((found.status, &found.text), (Status::Note, &text));
            assert!(found.remedy.is_some());
        }
    }
}
