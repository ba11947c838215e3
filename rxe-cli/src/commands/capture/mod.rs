//! `rxe capture`: captures packets of programs or interfaces live.

#[cfg(target_os = "linux")]
pub(crate) mod extcap;
mod file;
mod interface;
#[cfg(target_os = "linux")]
mod processes;
mod sink;

use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use clap::ArgGroup;
use clap::builder::NonEmptyStringValueParser;
use signal_hook::consts::{SIGINT, SIGTERM};

use self::file::Ring;
use self::sink::{Sink, Wanted};
use crate::common::Error;

/// Capture the packets of running programs, or of an interface, while they pass
///
/// --of takes the packets of programs that run under `rxe run`, and of rxe itself (pingpong, perf, ...).
/// It needs no privileges. The programs go on as they are: nothing is restarted, and no packet of theirs
/// is lost. What they exchange through shared memory is captured too, as it would be on a wire. Without
/// -i, this is what is done, for all processes of this user unless --of names one.
///
/// -i takes the RDMA packets of an interface, whoever sends them. It needs CAP_NET_RAW.
///
/// Packets that come faster than they are taken are missing from the capture, and counted.
///
/// Without -w, each packet is a line, as in `rxe decode`. Ends with Ctrl-C, or as --count and --seconds
/// say.
///
/// Example: rxe run -- ib_write_bw -d rxe_lo & rxe capture -c 20
#[derive(clap::Args)]
#[cfg_attr(target_os = "linux", command(group(ArgGroup::new("whose").args(["of", "interface"]))))]
#[cfg_attr(
    not(target_os = "linux"),
    command(
        about = "Capture the packets of an interface while they pass",
        long_about = "Captures the RDMA packets of an interface, whoever sends them, on this system \
                      by pnet's datalink channel. Ends with Ctrl-C, or as --count and --seconds say."
    )
)]
pub(crate) struct Args {
    #[cfg(target_os = "linux")]
    /// Capture what this process sends and receives; or what all processes of this user do, also those
    /// that start later [default: all]
    #[arg(long, value_name = "PID|all")]
    of: Option<Of>,
    /// Capture what passes this interface: RoCEv2, with VLAN tags, and RoCEv1
    #[arg(
        short,
        long,
        value_name = "NETDEV",
        value_parser = NonEmptyStringValueParser::new(),
        required = cfg!(not(target_os = "linux"))
    )]
    interface: Option<String>,
    /// Write the packets to this file (pcapng); - writes to standard output, as in
    /// `rxe capture -w - | wireshark -k -i -`
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    write: Option<PathBuf>,
    /// End after so many packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(short, long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Write N files of SIZE in turn, FILE.1 to FILE.N, of which the oldest is overwritten: 100Mx5
    #[arg(long, value_name = "SIZExN", requires = "write")]
    ring: Option<Ring>,
    /// Draw the conversations at the end, as `rxe ladder` does
    #[arg(long)]
    ladder: bool,
}

/// The processes whose packets are captured.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy)]
enum Of {
    All,
    Process(u32),
}

#[cfg(target_os = "linux")]
impl FromStr for Of {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            number => number.parse().map(Self::Process).map_err(|_| "a process's number, or all"),
        }
    }
}

/// The end of a capture: a deadline, a signal, or both.
pub(super) struct Until {
    time: Option<Instant>,
    /// Set by SIGINT and SIGTERM.
    interrupted: Arc<AtomicBool>,
}

impl Until {
    fn new(seconds: Option<Duration>) -> Result<Self, Error> {
        let interrupted = Arc::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))
                .map_err(|e| Error::new("cannot wait for Ctrl-C", e))?;
        }
        let time = seconds.and_then(|seconds| Instant::now().checked_add(seconds));
        Ok(Self { time, interrupted })
    }

    /// Returns the remaining time, at most `most`; `None` if the capture must end.
    fn left(&self, most: Duration) -> Option<Duration> {
        let now = Instant::now();
        match self.time {
            _ if self.interrupted.load(Ordering::Relaxed) => None,
            Some(time) if time <= now => None,
            Some(time) => Some(most.min(time - now)),
            None => Some(most),
        }
    }
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.ladder && self.write.as_ref().is_some_and(|file| file.as_os_str() == "-") {
            let what = "the capture and the diagram of --ladder would both be on standard output";
            return Err(Error::new(what, "name a file with -w, or leave one of them out"));
        }
        let wanted = Wanted {
            lines: self.write.is_none() && !self.ladder,
            file: self.write,
            ring: self.ring,
            ladder: self.ladder,
            count: self.count,
            notices: true,
        };
        capture(wanted, self.seconds, |sink, until| match &self.interface {
            Some(netdev) => interface::capture(netdev, sink, until),
            #[cfg(target_os = "linux")]
            None => processes::capture(self.of.unwrap_or(Of::All), sink, until),
            // The option is required.
            #[cfg(not(target_os = "linux"))]
            None => Ok(()),
        })
    }
}

/// Captures for `seconds`, or until a signal.
fn capture(
    wanted: Wanted,
    seconds: Option<Duration>,
    run: impl FnOnce(&mut Sink, &Until) -> Result<(), Error>,
) -> Result<(), Error> {
    // The captured programs have priority.
    #[cfg(unix)]
    let _ = rustix::process::nice(19);
    // Opening a named pipe waits for a reader. Install the signal handlers after that, so that
    // signals can end the wait.
    let mut sink = Sink::new(wanted)?;
    let until = Until::new(seconds)?;
    let captured = run(&mut sink, &until);
    // Packets that were captured before an error are kept.
    if captured.is_ok() || sink.has_device() {
        sink.notice(&sink.summary());
    }
    sink.finish()?;
    captured
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or("a number above 0 is expected, as in 10 or 0.5")
}
