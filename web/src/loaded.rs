//! A capture that was read: its frames, what they are, and the analyst's report.

use std::convert::Infallible;
use std::io::Read;

use rxe_lab::capture::{Reader, Start};
use rxe_lab::check::{Kind, Report};
use rxe_lab::explain::Lang;
use rxe_lab::frame::{self, Content};
use rxe_lab::ladder::{Ladder, Ladders};
use rxe_lab::packets::{Decoder, Shown};
use rxe_lab::report::{self, Checked, Checking};
use rxe_lab::track::Mark;
use serde::Serialize;

use crate::store::Store;

/// A capture that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) store: Store,
    /// The packets, in the order of the file.
    pub(crate) rows: Vec<Row>,
    pub(crate) checked: Checked,
    /// What the capture has, in one line.
    summary: String,
    pub(crate) ladders: Vec<Ladder>,
    ladders_left_out: u64,
}

/// A packet, or a malformed frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The index of the frame.
    pub(crate) frame: u32,
    /// The index of the packet in the frame.
    pub(crate) packet: u16,
    pub(crate) mark: Option<Mark>,
}

/// What the page shows of a capture first.
#[derive(Debug, Serialize)]
pub(crate) struct Overview<'a> {
    name: &'a str,
    summary: &'a str,
    error: Option<&'a str>,
    frames: u64,
    packets: usize,
    /// How often the analyst found something.
    findings: u64,
    ladders: Vec<LadderName>,
    ladders_left_out: u64,
}

#[derive(Debug, Serialize)]
struct LadderName {
    left: String,
    right: String,
    rows: usize,
}

impl Loaded {
    /// Reads a capture. With `every_packet`, each packet has a row in the ladders.
    /// A capture that is damaged is read up to that place.
    pub(crate) fn read(name: &str, input: Box<dyn Read + '_>, every_packet: bool) -> Self {
        let mut store = Store::default();
        let mut rows = Vec::new();
        let mut decoder = Decoder::default();
        let mut checking = Checking::default();
        let mut ladders =
            if every_packet { Ladders::of_every_packet() } else { Ladders::default() };
        let mut full = None;
        let read = (|| {
            let mut reader = Reader::new(input)?;
            let mut start = Start::default();
            while let Some(record) = reader.next()? {
                if let Err(why) = store.add(&record) {
                    full = Some(format!("{name}: {why}"));
                    break;
                }
                let since = start.since(&record);
                let decoded = frame::decode(&record);
                checking.add(&record, &decoded, since);
                let (number, interface) = (record.number, record.interface);
                ladders.add(number, interface, since, &decoded, &record.comments, &[]);
                let frame = u32::try_from(number - 1).unwrap_or(u32::MAX);
                let mut packet = 0;
                let Ok(()) = decoder.add(&record, &decoded, since, |_, shown| {
                    rows.push(Row { frame, packet, mark: shown.mark });
                    packet = packet.saturating_add(1);
                    Ok::<_, Infallible>(())
                });
            }
            Ok(())
        })();
        let error =
            read.err().map(|e| report::failed(name, &e, "the frames before it are checked"));
        let mut checked = checking.finish(name.to_owned(), full.or(error));
        checked.report = checked.report.once_more(|checker| store.give(checker));
        let summary = decoder.summary().text(None);
        let ladders_left_out = ladders.left_out;
        Self { store, rows, checked, summary, ladders: ladders.finish(), ladders_left_out }
    }

    /// Returns a report whose frames are those of findings of these kinds.
    pub(crate) fn report_on(&self, kinds: &[Kind]) -> Report {
        let mut checker = self.checked.report.checker();
        checker.collect_frames_of(kinds.iter().copied());
        self.store.give(&mut checker);
        checker.finish()
    }

    /// Returns the index of the first packet of a frame or a later one. Frames count from 1.
    pub(crate) fn place(&self, frame: u64) -> usize {
        self.rows.partition_point(|row| u64::from(row.frame) + 1 < frame)
    }

    pub(crate) fn overview(&self) -> Overview<'_> {
        let ladder = |ladder: &Ladder| {
            let [left, right] = ladder.names();
            LadderName { left, right, rows: ladder.rows.len() }
        };
        Overview {
            name: &self.checked.name,
            summary: &self.summary,
            error: self.checked.error.as_deref(),
            frames: self.checked.frames,
            packets: self.rows.len(),
            findings: self.checked.report.kinds.iter().map(|tally| tally.count).sum(),
            ladders: self.ladders.iter().map(ladder).collect(),
            ladders_left_out: self.ladders_left_out,
        }
    }

    /// Returns the report exactly as `rxe check --json` prints it for this file.
    pub(crate) fn findings(&self, lang: Lang) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(&[self.checked.to_json(lang)]).unwrap_or_default();
        json.push(b'\n');
        json
    }

    /// Decodes the packet of a row again, and calls `take` with it.
    pub(crate) fn with<T>(&self, row: Row, take: impl FnOnce(&Shown<'_>) -> T) -> Option<T> {
        let index = row.frame as usize;
        let record = self.store.record(index)?;
        let frame = frame::decode(&record);
        let packet = match &frame.content {
            Content::Rdma(packets) => Some(packets.get(usize::from(row.packet))?),
            _ => None,
        };
        let since = self.store.since(index);
        Some(take(&Shown { record: &record, frame: &frame, packet, mark: row.mark, since }))
    }
}
