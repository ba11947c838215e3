//! The text of a row, with as much detail as fits.

use std::fmt::Write;

use rxe_core::types::Psn;
use rxe_core::wire::{OpKind, Opcode};

use super::{Characters, Row};
use crate::track::Mark;

/// The text of a row, in parts that can be extended when the run grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Label {
    Packets {
        qp: u32,
        kind: Option<OpKind>,
        opcodes: Opcodes,
        psns: (Psn, Psn),
        /// Further words about the last packet of the run.
        words: String,
        mark: Option<Mark>,
    },
    Missing {
        qp: u32,
        count: u32,
    },
    /// A comment of the capture file on the packet above.
    Comment {
        qp: u32,
        text: String,
    },
    Repeated(Vec<Part>),
}

/// The text of one row of a repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) opcodes: Opcodes,
    /// The first PSN of the first repetition and the last PSN of the last one.
    pub(super) psns: (Psn, Psn),
    /// Further words about a packet that is refused or sent again.
    pub(super) trouble: String,
}

/// The opcodes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opcodes {
    first: Opcode,
    last: Opcode,
    /// Whether all packets have the same opcode.
    is_one: bool,
}

impl Opcodes {
    pub(super) fn of(opcode: Opcode) -> Self {
        Self { first: opcode, last: opcode, is_one: true }
    }

    /// Appends those of the next packets.
    pub(super) fn extend(&mut self, next: Self) {
        self.is_one &= next.is_one && next.first == self.first;
        self.last = next.last;
    }

    /// Returns the opcodes from the first of this run to the last of another.
    pub(super) fn to(mut self, last: Self) -> Self {
        self.extend(last);
        self
    }
}

/// The level of detail of a label. Each level has less than the one before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Detail {
    Everything,
    NoQp,
    /// The opcodes of a run as `SEND_FIRST … LAST`.
    ShortNames,
    /// Runs without bytes and without words about the last packet.
    NoLengths,
    /// `SEND` for a run of several opcodes; repetitions without PSNs.
    Operation,
}

impl Detail {
    const ALL: [Self; 5] =
        [Self::Everything, Self::NoQp, Self::ShortNames, Self::NoLengths, Self::Operation];
}

impl Row {
    /// Returns the text of the row with all details.
    pub fn label(&self) -> String {
        self.words(Detail::Everything)
    }

    /// Returns the text of the row in at most `room` characters.
    /// The text has less detail if necessary, and is cut off if that is not enough.
    pub fn label_within(&self, room: usize) -> String {
        self.label_in(Characters::Unicode, room)
    }

    /// Like [`Self::label_within`], in these characters.
    pub(super) fn label_in(&self, characters: Characters, room: usize) -> String {
        let words = |detail: &Detail| characters.of(self.words(*detail));
        let fits = |label: &String| label.chars().count() <= room;
        let found = Detail::ALL.iter().map(words).find(fits);
        found.unwrap_or_else(|| {
            cut(&words(&Detail::Operation), room, &characters.of("…".to_owned()))
        })
    }

    fn words(&self, detail: Detail) -> String {
        match &self.label {
            Label::Missing { qp, count } => {
                let packets = if *count == 1 { "packet" } else { "packets" };
                match detail {
                    Detail::Everything => format!("{count} {packets} to QP 0x{qp:06x} missing"),
                    _ => format!("{count} {packets} missing"),
                }
            }
            Label::Comment { text, .. } => text.clone(),
            Label::Repeated(parts) => {
                let Self { times, packets, bytes, .. } = self;
                let parts: Vec<_> = parts.iter().map(|part| part.words(detail)).collect();
                format!("{times} × ({packets} packets, {bytes} B): {}", parts.join("; "))
            }
            Label::Packets { qp, opcodes, psns, words, mark, .. } => {
                let is_run = self.packets > 1;
                let mut text = names(*opcodes, detail);
                if is_run {
                    let _ = write!(text, " PSN {}–{} ×{}", psns.0, psns.1, self.packets);
                } else {
                    let _ = write!(text, " PSN {}", psns.0);
                }
                if !is_run || detail < Detail::NoLengths {
                    if self.bytes > 0 {
                        let _ = write!(text, " {} B", self.bytes);
                    }
                    if !words.is_empty() {
                        let _ = write!(text, " {words}");
                    }
                }
                if let Some(mark) = mark {
                    let _ = write!(text, ", {mark}");
                }
                if detail < Detail::NoQp {
                    let _ = write!(text, " (QP 0x{qp:06x})");
                }
                text
            }
        }
    }
}

impl Part {
    fn words(&self, detail: Detail) -> String {
        let mut text = names(self.opcodes, detail);
        let (first, last) = self.psns;
        // Writing to a string does not fail.
        let _ = match detail {
            Detail::Operation => Ok(()),
            _ if first == last => write!(text, " PSN {first}"),
            _ => write!(text, " PSN {first}–{last}"),
        };
        if !self.trouble.is_empty() {
            let _ = write!(text, " {}", self.trouble);
        }
        text
    }
}

/// Names the opcodes of a run.
fn names(Opcodes { first, last, is_one }: Opcodes, detail: Detail) -> String {
    let (first_name, last_name) = (short(first), short(last));
    // `SEND_FIRST` is split into `SEND` and `FIRST`.
    let (operation, _) = first_name.rsplit_once('_').unwrap_or((first_name, ""));
    let rest = last_name.strip_prefix(operation).and_then(|rest| rest.strip_prefix('_'));
    match rest {
        _ if is_one => first_name.into(),
        Some(_) if detail >= Detail::Operation => operation.into(),
        Some(rest) if detail >= Detail::ShortNames => format!("{first_name} … {rest}"),
        _ => format!("{first_name} … {last_name}"),
    }
}

/// Returns the name of an opcode without its service.
fn short(opcode: Opcode) -> &'static str {
    let name = opcode.name();
    ["RC_", "UC_", "UD_", "XRC_"].iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name)
}

/// Cuts a label off so that it has `room` characters with `end`.
fn cut(label: &str, room: usize, end: &str) -> String {
    let left = room.saturating_sub(end.chars().count());
    label.chars().take(left).chain(end.chars()).take(room).collect()
}
