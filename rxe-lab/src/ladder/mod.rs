//! Draws a conversation as a sequence diagram, in capture order.
//!
//! Packets are folded in two steps, so that long conversations stay legible. A *row* is a run of
//! packets of one operation in one direction with consecutive PSNs. Rows that repeat, such as a
//! message and its acknowledgement, become one row with a count. Lost, retransmitted and refused
//! packets are never folded with others; one packet that is refused and sent again many times is a
//! repetition too. A packet that was captured at several points is drawn once.
//!
//! Memory is bounded by [`MAX_PAIRS`] pairs of hosts and [`MAX_ROWS`] rows in all diagrams together.

mod copies;
mod fold;
mod html;
mod label;
mod split;
mod svg;
#[cfg(test)]
mod tests;
mod text;

use std::time::Duration;

use rxe_core::wire::{OpKind, Syndrome};

use crate::check::Checker;
use crate::frame::{Address, Content, Frame, Icrc, Transport};
use crate::point::Point;
use crate::track::{Mark, Tracker};
use crate::words;
use copies::Copies;
pub use html::html;
use label::{Label, Opcodes};
pub use svg::svg;
pub use text::{Characters, text};

/// The most pairs of hosts, each of which has a diagram.
pub const MAX_PAIRS: usize = 1000;

/// The most rows of all diagrams together.
pub const MAX_ROWS: usize = 200_000;

/// The diagrams of a capture: one per pair of hosts, or per connection of one address.
#[derive(Debug, Default)]
pub struct Ladders {
    tracker: Tracker,
    copies: Copies,
    /// Learns which queue pairs of one address are connected to each other.
    connections: Checker,
    pairs: Vec<Ladder>,
    rows: usize,
    /// Whether each packet has a row of its own. Otherwise runs and repetitions are folded.
    every_packet: bool,
    /// The number of packets in no diagram, because there are too many rows or pairs.
    pub left_out: u64,
}

/// The diagram of two hosts, or of two connected queue pairs of one address.
#[derive(Debug)]
pub struct Ladder {
    /// The address on the left, which sent the first packet.
    pub left: Address,
    /// The address on the right.
    pub right: Address,
    /// The queue pairs on the left and on the right, if both have the same address.
    pub qps: Option<(u32, u32)>,
    /// The rows, in capture order.
    pub rows: Vec<Row>,
}

/// A row of a diagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The time of the first packet, since the first frame of the capture.
    pub at: Duration,
    /// The time of the last packet, since the first frame of the capture.
    pub until: Duration,
    /// The numbers of the first and the last frame.
    pub frames: (u64, u64),
    /// The number of packets.
    pub packets: u64,
    /// The payload of all packets, in bytes.
    pub bytes: u64,
    /// Whether the packets go to the right; `None` for repetitions in both directions.
    pub to_right: Option<bool>,
    /// The kind of row, which decides how it is drawn.
    pub kind: Kind,
    /// The text of the row. A run names its opcodes: `SEND_FIRST … SEND_LAST`.
    label: Label,
    /// How often the rows occur that this row stands for; 1 if it is not a repetition.
    pub times: u64,
}

/// The kind of a row, which decides how it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A request.
    Request,
    /// An acknowledgement or another response.
    Response,
    /// A CM message or a congestion notification.
    Control,
    /// A retransmission or a duplicate acknowledgement.
    Again,
    /// A NAK or an RNR NAK.
    Nak,
    /// Packets that were not captured.
    Missing,
    /// A packet that the receiver drops because it is damaged or malformed.
    Bad,
    /// A comment of the capture file on the packet above.
    Comment,
}

impl Kind {
    /// Returns the kind of a packet of which earlier packets show `mark`.
    pub fn of(packet: &Transport<'_>, mark: Option<Mark>) -> Self {
        match (packet.info, mark) {
            _ if packet.icrc == Icrc::Wrong || packet.wrong.is_some() => Self::Bad,
            _ if packet.is_nak() => Self::Nak,
            (_, Some(Mark::Retransmitted | Mark::DuplicateAck)) => Self::Again,
            (Some(info), _) if info.kind == OpKind::Cnp || packet.cm_message().is_some() => {
                Self::Control
            }
            (Some(info), _) if info.is_response() => Self::Response,
            _ => Self::Request,
        }
    }

    /// Returns the name of the kind in style sheets.
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Response => "response",
            Self::Control => "control",
            Self::Again => "again",
            Self::Nak => "nak",
            Self::Missing => "missing",
            Self::Bad => "bad",
            Self::Comment => "comment",
        }
    }
}

impl Ladders {
    /// Creates diagrams in which each packet has a row of its own.
    pub fn of_every_packet() -> Self {
        Self { every_packet: true, ..Self::default() }
    }

    /// Adds a frame and the comments that the capture file attaches to it.
    /// Only packets to the queue pairs in `qps` are drawn; all packets if `qps` is empty.
    pub fn add(
        &mut self,
        number: u64,
        interface: u32,
        since: Duration,
        frame: &Frame<'_>,
        comments: &[String],
        qps: &[u32],
    ) {
        let (Content::Rdma(packets), Some(ends)) = (&frame.content, frame.ends) else { return };
        if ends.0 == ends.1 {
            self.connections.add(number, interface, since, frame);
        }
        for packet in packets {
            let is_last = std::ptr::eq(packet, &raw const packets[packets.len() - 1]);
            if self.copies.is_copy(Point::of(interface, frame), ends, packet) {
                // The copy at the receiver carries the comments about what became of the packet.
                if is_last {
                    let psn = packet.bth.psn;
                    let comments: Vec<_> =
                        comments.iter().map(|text| format!("PSN {psn}: {text}")).collect();
                    self.comment(number, since, ends, packet, &comments, qps);
                }
                continue;
            }
            let mark = self.tracker.observe(interface, frame, packet);
            let dest_qp = packet.bth.dest_qp.value();
            if !qps.is_empty() && !qps.contains(&dest_qp) {
                continue;
            }
            let Some(at) = self.pair(ends) else {
                self.left_out += 1;
                continue;
            };
            if self.rows >= MAX_ROWS {
                self.left_out += 1;
                continue;
            }
            let ladder = &mut self.pairs[at];
            let before = ladder.rows.len();
            let to_right = ladder.left == ends.0;
            if let Some(Mark::Gap(count)) = mark {
                ladder.rows.push(Row::missing(number, since, to_right, dest_qp, count));
            }
            let row = Row::of(number, since, to_right, packet, mark);
            let last = ladder.rows.last_mut().filter(|_| !self.every_packet);
            if !last.is_some_and(|last| last.extend(&row)) {
                ladder.rows.push(row);
            }
            self.rows += ladder.rows.len() - before;
            // The comments of a frame of several packets follow the last packet.
            if is_last {
                self.comment(number, since, ends, packet, comments, qps);
            }
        }
    }

    /// Adds the comments of the capture file on a packet as rows.
    fn comment(
        &mut self,
        number: u64,
        since: Duration,
        ends: (Address, Address),
        packet: &Transport<'_>,
        comments: &[String],
        qps: &[u32],
    ) {
        let qp = packet.bth.dest_qp.value();
        if comments.is_empty() || !(qps.is_empty() || qps.contains(&qp)) || self.rows >= MAX_ROWS {
            return;
        }
        let Some(at) = self.pair(ends) else { return };
        let ladder = &mut self.pairs[at];
        let to_right = ladder.left == ends.0;
        let rows = comments.iter().map(|text| Row::comment(number, since, to_right, qp, text));
        ladder.rows.extend(rows);
        self.rows += comments.len();
    }

    /// Returns the diagrams, with repetitions folded.
    pub fn finish(self) -> Vec<Ladder> {
        let Self { connections, pairs, every_packet, .. } = self;
        let fold = |ladder: Ladder| match every_packet {
            true => ladder,
            false => Ladder { rows: fold::repetitions(ladder.rows), ..ladder },
        };
        pairs
            .into_iter()
            .flat_map(|ladder| split::connections(ladder, &connections))
            .map(fold)
            .collect()
    }

    /// Returns the index of the diagram of two hosts; `None` if there are too many.
    fn pair(&mut self, (src, dst): (Address, Address)) -> Option<usize> {
        let is_it = |l: &Ladder| (l.left, l.right) == (src, dst) || (l.left, l.right) == (dst, src);
        // Search from the end: there are few pairs, and the last is the likeliest.
        if let Some(at) = self.pairs.iter().rposition(is_it) {
            return Some(at);
        }
        if self.pairs.len() == MAX_PAIRS {
            return None;
        }
        self.pairs.push(Ladder { left: src, right: dst, qps: None, rows: Vec::new() });
        Some(self.pairs.len() - 1)
    }
}

impl Ladder {
    /// Returns the headings of the two lifelines.
    pub fn names(&self) -> [String; 2] {
        let Some((left, right)) = self.qps else {
            return [self.left, self.right].map(|address| address.to_string());
        };
        [(self.left, left), (self.right, right)]
            .map(|(address, qp)| format!("{address} QP 0x{qp:06x}"))
    }
}

impl Row {
    fn of(
        number: u64,
        since: Duration,
        to_right: bool,
        packet: &Transport<'_>,
        mark: Option<Mark>,
    ) -> Self {
        let psn = packet.bth.psn;
        Self {
            at: since,
            until: since,
            frames: (number, number),
            packets: 1,
            bytes: packet.payload_len as u64,
            to_right: Some(to_right),
            kind: Kind::of(packet, mark),
            label: Label::Packets {
                qp: packet.bth.dest_qp.value(),
                kind: packet.info.map(|info| info.kind),
                opcodes: Opcodes::of(packet.bth.opcode),
                psns: (psn, psn),
                words: said(packet),
                mark: mark.filter(|mark| !matches!(mark, Mark::Gap(_))),
            },
            times: 1,
        }
    }

    fn missing(number: u64, at: Duration, to_right: bool, qp: u32, count: u32) -> Self {
        Self::beside(number, at, to_right, Kind::Missing, Label::Missing { qp, count })
    }

    fn comment(number: u64, at: Duration, to_right: bool, qp: u32, text: &str) -> Self {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self::beside(number, at, to_right, Kind::Comment, Label::Comment { qp, text })
    }

    /// Creates a row that stands for no packet.
    fn beside(number: u64, at: Duration, to_right: bool, kind: Kind, label: Label) -> Self {
        Self {
            at,
            until: at,
            frames: (number, number),
            packets: 0,
            bytes: 0,
            to_right: Some(to_right),
            kind,
            label,
            times: 1,
        }
    }

    /// Appends a packet to the run if it continues the run. Returns whether it did.
    fn extend(&mut self, next: &Self) -> bool {
        let (
            Label::Packets { qp, kind, opcodes, psns, words, mark },
            Label::Packets {
                qp: next_qp,
                kind: next_kind,
                opcodes: next_opcodes,
                psns: (psn, next_psn),
                words: next_words,
                mark: next_mark,
            },
        ) = (&mut self.label, &next.label)
        else {
            return false;
        };
        let runs = matches!(self.kind, Kind::Request | Kind::Response | Kind::Again)
            && (self.kind, self.to_right) == (next.kind, next.to_right)
            && (*qp, *kind, *mark) == (*next_qp, *next_kind, *next_mark)
            && *psn == psns.1.next();
        if !runs {
            return false;
        }
        opcodes.extend(*next_opcodes);
        psns.1 = *next_psn;
        words.clone_from(next_words);
        self.packets += next.packets;
        self.bytes += next.bytes;
        self.until = next.until;
        self.frames.1 = next.frames.1;
        true
    }
}

/// Describes a packet without opcode, PSN and length.
fn said(packet: &Transport<'_>) -> String {
    let mut list = Vec::new();
    if let Some(aeth) = packet.ext.aeth {
        match aeth.syndrome {
            Syndrome::Ack { credits } => {
                let credits = words::messages_of(credits);
                list.extend(credits.map(|credits| format!("credits {credits}")));
                list.push(format!("MSN {}", aeth.msn));
            }
            other => list.push(words::syndrome(other)),
        }
    }
    if packet.bth.ack_req {
        list.push("AckReq".into());
    }
    if let Some(message) = packet.cm_message() {
        list.push(format!("CM {}", message.name()));
    }
    if let Some(reth) = packet.ext.reth.filter(|_| packet.payload_len == 0) {
        list.push(format!("DMALen {}", reth.dma_len));
    }
    if let Some(why) = packet.wrong {
        list.push(why.name().into());
    }
    if packet.icrc == Icrc::Wrong {
        list.push("ICRC wrong".into());
    }
    list.join(", ")
}
