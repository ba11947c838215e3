//! Generates packets from a scenario: hosts, queue pairs and steps, described in TOML.
//!
//! There are two kinds of steps. Verbs operations (`send`, `write`, `read`, …) are posted to
//! engines of `rxe-core`, one per host, which create the packets. The hosts are joined by a network
//! in virtual time, with the faults of [`rxe_net::FaultRule`]. A `packet` step is built header by
//! header: every field can be set by its name in the specification, and may violate any rule.
//!
//! A scenario gives the same bytes on every platform. docs/en/reference/commands/gen.md describes
//! the format.

mod description;
mod error;
mod faults;
mod field;
mod host;
mod mad;
mod network;
mod packet;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use rxe_core::qp::QpState;
use rxe_net::{Direction, PacketBlock, PcapWriter};

use crate::capture::LinkType;
use crate::check::Kind;
use crate::frame::decode_bytes;
use crate::replay::{Recording, Responder};
pub use error::ScenarioError;

/// Limits on what a scenario may generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most frames.
    pub frames: usize,
    /// The most bytes in all frames together.
    pub bytes: usize,
    /// The most bytes of memory that all hosts register together.
    pub memory: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { frames: 1_000_000, bytes: 1 << 30, memory: 1 << 28 }
    }
}

/// A frame on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFrame {
    /// The time since the Unix epoch.
    pub at: Duration,
    /// The bytes, from the Ethernet header on.
    pub bytes: Vec<u8>,
    /// The requests and receives that completed when the frame arrived, and their status.
    pub comments: Vec<String>,
    /// The faults of the receiving host that hit the frame after it was captured: `lost`,
    /// `duplicated`, `overtaken`, `damaged`, `marked`.
    pub faults: Vec<&'static str>,
}

/// The result of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The frames, in the order of their times.
    pub frames: Vec<GeneratedFrame>,
    /// The findings of `rxe check` that the scenario announces.
    pub findings: Vec<Kind>,
    /// How many work requests completed, by queue pair and name of the status.
    pub completions: BTreeMap<(String, &'static str), u64>,
    /// How many packets the engines dropped or refused, by queue pair and reason.
    /// Without a queue pair the name is `host NAME`. A reason is `dropped: wrong_pkey` or `NAK: no
    /// receive was posted`.
    pub unaccepted: BTreeMap<(String, String), u64>,
    /// The states of the queue pairs after the last step.
    pub states: BTreeMap<String, QpState>,
    /// The queue pairs of the scenario, as responders.
    /// The time of a receive is the earliest time at which a packet can leave its sender and find
    /// it posted.
    pub responders: Vec<Responder>,
    /// What is probably not meant: steps that access more memory than a host has. In the order of
    /// the text.
    pub warnings: Vec<ScenarioError>,
}

impl Generated {
    /// Returns the packets for sending to a live peer, and what is known of the responders.
    pub fn recording(self) -> (Recording, Vec<Responder>) {
        let start = self.frames.first().map_or(Duration::ZERO, |frame| frame.at);
        let mut recording = Recording::default();
        for (number, it) in (1..).zip(&self.frames) {
            let frame = decode_bytes(LinkType::ETHERNET, &it.bytes, it.bytes.len());
            recording.add(number, 0, it.at.saturating_sub(start), &frame);
        }
        let mut responders = self.responders;
        for (at, _) in responders.iter_mut().flat_map(|it| &mut it.receives) {
            *at = at.saturating_sub(start);
        }
        (recording, responders)
    }

    /// Returns the frames as a capture file (pcap, nanoseconds, little endian, Ethernet).
    pub fn to_pcap(&self) -> Vec<u8> {
        const MAGIC: u32 = 0xa1b2_3c4d;
        const ETHERNET: u32 = 1;
        let mut file = Vec::new();
        let words = |file: &mut Vec<u8>, words: &[u32]| {
            file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        };
        words(&mut file, &[MAGIC, 0x0004_0002, 0, 0, 1 << 18, ETHERNET]);
        for frame in &self.frames {
            let seconds = u32::try_from(frame.at.as_secs()).unwrap_or(u32::MAX);
            // The length fits: a frame is an IP packet of at most 64 KiB.
            let len = u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX);
            words(&mut file, &[seconds, frame.at.subsec_nanos(), len, len]);
            file.extend_from_slice(&frame.bytes);
        }
        file
    }

    /// Returns the frames as a capture file with comments (pcapng, native byte order).
    /// The comments say which requests and receives completed when a frame arrived, and with which
    /// status.
    ///
    /// # Errors
    /// Fails if a frame is too long for a capture file.
    pub fn to_pcapng(&self) -> io::Result<Vec<u8>> {
        let mut writer = PcapWriter::new(Vec::new(), "network")?;
        for frame in &self.frames {
            writer.write(&PacketBlock {
                at: frame.at,
                interface: 0,
                direction: Direction::Outbound,
                frame: &frame.bytes,
                comments: &frame.comments,
            })?;
        }
        Ok(writer.into_inner())
    }
}

/// Generates the packets of a scenario in TOML.
///
/// # Errors
/// Fails if the scenario has a mistake or exceeds `bounds`. The error has the line and column.
pub fn generate(text: &str, bounds: Bounds) -> Result<Generated, ScenarioError> {
    let made = description::read(text).and_then(|it| run::run(&it, bounds));
    let (mut made, warnings) = made.map_err(|mistake| mistake.locate(text))?;
    made.warnings = warnings.into_iter().map(|warning| warning.locate(text)).collect();
    Ok(made)
}
