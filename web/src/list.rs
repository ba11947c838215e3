//! The list of packets: filters, pages of rows, and all fields of one packet.

use rxe_lab::frame::Content;
use rxe_lab::ladder::Kind;
use rxe_lab::packets::{Filter, Only, Shown, field_text, number, opcode, psns};
use rxe_lab::words;
use serde::{Deserialize, Serialize};

use crate::loaded::{Loaded, Row};

/// The most rows in one answer.
const MAX_ROWS: usize = 1000;

/// The filters as they were written. Each may have several values, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filters {
    qp: String,
    opcode: String,
    addr: String,
    psn: String,
    vni: String,
    session: String,
    only: String,
}

/// A filter that has a mistake.
#[derive(Debug, Serialize)]
pub(crate) struct WrongFilter {
    /// The name of the filter.
    field: &'static str,
    error: String,
}

/// The list of packets that the filters accept.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// The filters of `taken`.
    filters: Option<Filters>,
    /// The indices of the accepted rows.
    taken: Vec<u32>,
}

/// A part of the list.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    /// The number of packets that the filters accept.
    total: usize,
    rows: Vec<Line>,
}

/// A packet of the list.
#[derive(Debug, Serialize)]
struct Line {
    /// The index of the packet among all packets.
    index: u32,
    frame: u64,
    /// The place of the packet in its frame, if the frame has several.
    segment: Option<usize>,
    seconds: f64,
    source: String,
    destination: String,
    qp: Option<u32>,
    psn: Option<u32>,
    opcode: String,
    info: String,
    kind: &'static str,
}

/// All fields of a packet.
#[derive(Debug, Serialize)]
pub(crate) struct Fields {
    bytes: String,
    captured: usize,
    length: usize,
    comments: Vec<String>,
    layers: Vec<LayerOf>,
}

#[derive(Debug, Serialize)]
struct LayerOf {
    name: &'static str,
    fields: Vec<FieldOf>,
}

#[derive(Debug, Serialize)]
struct FieldOf {
    name: &'static str,
    /// The first byte in the frame, and the number of bytes that the field touches.
    at: usize,
    length: usize,
    text: String,
}

impl List {
    /// Returns a part of the list of packets that the filters accept.
    pub(crate) fn page(
        &mut self,
        of: &Loaded,
        filters: Filters,
        from: usize,
        count: usize,
    ) -> Result<Page, WrongFilter> {
        if self.filters.as_ref() != Some(&filters) {
            let mut filter = filters.read()?;
            if filter.needs_findings() {
                let kinds: Vec<_> = filter.kinds().collect();
                filter.take_findings(of.report_on(&kinds));
            }
            let takes = |row: Row| of.with(row, |shown| filter.takes(shown)).unwrap_or(false);
            // Without filters, no packet is decoded.
            let is_taken = |row: Row| !filter.is_some() || takes(row);
            let all = (0..).zip(&of.rows);
            self.taken = all.filter(|(_, row)| is_taken(**row)).map(|(index, _)| index).collect();
            self.filters = Some(filters);
        }
        let rows = self.taken.iter().skip(from).take(count.min(MAX_ROWS));
        let line = |index: &u32| {
            let row = *of.rows.get(*index as usize)?;
            of.with(row, |shown| Line::of(*index, shown))
        };
        Ok(Page { total: self.taken.len(), rows: rows.filter_map(line).collect() })
    }
}

impl Filters {
    fn read(&self) -> Result<Filter, WrongFilter> {
        let address = |text: &str| {
            text.parse().map_err(|_| "an address is expected, as in 10.0.0.1 or fd00::1".to_owned())
        };
        let only = |text: &str| {
            let found = Only::all().into_iter().find(|(name, ..)| *name == text);
            found.map(|(.., only)| only).ok_or_else(|| format!("nothing is called {text}"))
        };
        Ok(Filter {
            qps: all("qp", &self.qp, number)?,
            opcodes: all("opcode", &self.opcode, opcode)?,
            addresses: all("addr", &self.addr, address)?,
            psns: all("psn", &self.psn, psns)?.pop(),
            networks: all("vni", &self.vni, number)?,
            sessions: all("session", &self.session, number)?,
            only: all("only", &self.only, only)?,
            ..Filter::default()
        })
    }
}

/// Reads the values of a filter.
fn all<T>(
    field: &'static str,
    text: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, WrongFilter> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| read(word).map_err(|error| WrongFilter { field, error })).collect()
}

impl Line {
    fn of(index: u32, shown: &Shown<'_>) -> Self {
        let mut info = String::new();
        match (shown.packet, &shown.frame.content) {
            (Some(packet), _) => words::describe(&mut info, "", shown.frame, packet),
            (None, Content::Malformed(why)) => info.push_str(why),
            (None, _) => {}
        }
        let mark = shown.mark.map(|mark| mark.to_string());
        for text in mark.into_iter().chain(shown.record.comments.iter().cloned()) {
            if !info.is_empty() {
                info.push_str(", ");
            }
            info.push_str(&text);
        }
        let [source, destination] = match shown.frame.ends {
            Some((source, destination)) => [source.to_string(), destination.to_string()],
            None => ["?".to_owned(), "?".to_owned()],
        };
        Self {
            index,
            frame: shown.record.number,
            segment: shown.packet.and_then(|it| it.segment).map(|(at, _)| at),
            seconds: shown.since.as_secs_f64(),
            source,
            destination,
            qp: shown.packet.map(|it| it.bth.dest_qp.value()),
            psn: shown.packet.map(|it| it.bth.psn.value()),
            opcode: shown.packet.map_or_else(String::new, |it| it.bth.opcode.to_string()),
            info,
            // The page colours packets as in the ladder.
            kind: shown.packet.map_or(Kind::Bad, |packet| Kind::of(packet, shown.mark)).name(),
        }
    }
}

/// Returns all fields of the packet with this index among all packets.
pub(crate) fn fields(of: &Loaded, index: usize) -> Option<Fields> {
    of.with(*of.rows.get(index)?, |shown| {
        let record = shown.record;
        let transport = shown.packet.map(|packet| &packet.layers).into_iter().flatten();
        let layers = shown.frame.layers.iter().chain(transport).map(|layer| LayerOf {
            name: layer.header.name,
            fields: (layer.fields(record.bytes))
                .map(|(field, value)| FieldOf {
                    name: field.name,
                    at: layer.at + field.byte,
                    length: match field.width {
                        0 => layer.len.saturating_sub(field.byte),
                        width => (field.bit + width).div_ceil(8),
                    },
                    text: field_text(shown, layer, field, value),
                })
                .collect(),
        });
        Fields {
            bytes: record.bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            captured: record.bytes.len(),
            length: record.original_len,
            comments: record.comments.clone(),
            layers: layers.collect(),
        }
    })
}
