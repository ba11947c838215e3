//! `rxe conform`: tests how a RoCEv2 device of any maker answers specially built packets.
//!
//! The peer program (`peer.c`) creates a queue pair on that device, and reports what its program
//! sees. This process is the other end of the queue pair. It builds each packet itself without an
//! engine, and so can send packets that no device sends.

mod bench;
mod case;
mod cases;
mod cm;
mod judge;
mod packet;
mod report;
mod verdict;

use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use rxe_net::PcapHandle;

use self::bench::Bench;
use self::case::{Case, Group};
use self::report::{Played, Report};
use self::verdict::{Outcome, Stop, Verdict};
use crate::common::peer::{self, Endpoint, Numbers, Peer, Way, WayArgs};
use crate::common::{Error, check_file, print, print_error, write_file};

/// Test how another RoCEv2 device follows the specification
///
/// The peer's host runs a small C program that needs nothing but libibverbs: `rxe conform --print-peer >
/// peer.c; cc peer.c -o peer -libverbs; ./peer`. With librdmacm (`cc -DWITH_CM peer.c -o peer -libverbs
/// -lrdmacm`) it can also play the cases of the communication manager. Its device may be a network card, the
/// kernel's rxe, or this engine under `rxe run`. Each case sends it packets, or answers its own, and compares what it does with
/// what the InfiniBand specification allows. Exit code 0: all cases conform, or are not testable; 1: the
/// peer deviates in some; 2: the run could not be made.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The host where the peer runs
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present_any = ["list", "print_peer"])]
    peer: Option<String>,
    #[command(flatten)]
    way: WayArgs,
    /// Play only these cases or groups, which --list names
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// How long the peer may take for an answer, and for the whole set-up, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=15))]
    timeout: u64,
    /// List the cases, with the sections of the specification
    #[arg(long)]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write a report for CI systems (JUnit XML) to this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    junit: Option<PathBuf>,
    /// Also write a page for a browser to this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Write a capture of each case into this directory
    #[arg(short = 'w', long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    captures: Option<PathBuf>,
    /// Print the C program for the peer's host
    #[arg(long, exclusive = true)]
    print_peer: bool,
}

/// The exit code for a peer that deviates.
const DEVIATES: i32 = 1;
/// The exit code for a run that could not be made.
const NO_RUN: i32 = 2;

/// The finding for a peer that did not survive a case.
const GONE: &str =
    "the peer is gone after that: its program, its driver or its host does not survive it";

/// The time limit of a run. Checked between cases.
const LONGEST: Duration = Duration::from_secs(600);

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.print_peer {
            return print(peer::SOURCE);
        }
        match self.play() {
            Ok(true) => Ok(()),
            Ok(false) => process::exit(DEVIATES),
            Err(e) => {
                print_error(&e);
                process::exit(NO_RUN)
            }
        }
    }

    /// Plays the chosen cases. Returns whether the peer deviates in none.
    fn play(&self) -> Result<bool, Error> {
        let chosen = choose(&self.only)?;
        let Some(host) = self.peer.as_deref().filter(|_| !self.list) else {
            print(&if self.json {
                report::json::list(&chosen)
            } else {
                report::text::list(&chosen)
            })?;
            return Ok(true);
        };
        for path in [&self.junit, &self.html].into_iter().flatten() {
            check_file(path)?;
        }
        if let Some(dir) = &self.captures {
            std::fs::create_dir_all(dir).map_err(|e| {
                let what = format!("cannot make the directory {}: {e}", dir.display());
                Error::new(what, "name another one with -w")
            })?;
        }
        let wait = Duration::from_secs(self.timeout);
        let mut peer = Peer::connect(host, wait)?;
        peer.begin_run();
        let way = Way::to(&peer, &self.way)?;
        let mut report = Report::new(&peer, way.own);
        let mut run =
            Run { way, wait, captures: self.captures.as_deref(), numbers: Numbers::new()? };
        if !self.json {
            print(&report::text::head(&report))?;
        }
        let started = Instant::now();
        for (group, case) in &chosen {
            if started.elapsed() > LONGEST {
                let what = format!("the run takes longer than {} s", LONGEST.as_secs());
                return Err(Error::new(what, "choose fewer cases with --only"));
            }
            let (played, end) = run.play(&mut peer, group, case);
            if let Some(played) = played {
                if !self.json {
                    print(&report::text::row(&report, &played))?;
                }
                report.played.push(played);
            }
            if let Some(e) = end {
                if !report.played.is_empty() {
                    self.write(&report)?;
                }
                let what = format!("case {} could not be played", case.name);
                return Err(Error::new(what, e));
            }
        }
        self.write(&report)?;
        Ok(report.count("deviates") == 0)
    }

    fn write(&self, report: &Report) -> Result<(), Error> {
        print(&if self.json { report::json::report(report) } else { report::text::sum(report) })?;
        for (path, text) in [
            (&self.junit, report::junit::xml as fn(&Report) -> String),
            (&self.html, report::html::page),
        ] {
            let Some(path) = path else { continue };
            write_file(path, &text(report))?;
        }
        Ok(())
    }
}

/// The state that all cases of a run share.
struct Run<'a> {
    way: Way,
    wait: Duration,
    captures: Option<&'a Path>,
    numbers: Numbers,
}

impl Run<'_> {
    /// Plays a case. Returns its result, and the reason if the run cannot go on.
    ///
    /// A peer that does not survive the packets of the case deviates.
    fn play(
        &mut self,
        peer: &mut Peer,
        group: &str,
        case: &'static Case,
    ) -> (Option<Played>, Option<Error>) {
        let path = self.captures.map(|dir| dir.join(format!("{}.pcapng", case.name)));
        let (mut log, mut capture) = (Vec::new(), None);
        let outcome = self.outcome(peer, case, path.as_deref(), &mut capture, &mut log);
        let (verdict, end) = match outcome {
            Ok(()) => (Verdict::Conforms, None),
            Err(Stop::Deviates(why)) => (Verdict::Deviates(why), None),
            Err(Stop::NotTestable(why)) => (Verdict::NotTestable(why), None),
            Err(Stop::Gone(e)) if !log.is_empty() => (Verdict::Deviates(GONE.into()), Some(e)),
            Err(Stop::Gone(e) | Stop::Broken(e)) => return (None, Some(e)),
        };
        // Without a packet, an existing file may be the capture of another run.
        let packets = capture.map_or(0, |capture| capture.status().packets);
        let capture = path.filter(|_| packets > 0);
        (Some(Played { group: group.into(), case, verdict, log, capture }), end)
    }

    fn outcome(
        &mut self,
        peer: &mut Peer,
        case: &Case,
        path: Option<&Path>,
        capture: &mut Option<PcapHandle>,
        log: &mut Vec<String>,
    ) -> Outcome {
        let end = Endpoint::open(&self.way, peer.address, path).map_err(Stop::Broken)?;
        *capture = end.capture();
        let mut bench = Bench::new(peer, end, &case.given, self.numbers.next(), self.wait)?;
        let outcome = (case.run)(&mut bench);
        *log = std::mem::take(&mut bench.log);
        if let (Some(path), Some(_)) = (path, bench.end.finish_capture().stopped) {
            let what = format!("the capture {} lacks packets", path.display());
            return Err(Stop::Broken(Error::new(what, "name another directory with -w")));
        }
        match outcome {
            Err(Stop::Gone(_) | Stop::Broken(_)) => outcome,
            _ => peer.close().map_err(Stop::from).and(outcome),
        }
    }
}

/// Returns the cases that were asked for, or all if none were.
fn choose(only: &[String]) -> Result<Vec<(&'static str, &'static Case)>, Error> {
    let all = || {
        let cases = |group: &'static Group| group.cases.iter().map(move |case| (group.name, case));
        cases::ALL.iter().flat_map(cases)
    };
    for name in only {
        if !all().any(|(group, case)| name == group || name == case.name) {
            let what = format!("there is no case or group \"{name}\"");
            return Err(Error::new(what, "see `rxe conform --list`"));
        }
    }
    let wanted = |group: &str, case: &Case| {
        only.is_empty() || only.iter().any(|name| name == group || name == case.name)
    };
    Ok(all().filter(|(group, case)| wanted(group, case)).collect())
}
