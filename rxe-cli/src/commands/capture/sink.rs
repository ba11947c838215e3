//! The outputs of a capture: lines, files, and a diagram at the end.

use std::io;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rxe_lab::capture::{Direction, Record, Start};
use rxe_lab::frame;
use rxe_lab::ladder::Ladders;
use rxe_lab::packets::Filter;
use rxe_net::PacketBlock;

use super::file::{Interface, Ring, Writer};
use crate::commands::decode::{Lines, written};
use crate::commands::ladder::print_texts;
use crate::common::{Error, is_unread, print_error};

/// The outputs that the user asked for.
pub(super) struct Wanted {
    pub(super) lines: bool,
    pub(super) file: Option<PathBuf>,
    pub(super) ring: Option<Ring>,
    pub(super) ladder: bool,
    pub(super) count: Option<u64>,
    /// Whether to print notices to standard error.
    pub(super) notices: bool,
}

/// The outputs of a capture.
pub(super) struct Sink {
    lines: Option<Lines>,
    file: Option<Writer>,
    ladders: Option<Ladders>,
    count: Option<u64>,
    notices: bool,
    interfaces: Vec<Interface>,
    packets: u64,
    start: Start,
    began: Instant,
    /// Whether the reader of the output is gone, which ends the capture.
    unread: bool,
}

impl Sink {
    pub(super) fn new(wanted: Wanted) -> Result<Self, Error> {
        let Wanted { lines, file, ring, ladder, count, notices } = wanted;
        Ok(Self {
            lines: lines.then(|| Lines::new(false, false, Filter::default(), false)),
            file: file.map(|file| Writer::open(&file, ring)).transpose()?,
            ladders: ladder.then(Ladders::default),
            count,
            notices,
            interfaces: Vec::new(),
            packets: 0,
            start: Start::default(),
            began: Instant::now(),
            unread: false,
        })
    }

    /// Adds an interface, and returns its number.
    pub(super) fn add_interface(&mut self, name: &str, description: String) -> Result<u32, Error> {
        let interface = Interface { name: name.into(), description, dropped: 0 };
        let added = self.file.as_mut().map_or(Ok(()), |file| file.add_interface(&interface));
        self.check(added)?;
        self.interfaces.push(interface);
        Ok(u32::try_from(self.interfaces.len() - 1).unwrap_or(u32::MAX))
    }

    /// Prints a notice, if notices are wanted.
    pub(super) fn notice(&self, text: &str) {
        if self.notices {
            print_error(&text);
        }
    }

    /// Counts `packets` of an interface as missing.
    pub(super) fn dropped(&mut self, interface: u32, packets: u64) {
        if let Some(interface) = self.interfaces.get_mut(interface as usize) {
            interface.dropped += packets;
        }
    }

    /// Returns whether no more packets are wanted.
    pub(super) fn is_full(&self) -> bool {
        self.unread || self.count.is_some_and(|count| self.packets >= count)
    }

    /// Returns whether any device is or was captured.
    pub(super) fn has_device(&self) -> bool {
        !self.interfaces.is_empty()
    }

    /// Returns the number of the next packet.
    pub(super) fn next(&self) -> u64 {
        self.packets + 1
    }

    /// Writes a packet to all outputs, unless no more are wanted.
    pub(super) fn packet(&mut self, record: &Record<'_>) -> Result<(), Error> {
        if self.is_full() {
            return Ok(());
        }
        self.packets += 1;
        let since = self.start.since(record);
        if let Some(lines) = &mut self.lines {
            let printed = lines.frame(record);
            self.check(printed)?;
        }
        if let Some(ladders) = &mut self.ladders {
            let frame = frame::decode(record);
            let Record { number, interface, ref comments, .. } = *record;
            ladders.add(number, interface, since, &frame, comments, &[]);
        }
        if let Some(file) = &mut self.file {
            let direction = match record.direction {
                Some(Direction::Outbound) => rxe_net::Direction::Outbound,
                _ => rxe_net::Direction::Inbound,
            };
            let at = record.at.unwrap_or_default();
            let (interface, comments) = (record.interface, &record.comments[..]);
            let block = PacketBlock { at, interface, direction, frame: record.bytes, comments };
            let wrote = file.write(&block, &self.interfaces);
            self.check(wrote)?;
        }
        Ok(())
    }

    /// Flushes the outputs when no more packets are available for the moment. Ends the capture if
    /// nothing reads the output any more.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.unread |= match (&self.lines, &self.file) {
            (Some(_), _) => is_unread(io::stdout()),
            (None, Some(file)) => is_unread(file.file()),
            (None, None) => false,
        };
        let lines = self.lines.as_mut().map_or(Ok(()), Lines::flush);
        let file = self.file.as_mut().map_or(Ok(()), Writer::flush);
        self.check(lines.and(file))
    }

    /// Returns a summary of the capture in one line.
    pub(super) fn summary(&self) -> String {
        let count = |n: u64, what: &str| match n {
            1 => format!("1 {what}"),
            n => format!("{n} {what}s"),
        };
        let dropped: u64 = self.interfaces.iter().map(|interface| interface.dropped).sum();
        let devices = count(self.interfaces.len() as u64, "device");
        let (packets, time) = (count(self.packets, "packet"), self.began.elapsed().as_secs_f64());
        let dropped = match dropped {
            0 => "none dropped".into(),
            n => format!("{n} dropped (too fast for the capture)"),
        };
        format!("{packets} of {devices} in {time:.1} s, {dropped}")
    }

    /// Completes all outputs.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        self.flush()?;
        if let Some(file) = self.file.take().filter(|_| !self.unread) {
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let result = file.finish(at, &self.interfaces);
            written(result)?;
        }
        let Some(ladders) = self.ladders else { return Ok(()) };
        let left_out = ladders.left_out;
        print_texts(&ladders.finish())?;
        if left_out > 0 {
            print_error(&format!("{left_out} packets are not drawn: there are too many rows"));
        }
        Ok(())
    }

    /// Converts a write error. A closed pipe is not an error, but ends the capture.
    fn check(&mut self, result: io::Result<()>) -> Result<(), Error> {
        match (result, &self.file) {
            (Err(e), _) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.unread = true;
                Ok(())
            }
            (Err(e), Some(file)) => Err(file.failed(&e)),
            (result, _) => written(result),
        }
    }
}
