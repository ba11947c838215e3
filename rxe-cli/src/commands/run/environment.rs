//! The variables that the preloaded library reads.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf, absolute};

use clap::ValueEnum;
use rustix::fs::{Access, access};
use rxe_net::BackendKind;
use rxe_verbs::DeviceInfo;

use super::{library, sysfs};
use crate::common::Error;

/// What the loader loads before a program's own libraries.
pub(super) const PRELOAD: &str = "LD_PRELOAD";

/// How the program's devices behave.
#[derive(clap::Args)]
pub(super) struct Settings {
    /// Which way packets go: udp needs nothing, packet needs CAP_NET_RAW
    #[arg(long, value_name = "udp|packet")]
    backend: Option<BackendKind>,
    /// Go onto the wire to programs of this host too, instead of through shared memory
    #[arg(long)]
    no_shm: bool,
    /// Hand packets to the system one by one: captures of the interface then show each of them
    #[arg(long)]
    no_gso: bool,
    /// When messages that the program polls are acknowledged: before it is told of them (prompt), or,
    /// in a ping-pong, together with its answer (adaptive) [default: adaptive]
    #[arg(long, value_enum)]
    ack: Option<Ack>,
    /// Show the program only this device (or interface); may be given several times
    #[arg(long = "device", value_name = "DEV", value_delimiter = ',')]
    devices: Vec<String>,
    /// Write what the program sends and receives to this file (pcapng); %p in it stands for the
    /// process's number
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// What to say on stderr about what goes wrong in the program [default: errors]
    #[arg(long, value_enum)]
    explain: Option<Explain>,
    /// Let a program of InfiniBand that knows no GIDs tell its peers by LID: give it at both ends.
    /// A port's LID is the second half of its first IPv4 address; kernels have no such thing
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
    /// Everything worth knowing
    All,
}

/// When acknowledgements leave.
#[derive(Clone, Copy, ValueEnum)]
enum Ack {
    /// In a ping-pong with the program's answer
    Adaptive,
    /// Before the program is told of the message
    Prompt,
}

impl Settings {
    /// What to add to a program's environment.
    pub(super) fn variables(&self) -> Result<Vec<(&'static str, OsString)>, Error> {
        let pcap = self.pcap.as_deref().map(capture).transpose()?;
        let library = library::find()?;
        let preloaded = in_front_of(library.as_os_str(), PRELOAD, &[':', ' ']);
        let mut variables = vec![(PRELOAD, preloaded)];
        if let Some(dir) = library::versioned(&library) {
            let path = in_front_of(dir.as_os_str(), "LD_LIBRARY_PATH", &[':']);
            variables.push(("LD_LIBRARY_PATH", path));
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
        let tree = sysfs::tree(&shown)?;
        // Without the variable, programs are looked for in places that are no list of ours.
        if env::var_os("PATH").is_some() {
            let programs = sysfs::programs(&tree);
            variables.push(("PATH", in_front_of(programs.as_os_str(), "PATH", &[':'])));
        }
        variables.push(("RXE_SYSFS", tree.into()));
        if let Some(path) = pcap {
            variables.push(("RXE_PCAP", path.into()));
        }
        if self.lids {
            variables.push(("RXE_LIDS", "on".into()));
        }
        if let Some(explain) = self.explain.and_then(|explain| explain.to_possible_value()) {
            variables.push(("RXE_EXPLAIN", explain.get_name().into()));
        }
        Ok(variables)
    }

    /// Those to show: by option, or by the variable that an option sets.
    fn devices(&self) -> Vec<String> {
        if !self.devices.is_empty() {
            return self.devices.clone();
        }
        let names = env::var("RXE_DEVICE").unwrap_or_default();
        names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }
}

/// The whole path of a capture file. Refuses one that can not be made: the program would be told of it
/// only when it opens a device.
fn capture(path: &Path) -> Result<PathBuf, Error> {
    let refuse = |why: String| {
        let what = format!("can not write the capture {}: {why}", path.display());
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
    // The process's number may be part of the directory's name.
    if !dir.to_string_lossy().contains("%p")
        && let Err(e) = access(dir, Access::WRITE_OK | Access::EXEC_OK)
    {
        return refuse(format!("{}: {}", dir.display(), io::Error::from(e)));
    }
    Ok(whole)
}

/// Ours before what a variable with a list has already.
fn in_front_of(ours: &OsStr, variable: &str, separators: &[char]) -> OsString {
    let mut all = ours.to_owned();
    let others = env::var_os(variable).unwrap_or_default().to_string_lossy().into_owned();
    for other in others.split(separators).filter(|o| !o.is_empty() && *o != ours) {
        all.push(":");
        all.push(other);
    }
    all
}
