//! The environment variables that the preload library reads.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf, absolute};
use std::{io, iter};

use clap::ValueEnum;
use clap::builder::TypedValueParser;
use rustix::fs::{Access, access};
use rxe_net::BackendKind;
use rxe_verbs::device::{Identity, sysfs};
use rxe_verbs::{DeviceInfo, OpenOptions, SourcePortPolicy};

use super::{library, own_path, rdma};
use crate::common::{Error, FaultArgs, check_capture, print_error};

/// The variable with the libraries that the dynamic loader loads before a program's own.
pub(super) const PRELOAD: &str = "LD_PRELOAD";

/// The variable with options that valgrind reads before its command line.
const VALGRIND: &str = "VALGRIND_OPTS";

/// The options that set these variables.
#[derive(clap::Args)]
pub(super) struct Settings {
    /// How packets are sent: udp needs nothing, packet CAP_NET_RAW, xdp (AF_XDP) also CAP_BPF and
    /// CAP_NET_ADMIN
    #[arg(long, value_name = "udp|packet|xdp")]
    backend: Option<BackendKind>,
    /// Use the network also between programs on this host, instead of shared memory
    #[arg(long)]
    no_shm: bool,
    /// Hand packets to the system one by one: captures of the interface then show each of them
    #[arg(long)]
    no_gso: bool,
    /// When messages that the program polls are acknowledged: before the program sees them (prompt),
    /// or, in a ping-pong, together with its answer (adaptive) [default: adaptive]
    #[arg(long, value_enum)]
    ack: Option<Ack>,
    /// Send all packets from this UDP port, for a firewall that wants one, or from one for each queue
    /// pair, so that receivers and networks spread them [default: per-qp]
    #[arg(long, value_name = "PORT|per-qp")]
    source_port: Option<SourcePortPolicy>,
    /// Do not ask the peers of connections by address (librdmacm), every two seconds, if they are still
    /// there: the program then hears of one that was killed only when a request to it fails
    #[arg(long)]
    no_keepalive: bool,
    /// Do not give the threads of devices a real-time priority, where the process may have one: packets
    /// then wait for a CPU while the program polls memory on all of them
    #[arg(long)]
    no_realtime: bool,
    /// Spread queue pairs over this many engines, each with a lock and a thread of its own, in turn by
    /// their completion queues. Without it each thread that makes queue pairs has an engine, and one more
    /// for each completion vector that it names, as long as there are CPUs
    #[arg(long, value_name = "NUMBER", value_parser = shard_count())]
    shards: Option<u32>,
    /// Let queue pairs wait for acknowledgements at least so long, where the program asks for less: 4.096 µs
    /// times 2 to the power of this. For machines, such as those for CI, where a process may get no processor
    /// for a second: 17 is 0.54 s for each retry
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=31))]
    ack_timeout: Option<u8>,
    /// Show the program only this device (or interface); may be given several times
    #[arg(short = 'd', long = "device", value_name = "DEV", value_delimiter = ',')]
    devices: Vec<String>,
    /// Show the program the host's own RDMA devices too, behind those of rxe. Without it they are hidden.
    /// Connections by address (librdmacm) use the devices of rxe only
    #[arg(long, conflicts_with = "identity")]
    with_host_devices: bool,
    /// Name the devices as a card's driver does, for programs that insist on it: mlx5_0, mlx5_1 and so on,
    /// each with a place on a PCI bus in /sys
    #[arg(long = "as", value_name = "mlx5", value_parser = ["mlx5"])]
    identity: Option<String>,
    /// Capture the program's packets to this file (pcapng); %p in it stands for the process ID
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    faults: FaultArgs,
    /// What to explain on stderr when something goes wrong in the program [default: errors]
    #[arg(long, value_enum)]
    explain: Option<Explain>,
    /// Let an InfiniBand program that does not use GIDs address its peers by LID. Give this option at
    /// both ends. A port's LID is the second half of its first IPv4 address; kernels do not have this
    #[arg(long)]
    lids: bool,
}

/// How much is explained.
#[derive(Clone, Copy, ValueEnum)]
enum Explain {
    /// Nothing
    Off,
    /// Each kind of mistake once
    Errors,
    /// Mistakes and other useful information
    All,
}

/// When acknowledgements are sent.
#[derive(Clone, Copy, ValueEnum)]
enum Ack {
    /// In a ping-pong, together with the program's answer
    Adaptive,
    /// Before the program sees the message
    Prompt,
}

impl Settings {
    /// Returns the variables to add to a program's environment.
    pub(super) fn variables(&self) -> Result<Vec<(&'static str, OsString)>, Error> {
        let pcap = self.pcap.as_deref().map(capture).transpose()?;
        let library = library::find()?;
        let preloaded = in_front_of(library.as_os_str(), PRELOAD, &[':', ' ']);
        let mut variables = vec![(PRELOAD, preloaded)];
        if let Some(dir) = library::versioned(&library) {
            let path = in_front_of(dir.as_os_str(), "LD_LIBRARY_PATH", &[':']);
            variables.push(("LD_LIBRARY_PATH", path));
        }
        if let Some(file) = library::suppressions(&library) {
            let option = format!("--suppressions={}", file.display());
            let own = env::var(VALGRIND).unwrap_or_default();
            let others = own.split_whitespace().filter(|other| *other != option);
            let all: Vec<_> = iter::once(option.as_str()).chain(others).collect();
            variables.push((VALGRIND, all.join(" ").into()));
        }
        if let Some(backend) = self.backend {
            variables.push(("RXE_BACKEND", backend.name().into()));
        }
        if self.no_shm {
            variables.push(("RXE_SHM", "off".into()));
        }
        if self.no_gso {
            variables.push(("RXE_GSO", "off".into()));
        }
        if let Some(ack) = self.ack.and_then(|ack| ack.to_possible_value()) {
            variables.push(("RXE_ACK", ack.get_name().into()));
        }
        if let Some(policy) = self.source_port {
            variables.push(("RXE_SOURCE_PORT", policy.to_string().into()));
        }
        if self.no_keepalive {
            variables.push(("RXE_KEEPALIVE", "off".into()));
        }
        if self.no_realtime {
            variables.push(("RXE_REALTIME", "off".into()));
        }
        if let Some(count) = self.shards {
            variables.push(("RXE_SHARDS", count.to_string().into()));
        }
        if let Some(code) = self.ack_timeout {
            variables.push(("RXE_ACK_TIMEOUT", code.to_string().into()));
        }
        let mut shown = DeviceInfo::offered()?;
        let devices = self.devices();
        if !devices.is_empty() {
            shown = DeviceInfo::list()?;
            let chosen: Result<Vec<_>, Error> =
                devices.iter().map(|d| Ok(DeviceInfo::find(d)?.name().to_owned())).collect();
            let chosen = chosen?;
            shown.retain(|device| chosen.iter().any(|name| name == device.name()));
            variables.push(("RXE_DEVICE", chosen.join(",").into()));
        }
        let identity =
            self.identity.clone().or_else(|| env::var("RXE_AS").ok()).unwrap_or_default();
        let identity = Identity::ALL.into_iter().find(|known| known.name() == identity);
        if let Some(identity) = identity {
            variables.push(("RXE_AS", identity.name().into()));
        }
        let host = self.with_host_devices || env::var("RXE_HOST_DEVICES").is_ok_and(|v| v == "on");
        if host {
            if identity.is_some() {
                let todo = "leave out --with-host-devices or RXE_AS=mlx5";
                return Err(Error::new(
                    "a device of rxe and one of the host could both be mlx5_0",
                    todo,
                ));
            }
            variables.push(("RXE_HOST_DEVICES", "on".into()));
        }
        let programs = [("rdma", rdma::wrapper(&own_path()?))];
        match sysfs::tree(&shown, identity, host, &programs) {
            Ok(tree) => {
                // Without PATH, programs are searched for in default directories, which setting
                // PATH would replace.
                if env::var_os("PATH").is_some() {
                    let programs = sysfs::programs(&tree);
                    variables.push(("PATH", in_front_of(programs.as_os_str(), "PATH", &[':'])));
                }
                variables.push(("RXE_SYSFS", tree.into()));
            }
            // Continue without the tree, because most programs only use the verbs.
            Err(e) => {
                print_error(&format!(
                    "programs that read /sys/class/infiniband find no device there: {e}"
                ));
            }
        }
        if let Some(path) = pcap {
            variables.push(("RXE_PCAP", path.into()));
        }
        if let Some((seed, plan)) = self.faults.chosen()? {
            variables.push(("RXE_FAULT", plan.to_string().into()));
            variables.push(("RXE_SEED", seed.to_string().into()));
        }
        if self.lids {
            variables.push(("RXE_LIDS", "on".into()));
        }
        if let Some(explain) = self.explain.and_then(|explain| explain.to_possible_value()) {
            variables.push(("RXE_EXPLAIN", explain.get_name().into()));
        }
        Ok(variables)
    }

    /// Returns the devices to show, from the option or else from `RXE_DEVICE`.
    fn devices(&self) -> Vec<String> {
        if !self.devices.is_empty() {
            return self.devices.clone();
        }
        let names = env::var("RXE_DEVICE").unwrap_or_default();
        names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }
}

/// Returns the parser of the number of shards.
fn shard_count() -> impl TypedValueParser<Value = u32> {
    let (least, most) = OpenOptions::SHARDS.into_inner();
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

/// Returns the absolute path of a capture file. Fails if the file cannot be created, because the
/// program would find that out only when it opens a device.
fn capture(path: &Path) -> Result<PathBuf, Error> {
    check_capture(path, "--pcap")?;
    let refuse = |why: String| {
        let what = format!("cannot write the capture {}: {why}", path.display());
        Err(Error::new(what, "name another file with --pcap"))
    };
    // The program may change its directory before it opens a device.
    let whole = match absolute(path) {
        Ok(whole) => whole,
        Err(e) => return refuse(e.to_string()),
    };
    match whole.symlink_metadata() {
        Ok(found) if found.is_dir() => return refuse("it is a directory".into()),
        Ok(found) if found.is_symlink() => {
            return refuse("it is a symbolic link, which is not followed".into());
        }
        Ok(_) => match access(&whole, Access::WRITE_OK) {
            Ok(()) => return Ok(whole),
            Err(e) => return refuse(io::Error::from(e).to_string()),
        },
        Err(_) => {}
    }
    let dir = whole.parent().unwrap_or(&whole);
    // The process ID may be part of the directory's name, which then cannot be checked here.
    if !dir.to_string_lossy().contains("%p")
        && let Err(e) = access(dir, Access::WRITE_OK | Access::EXEC_OK)
    {
        return refuse(format!("{}: {}", dir.display(), io::Error::from(e)));
    }
    Ok(whole)
}

/// Returns the value of a list variable with `ours` in front.
fn in_front_of(ours: &OsStr, variable: &str, separators: &[char]) -> OsString {
    let mut all = ours.to_owned();
    let others = env::var_os(variable).unwrap_or_default().to_string_lossy().into_owned();
    for other in others.split(separators).filter(|o| !o.is_empty() && *o != ours) {
        all.push(":");
        all.push(other);
    }
    all
}
