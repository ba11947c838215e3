//! `rxe demo`: two processes exchange every RC operation, and every byte is checked.
//!
//! The process that the user starts leads. It starts a second process of the same program as the
//! peer. Apart from RDMA, the two talk over the peer's standard input and output ([`messages`]).

mod end;
mod lead;
mod messages;
mod mistake;
mod peer;
mod place;
mod report;
mod steps;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use self::place::Place;
use crate::common::{Error, NewFile, check_capture, print, print_json};

/// Show everything in a few seconds: two processes exchange RDMA messages over loopback
///
/// It needs no privileges and no set-up. It does SEND, WRITE, READ and atomics in several sizes between
/// two processes, checks every byte that arrives, shows what a mistake looks like, and writes a
/// capture that Wireshark opens.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value_t = 1024)]
    mtu: usize,
    /// Write the capture to this file
    #[arg(long, value_name = "FILE", default_value = CAPTURE, value_hint = clap::ValueHint::FilePath)]
    pcap: PathBuf,
    /// Write no capture
    #[arg(long, conflicts_with = "pcap")]
    no_pcap: bool,
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    path: PathOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Be the other process
    #[arg(long, hide = true)]
    peer: bool,
}

/// The devices of the two processes.
#[derive(clap::Args, Clone, Debug)]
struct DeviceArgs {
    /// Use this device (or interface) instead of loopback
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    dev: Option<String>,
    /// Give the second process this device instead of the same
    #[arg(long, value_name = "DEV", requires = "dev")]
    peer_dev: Option<String>,
}

/// How packets travel between the processes.
#[derive(clap::Args, Clone, Copy, Debug, Serialize, Deserialize)]
struct PathOptions {
    /// Go over the interface, where captures of it see the packets, instead of through shared memory
    #[arg(long)]
    no_shm: bool,
    /// Hand packets to the system one by one: captures of the interface then show each of them
    #[arg(long)]
    no_gso: bool,
}

const CAPTURE: &str = "rxe-demo.pcapng";

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.peer {
            return peer::run();
        }
        check_capture(&self.pcap, "--pcap")?;
        let places = Place::both(&self.devices)?;
        let pcap = if self.no_pcap { None } else { Some(self.capture()?) };
        let (shown, missing) =
            lead::run(places, self.mtu, self.path, pcap.as_ref().map(NewFile::path))?;
        let capture = match (pcap, missing) {
            (None, _) => Ok(None),
            // The temporary file is incomplete, so the old file stays.
            (Some(_), Some(why)) => Err(cannot_write(&self.pcap, why)),
            (Some(file), None) => file.finish().map(Some).map_err(|e| cannot_write(&self.pcap, e)),
        };
        let (capture, failed) = match capture {
            Ok(capture) => (capture, Ok(())),
            Err(e) => (None, Err(e)),
        };
        let shown = shown.captured(capture);
        if self.json {
            print_json(&shown)?
        } else {
            print(&report::text(&shown, self.no_pcap))?
        }
        shown.verdict().and(failed)
    }

    /// Creates the file of the capture.
    /// If the default directory is not writable, a temporary file is used. If the user named the
    /// file, that is an error.
    fn capture(&self) -> Result<NewFile, Error> {
        match NewFile::new(&self.pcap) {
            Ok(file) => Ok(file),
            Err(_) if self.pcap.as_os_str() == CAPTURE => elsewhere(),
            Err(e) => Err(cannot_write(&self.pcap, e)),
        }
    }
}

/// Creates a file in the directory for temporary files.
fn elsewhere() -> Result<NewFile, Error> {
    let failed = |e| cannot_write(&std::env::temp_dir(), e);
    NewFile::unique("rxe-demo-", ".pcapng").map_err(failed)
}

fn cannot_write(path: &Path, why: impl Display) -> Error {
    let what = format!("cannot write the capture {}: {why}", path.display());
    Error::new(what, "name another file with --pcap, or use --no-pcap")
}
