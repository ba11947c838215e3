//! `rxe decode`: the packets of a capture, one per line.

mod open;
mod select;
mod text;

use std::fs;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::{Path, PathBuf};

use rxe_lab::capture::{CaptureError, Record, Start};
use rxe_lab::check::Checker;
use rxe_lab::frame;
use rxe_lab::packets::{Decoder, Filter, write_json};
use rxe_lab::report;

pub(super) use self::open::read_all;
use self::open::{Output as Printed, open};
pub(super) use self::select::Select;
use self::text::Text;
use crate::common::{Error, check_apart, print_json};

/// Show the packets of a capture: RoCEv2, RoCEv1 and native InfiniBand
///
/// FILE is of pcap or pcapng, also compressed with gzip or zstd. Each packet is one line: number, time,
/// addresses, destination QP, PSN, opcode, and what matters: lengths, keys, acknowledgements, and what
/// is sent again, missing or damaged. Other frames are counted.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The capture; - reads standard input, as in `tcpdump -w - | rxe decode -`
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Show every field, by its name in the specification, with its byte offset in the frame
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Print JSON, one object in each line; with -v also offsets and payloads
    #[arg(long)]
    json: bool,
    /// Print only the last line, which says what the capture has; with filters, also how many packets they
    /// take. With --json, an object with these numbers
    #[arg(long, conflicts_with = "verbose")]
    summary: bool,
    #[command(flatten)]
    select: Select,
}

impl Args {
    pub(crate) fn run(mut self) -> Result<(), Error> {
        check_apart(&self.file, Path::new("-"))?;
        let live = self.file.as_os_str() == "-";
        let named = self.file.clone();
        let mut filter = Filter::from(self.select);
        if filter.needs_findings() {
            // `/dev/stdin` can be opened twice if standard input is a file.
            if live {
                self.file = "/dev/stdin".into();
            }
            find(&self.file, &named, &mut filter)?;
        }
        let mut lines = Lines::new(self.json, self.verbose, filter, live);
        lines.counts_only = self.summary;
        let before = match self.summary {
            true => "the frames before it are counted",
            false => "the frames before it are shown",
        };
        let end = match read(&self.file, &mut lines) {
            Err(Failure::Write(e)) => return written(Err(e)),
            // A file of which no frame was read has nothing to count.
            Err(Failure::Read(e)) if e.frame == 0 => return Err(failed(&named, &e, before)),
            Err(Failure::Read(e)) => Err(failed(&named, &e, before)),
            Ok(()) => Ok(()),
        };
        let text = lines.summary();
        if self.json && self.summary {
            let is_filtered = lines.filter.is_some();
            print_json(&lines.decoder.summary().numbers(is_filtered))?;
        } else if self.json {
            // Standard output has only objects. If standard error is closed, the summary is lost.
            written(lines.flush())?;
            let _ = writeln!(io::stderr(), "{text}");
        } else {
            written(writeln!(lines.out.0, "{text}").and_then(|()| lines.flush()))?;
        }
        end
    }
}

/// Lets the analyzer read the capture, and gives its findings to the filter. The analyzer stops at
/// the first read error.
fn find(file: &Path, named: &Path, filter: &mut Filter) -> Result<(), Error> {
    if fs::metadata(file).is_ok_and(|about| !about.is_file()) {
        let name = if named.as_os_str() == "-" { "standard input" } else { "it" };
        return Err(Error::new(
            format_args!(
                "--only with a finding of rxe check reads the capture twice, and {name} is no file"
            ),
            "save the capture to a file first",
        ));
    }
    let read = |checker: &mut Checker| {
        checker.collect_frames_of(filter.kinds());
        // The same error occurs again when the packets are shown.
        let _ = read_all(file, |record, frame, since| {
            checker.add(record.number, record.interface, since, frame);
        });
    };
    let mut checker = Checker::default();
    read(&mut checker);
    let report = checker.finish().once_more(read);
    filter.take_findings(report);
    Ok(())
}

fn read(file: &Path, lines: &mut Lines) -> Result<(), Failure> {
    let printed = if lines.counts_only { Printed::AtTheEnd } else { Printed::Meanwhile };
    let mut reader = open(file, printed)?;
    while let Some(record) = reader.next()? {
        lines.frame(&record).map_err(Failure::Write)?;
    }
    Ok(())
}

/// Prints packets, one per line, as frames are read.
pub(super) struct Lines {
    json: bool,
    verbose: bool,
    /// Whether packets are counted and not printed.
    counts_only: bool,
    filter: Filter,
    out: Output,
    text: Text,
    start: Start,
    decoder: Decoder,
}

impl Lines {
    /// Creates the printer. If `live`, each line is flushed immediately.
    pub(super) fn new(json: bool, verbose: bool, filter: Filter, live: bool) -> Self {
        Self {
            json,
            verbose,
            counts_only: false,
            filter,
            out: Output::new(live),
            text: Text::new(verbose),
            start: Start::default(),
            decoder: Decoder::default(),
        }
    }

    /// Prints the packets of the next frame.
    pub(super) fn frame(&mut self, record: &Record<'_>) -> io::Result<()> {
        let Self { json, verbose, counts_only, filter, out, text, start, decoder } = self;
        let since = start.since(record);
        decoder.add(record, &frame::decode(record), since, |summary, shown| {
            if !filter.takes(shown) {
                return Ok(());
            }
            summary.taken();
            if *counts_only {
                return Ok(());
            }
            out.line(|out| match *json {
                true => write_json(out, shown, *verbose),
                false => text.write(out, shown),
            })
        })
    }

    /// Returns the summary line, without a newline.
    fn summary(&mut self) -> String {
        let taken = if self.counts_only { "taken by the filters" } else { "shown" };
        self.decoder.summary().text(self.filter.is_some().then_some(taken))
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.0.flush()
    }
}

/// Returns the name of a capture in messages.
pub(super) fn named(file: &Path) -> String {
    if file.as_os_str() == "-" { "standard input".into() } else { file.display().to_string() }
}

/// Returns the error for a capture that cannot be read, or not to its end. `before` says what
/// happens to the frames before that place.
pub(super) fn failed(file: &Path, e: &CaptureError, before: &str) -> Error {
    report::failed(&named(file), e, before).into()
}

/// The reason why not all packets were shown.
enum Failure {
    Read(CaptureError),
    Write(io::Error),
}

impl From<CaptureError> for Failure {
    fn from(e: CaptureError) -> Self {
        Self::Read(e)
    }
}

/// Converts a write error. A closed pipe is not an error (`rxe decode FILE | head`).
pub(super) fn written(result: io::Result<()>) -> Result<(), Error> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new("cannot write the output", e))
        }
        _ => Ok(()),
    }
}

/// Standard output, and whether to flush it after each line.
struct Output(BufWriter<StdoutLock<'static>>, bool);

impl Output {
    fn new(live: bool) -> Self {
        let out = io::stdout().lock();
        let at_once = live || out.is_terminal();
        Self(BufWriter::with_capacity(64 << 10, out), at_once)
    }

    fn line(
        &mut self,
        write: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>,
    ) -> io::Result<()> {
        write(&mut self.0).and_then(|()| if self.1 { self.0.flush() } else { Ok(()) })
    }
}
