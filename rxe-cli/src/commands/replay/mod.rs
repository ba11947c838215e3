//! `rxe send` and `rxe replay`: send one side of a recording to a live device.
//!
//! The recording is a scenario or a capture. The peer program is that of `rxe conform`. The local
//! end has no engine, so it sends recorded packets and nothing else. [`rxe_lab::replay`] determines
//! the packets to send and the expected answers.

mod play;
mod report;

use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use clap::ValueEnum;
use rxe_core::wire::Service;
use rxe_lab::frame;
use rxe_lab::packets::number;
use rxe_lab::replay::{Conversation, Cut, NoConversation, Plan, Recording, Responder, Wanted};

use self::play::Play;
use self::report::Report;
use super::decode::{failed, read_all};
use super::generate;
use crate::common::peer::{self, Endpoint, Given, Numbers, Peer, RC, Way, WayArgs, access};
use crate::common::{Error, check_apart, check_capture, print, print_error};

/// Send the requests of a scenario to a live device, and compare its answers
///
/// The scenario is that of `rxe gen`: its engines say which answers are expected. One side of it, the
/// requests to one queue pair, goes to the peer program on the other host, which is that of `rxe conform`
/// (`rxe conform --print-peer`). Queue pair numbers, PSNs, keys, addresses and ICRCs are rewritten for it;
/// what is wrong on purpose stays wrong. Exit code 0: all answers are as expected; 1: some differ; 2: the
/// run could not be made, or not be captured as -w asks.
///
/// Example: rxe send pcaps/scenarios/rnr_nak.toml --to 192.168.1.11
#[derive(clap::Args)]
pub(crate) struct SendArgs {
    /// The scenario; - reads standard input
    #[arg(value_name = "SCENARIO", value_hint = clap::ValueHint::FilePath)]
    scenario: PathBuf,
    #[command(flatten)]
    live: Live,
}

/// Send the requests of a capture to a live device, and compare its answers
///
/// The requests to one queue pair of the capture, from any vendor's devices, go to the peer program on the
/// other host, which is that of `rxe conform` (`rxe conform --print-peer`). Queue pair numbers, keys,
/// addresses and ICRCs are rewritten for it. Acknowledgements, NAKs, READ data and atomics are compared
/// with the recorded ones. If frames were cut (tcpdump -s 96), zeros are sent for the payload that was not
/// captured, and it is not compared. Exit code 0: all are as recorded; 1: some differ; 2: the run could not
/// be made, or not be captured as -w asks.
///
/// Example: rxe replay bug.pcapng --to 192.168.1.11
#[derive(clap::Args)]
pub(crate) struct ReplayArgs {
    /// The capture, as in `rxe decode`; - reads standard input
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    #[command(flatten)]
    live: Live,
}

/// What both have.
#[derive(clap::Args)]
struct Live {
    /// The host where the peer program runs
    #[arg(long, value_name = "HOST[:PORT]")]
    to: String,
    #[command(flatten)]
    way: WayArgs,
    /// Send the requests to this queue pair, if there are several: the number in the file
    #[arg(long, value_name = "QPN", value_parser = number)]
    qp: Option<u32>,
    /// Begin with this PSN instead of the recorded one
    #[arg(long, value_name = "PSN", value_parser = number)]
    psn: Option<u32>,
    /// What the peer's region allows; without it, everything, or what the scenario says
    #[arg(long, value_name = "RIGHT", value_delimiter = ',')]
    access: Option<Vec<Right>>,
    /// Send at most so many packets
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// When packets are sent
    #[arg(long, value_name = "PACE", default_value = "fast")]
    pace: Pace,
    /// How long the peer may take for an answer, and for the whole set-up, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=15))]
    timeout: u64,
    /// Show each packet that is sent and that comes
    #[arg(short = 'v', long, conflicts_with = "json")]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a capture of the run to this file
    #[arg(short = 'w', long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    write: Option<PathBuf>,
}

/// A right of the peer's region. Receives need one more, which it always has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Right {
    /// WRITE
    RemoteWrite,
    /// READ
    RemoteRead,
    /// Atomics
    RemoteAtomic,
    /// None of them
    None,
}

/// When packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pace {
    /// As soon as the recorded answers before them have come
    Fast,
    /// Also not before as much time has passed as in the recording
    Recorded,
}

/// The exit code if answers differ.
const DIFFERS: i32 = 1;
/// The exit code if the run could not be made.
const NO_RUN: i32 = 2;

/// The most bytes of the peer's region that are used.
const LARGEST_REGION: u64 = 1 << 28;

impl SendArgs {
    pub(crate) fn run(self) -> Result<(), Error> {
        let run = || {
            self.live.check_apart(&self.scenario)?;
            let (recording, responders) = generate::read(&self.scenario)?.recording();
            self.live.run(&self.scenario, recording, &responders)
        };
        exit(run())
    }
}

impl ReplayArgs {
    pub(crate) fn run(self) -> Result<(), Error> {
        let run = || {
            self.live.check_apart(&self.file)?;
            self.live.run(&self.file, read(&self.file)?, &[])
        };
        exit(run())
    }
}

/// Ends the process with the outcome's exit code, unless the run succeeded.
fn exit(outcome: Result<bool, Error>) -> Result<(), Error> {
    match outcome {
        Ok(true) => Ok(()),
        Ok(false) => process::exit(DIFFERS),
        Err(e) => {
            print_error(&e);
            process::exit(NO_RUN)
        }
    }
}

fn read(file: &Path) -> Result<Recording, Error> {
    let before = format!(
        "nothing is sent; `editcap {} NEW` makes a file of the whole frames",
        file.display()
    );
    let failed = |e| failed(file, &e, &before);
    let mut recording = Recording::default();
    read_all(file, |record, frame, since| {
        recording.add(record.number, record.interface, since, frame);
    })
    .map_err(failed)?;
    if recording.left_out() > 0 {
        let what = format!("{} has more packets than fit into memory", file.display());
        return Err(Error::new(what, "cut it into pieces, for example with editcap"));
    }
    Ok(recording)
}

impl Live {
    /// Fails if the capture of the run would overwrite the input, or go to standard output.
    fn check_apart(&self, file: &Path) -> Result<(), Error> {
        let Some(write) = self.write.as_deref() else { return Ok(()) };
        check_capture(write, "-w")?;
        check_apart(file, write)
    }

    /// Runs the conversation. Returns whether nothing differs.
    fn run(
        &self,
        file: &Path,
        recording: Recording,
        responders: &[Responder],
    ) -> Result<bool, Error> {
        let conversation =
            recording.choose(self.qp, responders).map_err(|why| no_conversation(file, &why))?;
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        if let Some(cut) = conversation.cut(count) {
            return Err(cannot_send(file, cut));
        }
        let ends = conversation.ends;
        let of_ends = |it: &&Responder| {
            frame::Address::Ip(it.address) == ends.to && it.qpn == ends.qp && it.engine.is_some()
        };
        let responder = responders.iter().find(of_ends);
        let mut given = self.given(&conversation, responder)?;
        let wait = Duration::from_secs(self.timeout);
        let mut peer = Peer::connect(&self.to, wait)?;
        let way = Way::to(&peer, &self.way)?;
        let qp = peer.open(&given)?;
        let service = conversation.service;
        let wanted = Wanted { responder, count, region: qp.len.min(LARGEST_REGION) };
        let plan = Plan::new(conversation, &wanted).map_err(|e| too_large(file, &e))?;
        let mtu = u32::try_from(plan.path_mtu).unwrap_or(u32::MAX);
        if mtu > peer.active_mtu {
            let (device, active) = (&peer.device, peer.active_mtu);
            let what = format!("the path MTU is {mtu}, the active MTU of {device} is {active}");
            return Err(Error::new(what, "raise the MTU of its interface"));
        }
        let first_psn = self.psn.unwrap_or(plan.first_psn.value());
        given.rq_psn = first_psn;
        given.path_mtu = plan.path_mtu;
        given.qkey = plan.qkey;
        given.min_rnr_timer = plan.rnr_timer.unwrap_or(RC.min_rnr_timer);
        given.max_dest_rd_atomic = peer.max_rd_atomic.min(16);
        let mut end = Endpoint::open(&way, peer.address, self.write.as_deref())?;
        let own_qpn = end.qpn(Numbers::new()?.next());
        peer.join(&given, way.own, own_qpn)?;
        peer.begin_run();
        let mut report = Report::new(&peer, way.own, &plan, service);
        if !self.json {
            print(&report.head())?;
        }
        let play = Play::new(&mut peer, &mut end, &plan, &qp, own_qpn, first_psn, wait);
        play.run(self.pace == Pace::Recorded, self.verbose, &mut report)?;
        print(&if self.json { report.json() } else { report.text() })?;
        if let (Some(path), Some(why)) = (&self.write, end.finish_capture().stopped) {
            let what = format!("the capture {} is not whole: {why}", path.display());
            return Err(Error::new(what, "name another place with -w"));
        }
        Ok(report.is_same())
    }

    /// Returns the queue pair and the region to ask the peer for.
    fn given(&self, it: &Conversation, responder: Option<&Responder>) -> Result<Given, Error> {
        let base = match it.service {
            Service::Rc => peer::RC,
            Service::Uc => peer::UC,
            Service::Ud => peer::UD,
            Service::Xrc | Service::Cnp => {
                let what = format!("{} belongs to XRC", it.ends);
                return Err(Error::new(
                    what,
                    "only packets of RC, UC and UD can be played to a peer",
                ));
            }
        };
        let mr_access = match &self.access {
            Some(rights) if rights.len() > 1 && rights.contains(&Right::None) => {
                let what = "--access has none together with a right";
                return Err(Error::new(what, "write none alone, or leave it out"));
            }
            Some(rights) => rights.iter().fold(access::LOCAL_WRITE, |all, right| {
                all | match right {
                    Right::RemoteWrite => access::REMOTE_WRITE,
                    Right::RemoteRead => access::REMOTE_READ,
                    Right::RemoteAtomic => access::REMOTE_ATOMIC,
                    Right::None => 0,
                }
            }),
            None => responder.and_then(|it| it.engine).map_or(access::ALL, |it| it.access.into()),
        };
        Ok(Given { mr_access, ..base })
    }
}

fn no_conversation(file: &Path, why: &NoConversation) -> Error {
    /// The most queue pairs that are listed.
    const LISTED: usize = 8;
    let name = file.display();
    let list = |all: &[rxe_lab::replay::Ends]| {
        let mut text: Vec<_> = all.iter().take(LISTED).map(ToString::to_string).collect();
        if all.len() > LISTED {
            text.push(format!("and {} more", all.len() - LISTED));
        }
        text.join("; ")
    };
    match why {
        NoConversation::None => {
            let what = format!("{name} has no requests of RC, UC or UD");
            Error::new(what, "see `rxe decode` for what it has")
        }
        NoConversation::Cut(frame) => cannot_send(file, Cut::Headers(*frame)),
        NoConversation::NoSuchQp(all) => {
            let what = format!("{name} has no requests to or from this queue pair");
            Error::new(what, format!("choose one with --qp: {}", list(all)))
        }
        NoConversation::Several(all) => {
            let what = format!("{name} has requests to {} queue pairs", all.len());
            Error::new(what, format!("choose one with --qp: {}", list(all)))
        }
    }
}

/// Returns the error for a frame that was cut so short that its packets cannot be sent.
fn cannot_send(file: &Path, cut: Cut) -> Error {
    let (name, frame) = (file.display(), cut.frame());
    match cut {
        Cut::Headers(_) => {
            let what = format!("{name}: frame {frame} was captured without the end of its headers");
            Error::new(what, "capture whole frames (tcpdump -s 0), or at least 128 B of each")
        }
        Cut::Several(_) => {
            let what = format!(
                "{name}: frame {frame} has several packets that the host had not split (GSO), and only \
                 part of it was captured"
            );
            let fix =
                "capture whole frames (tcpdump -s 0), or run the program with `rxe run --no-gso`";
            Error::new(what, fix)
        }
    }
}

fn too_large(file: &Path, e: &rxe_lab::replay::TooLarge) -> Error {
    let (name, needed, has) = (file.display(), e.needed, e.has);
    let what = match e.frame {
        0 => format!("{name} has a message of {needed} B, and the peer's region has {has} B"),
        frame => format!(
            "{name}: the requests up to frame {frame} use {needed} B, and the peer's region has {has} B"
        ),
    };
    Error::new(what, "send fewer with --count, or compile the peer with -DMEMORY=16777216u")
}
