//! The log of a run as text: packets and their fate in the network, engine events, and completions.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use rxe_core::types::Time;
use rxe_core::wire::{Packet, Syndrome};

/// The log of a run. If recording is off, the log only knows which packets were sent.
#[derive(Debug, Default)]
pub struct Ladder {
    on: bool,
    used: bool,
    lines: Vec<Line>,
    /// The indices of the lines that record sent packets, by the hash of the packet.
    sent: HashMap<u64, Vec<usize>>,
}

#[derive(Debug)]
struct Line {
    at: Time,
    text: String,
    /// For a packet: when its copies arrived.
    arrivals: Option<Vec<Time>>,
}

impl Ladder {
    /// Creates a log. `on`: it records lines; `used`: it must be told of packets.
    pub fn new(on: bool, used: bool) -> Self {
        Self { on, used, ..Self::default() }
    }

    /// Returns whether the log must be told of packets.
    pub fn is_used(&self) -> bool {
        self.used
    }

    /// Records a packet that leaves.
    pub fn sent(&mut self, at: Time, from: usize, to: usize, bytes: &[u8]) {
        let lines = self.sent.entry(fingerprint(bytes)).or_default();
        if self.on {
            lines.push(self.lines.len());
            let text = format!("{} > {}  {}", name(from), name(to), describe(bytes));
            self.lines.push(Line { at, text, arrivals: Some(Vec::new()) });
        }
    }

    /// Records a packet that arrives.
    /// Returns whether a packet with these contents was sent. Bits that the ICRC does not cover may
    /// differ.
    pub fn arrived(&mut self, at: Time, to: usize, bytes: &[u8]) -> bool {
        let Some(lines) = self.sent.get(&fingerprint(bytes)) else {
            let text = format!("    > {}  damaged: {}", name(to), describe(bytes));
            self.note(at, text);
            return false;
        };
        if self.on {
            let has_not =
                |&&line: &&usize| self.lines[line].arrivals.as_ref().is_some_and(Vec::is_empty);
            let line = lines.iter().find(has_not).or(lines.last());
            if let Some(arrivals) = line.and_then(|&line| self.lines[line].arrivals.as_mut()) {
                arrivals.push(at);
            }
        }
        true
    }

    /// Records a line of text.
    pub fn note(&mut self, at: Time, text: impl Into<String>) {
        if self.on {
            self.lines.push(Line { at, text: text.into(), arrivals: None });
        }
    }

    /// Returns whether the log records lines.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Returns the whole log as text. Times are in microseconds.
    pub fn print(&self) -> String {
        let mut out = String::new();
        for line in &self.lines {
            let fate = match line.arrivals.as_deref() {
                None => String::new(),
                Some([]) => "  lost or damaged".into(),
                Some([at]) if *at == line.at => String::new(),
                Some([at]) => format!("  arrives {}", micros(*at)),
                Some(all) => {
                    let all: Vec<_> = all.iter().map(|at| micros(*at)).collect();
                    format!("  arrives {}", all.join(" and "))
                }
            };
            let _ = writeln!(out, "{:>12}  {}{fate}", micros(line.at), line.text);
        }
        out
    }
}

/// Returns the letter of a side.
pub fn name(side: usize) -> char {
    ['A', 'B', 'C'].get(side).copied().unwrap_or('?')
}

fn micros(at: Time) -> String {
    format!("{}.{:03}", at.as_nanos() / 1000, at.as_nanos() % 1000)
}

/// Returns a hash of everything that the ICRC covers.
fn fingerprint(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let (head, rest) = bytes.split_at(bytes.len().min(4));
    (head, rest.get(1..)).hash(&mut hasher);
    hasher.finish()
}

/// Returns a short description of a packet.
fn describe(bytes: &[u8]) -> String {
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(why) => return format!("{} bytes, {}", bytes.len(), why.name()),
    };
    let mut text = format!(
        "{:<28} psn {} qp {} len {}",
        packet.opcode().name(),
        packet.psn(),
        packet.dest_qp(),
        packet.payload().len()
    );
    if packet.ack_req() {
        text += " ack?";
    }
    if let Some(srq) = packet.xrc_srq() {
        let _ = write!(text, " srq {srq}");
    }
    if let Some(deth) = packet.deth() {
        let _ = write!(text, " from {} qkey {:#x}", deth.src_qp, deth.qkey.value());
    }
    if let Some(key) = packet.ieth() {
        let _ = write!(text, " invalidates {key:#x}");
    }
    if let Some(reth) = packet.reth() {
        let _ = write!(text, " va {:#x} rkey {} dma {}", reth.va, reth.rkey, reth.dma_len);
    }
    match packet.aeth().map(|aeth| (aeth.syndrome, aeth.msn)) {
        Some((Syndrome::Ack { .. }, msn)) => {
            let _ = write!(text, " msn {msn}");
        }
        Some((other, msn)) => {
            let _ = write!(text, " {other:?} msn {msn}");
        }
        None => {}
    }
    text
}
