//! Checks the devices that programs are offered, and whether they can be opened.

use std::env;
use std::fs;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rxe_net::{Interface, NetError};

use rxe_verbs::device::{DeviceError, DeviceInfo};
use rxe_verbs::{Error, OpenOptions};

use super::finding::{Finding, Status};

/// Returns the devices that programs see under `rxe run`, or the one that was named.
pub(super) fn offered(named: Option<&str>) -> (Vec<DeviceInfo>, Vec<Finding>) {
    let variable = env::var("RXE_DEVICE").unwrap_or_default();
    let names: Vec<_> = match named {
        Some(name) => vec![name],
        None => variable.split(',').filter(|name| !name.is_empty()).collect(),
    };
    let found = if names.is_empty() {
        DeviceInfo::offered()
    } else {
        names.iter().map(|name| DeviceInfo::find(name)).collect()
    };
    let devices = match found {
        Ok(devices) if devices.is_empty() => {
            let text = "none: no interface has an address";
            let todo = "`ip link set lo up` makes one on loopback";
            return (devices, vec![Finding::problem(CHECK, text, todo)]);
        }
        Ok(devices) => devices,
        Err(e) => return (Vec::new(), vec![refused(&e)]),
    };
    let shown: Vec<_> = devices.iter().map(DeviceInfo::name).collect();
    let mut findings = vec![Finding::ok(CHECK, shown.join(", "))];
    if names.is_empty() {
        findings.extend(without_address(&Interface::list().unwrap_or_default()));
    }
    findings.extend(without_link(&devices));
    (devices, findings)
}

/// Notes devices whose interface has no link. That is a problem if no device has a link.
fn without_link(devices: &[DeviceInfo]) -> Vec<Finding> {
    let all = devices.iter().all(|d| !d.interface().running);
    let down = devices.iter().filter(|d| !d.interface().running);
    down.map(|d| {
        let netdev = &d.interface().name;
        let text = format!("{}: {netdev} has no link", d.name());
        let up = format!("`ip link set {netdev} up`");
        let todo = if d.interface().loopback { up } else { format!("connect it, or {up}") };
        let finding = Finding::note("link", text, todo);
        if all { finding.into_problem() } else { finding }
    })
    .collect()
}

const CHECK: &str = "devices";

fn refused(error: &DeviceError) -> Finding {
    match error {
        DeviceError::Os(e) => {
            let todo = "let the sandbox permit netlink sockets (socket AF_NETLINK)";
            Finding::problem(CHECK, format!("cannot list interfaces: {e}"), todo)
        }
        other => Finding::error(CHECK, other),
    }
}

/// Notes interfaces that are up and are no devices, because they have no address.
fn without_address(interfaces: &[Interface]) -> Option<Finding> {
    let bare = interfaces.iter().filter(|i| i.running && i.addresses.is_empty());
    let bare: Vec<_> = bare.map(|i| i.name.as_str()).collect();
    let first = bare.first()?;
    let text = format!("no device on {}: no address", bare.join(", "));
    Some(Finding::note(CHECK, text, format!("`ip address add ADDRESS/LENGTH dev {first}`")))
}

/// Opens each device like a program: sockets on port 4791, file descriptors, threads.
pub(super) fn open(devices: &[DeviceInfo]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut opened, mut mtus, mut most) = (Vec::new(), Vec::new(), 0);
    for info in devices {
        let before = open_files();
        let device = match OpenOptions::new(info.name()).open() {
            Ok(device) => device,
            Err(e) => {
                findings.push(not_opened(info.name(), &e));
                continue;
            }
        };
        most = most.max(open_files().saturating_sub(before));
        opened.push(info.name());
        let (link, path) = (info.interface().mtu, device.active_mtu().bytes());
        if path < 1024 {
            let netdev = &info.interface().name;
            let text = format!("{}: MTU {link}, so the path MTU is only {path}", info.name());
            let todo = format!("`ip link set {netdev} mtu 1500`, or 4176 and more for 4096");
            findings.push(Finding::note(MTU, text, todo));
        } else {
            mtus.push(format!("{}: path MTU {path} (MTU {link})", info.name()));
        }
    }
    if !opened.is_empty() {
        findings.push(Finding::ok(PORT, format!("opened on {}", opened.join(", "))));
        findings.push(files(most));
    }
    if !mtus.is_empty() {
        findings.push(Finding::ok(MTU, mtus.join("; ")));
    }
    findings.sort_by_key(|f| f.status != Status::Problem);
    findings
}

/// Returns the finding for a device that cannot be opened.
fn not_opened(device: &str, error: &Error) -> Finding {
    match error {
        Error::Net(e) => refused_by(PORT, device, e),
        other => Finding::error(PORT, other),
    }
}

/// Returns the finding, with its remedy, for a backend that cannot be opened.
pub(super) fn refused_by(check: &'static str, device: &str, error: &NetError) -> Finding {
    let system = match error {
        NetError::TooManyFiles { .. } => Some(Errno::MFILE),
        NetError::System(rxe_sys::Error::Os { source, .. }) => Errno::from_io_error(source),
        _ => None,
    };
    match system {
        Some(Errno::MFILE) => {
            let text = format!("{} are too few to open {device}", limit_of_files());
            let check = if check == PORT { FILES } else { check };
            Finding::problem(check, text, more_files(getrlimit(Resource::Nofile).maximum))
        }
        Some(_) => {
            let todo = "does a sandbox forbid it (seccomp, AppArmor, SELinux)? Try without";
            Finding::problem(check, format!("{device}: {error}"), todo)
        }
        None => Finding::error(check, error),
    }
}

/// Returns the remedy for too few file descriptors. `hard` is the limit to which the process may
/// raise its own.
fn more_files(hard: Option<u64>) -> String {
    match hard {
        Some(hard) if hard < ENOUGH => {
            format!("as root, raise the hard limit (now {hard}), then `ulimit -n 1024`")
        }
        Some(hard) if hard < 1024 => format!("`ulimit -n {hard}` before the program"),
        _ => "`ulimit -n 1024` before the program".into(),
    }
}

/// The file descriptors of a program with a few connections and completion channels.
const ENOUGH: u64 = 256;

/// Returns the most file descriptors that this process may have.
fn limit_of_files() -> String {
    getrlimit(Resource::Nofile).current.map_or("unlimited".into(), |n| n.to_string())
}

const FILES: &str = "open files";
const PORT: &str = "UDP port 4791";
const MTU: &str = "MTU";

/// Returns the number of open file descriptors of this process.
fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Checks that the limit leaves enough descriptors for a program. `used` is the number for one
/// device.
fn files(used: usize) -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let text = format!("a device takes {used} of {}", limit_of_files());
    if limit.current.is_none_or(|n| n >= ENOUGH) {
        return Finding::ok(FILES, text);
    }
    Finding::note(FILES, text, more_files(limit.maximum))
}
