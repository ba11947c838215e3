//! Packets from a description: hosts, queue pairs and steps, in TOML.
//!
//! There are two kinds of steps. Operations in the words of verbs (`send`, `write`, `read`, …) are posted
//! to engines of `rxe-core`, one for each host, which make the packets; the hosts are joined by a network
//! in virtual time, with the faults of [`rxe_net::FaultRule`]. A `packet` is made header by header, every
//! field by its name in the specification, and may break any rule.
//!
//! The same description gives the same bytes on every system. docs/en/reference/commands/gen.md has the format.

mod description;
mod error;
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

use rxe_net::{Direction, FaultRule, PacketBlock, PcapWriter};

use crate::capture::LinkType;
use crate::check::Kind;
use crate::frame::decode_bytes;
use crate::replay::{Recording, Responder};
pub use error::ScenarioError;

/// Reads the faults of a host, in the language of `rxe run --fault`. An error is the column, counted in
/// characters from 1, and what is wrong.
pub type ReadFaults = fn(&str) -> Result<Vec<FaultRule>, (usize, String)>;

/// What a description may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Frames that it may give.
    pub frames: usize,
    /// Bytes that they may have together.
    pub bytes: usize,
    /// Bytes of memory that its hosts may register together.
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
    /// The time since 1970.
    pub at: Duration,
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// What completed at its arrival, and how.
    pub comments: Vec<String>,
}

/// What a description gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The frames, in the order of their times.
    pub frames: Vec<GeneratedFrame>,
    /// What the analyst finds in them, as the description says.
    pub findings: Vec<Kind>,
    /// How many work requests of each queue pair ended with which status, by their names.
    pub completions: BTreeMap<(String, &'static str), u64>,
    /// What engines did not accept, by the name of the queue pair (or `host NAME`, if it was for none):
    /// how many packets they dropped or refused, and why. `dropped: wrong_pkey`, `NAK: no receive was
    /// posted`.
    pub unaccepted: BTreeMap<(String, String), u64>,
    /// Its queue pairs, as responders. The times of their receives are those at which a packet must have
    /// left to find them.
    pub responders: Vec<Responder>,
}

impl Generated {
    /// The packets, to be sent to a live peer, and what is known of those that answered them.
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

    /// The frames as a capture with nanoseconds (pcap, little endian, Ethernet).
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
            // A frame is an IP packet of at most 64 KiB.
            let len = u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX);
            words(&mut file, &[seconds, frame.at.subsec_nanos(), len, len]);
            file.extend_from_slice(&frame.bytes);
        }
        file
    }

    /// The frames as a capture with comments (pcapng, in the byte order of this machine): which requests
    /// and receives have completed when a frame arrived, and how.
    ///
    /// # Errors
    /// A frame is too long for a capture.
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

/// Makes the packets that a description in TOML asks for. `faults` reads the faults of its hosts.
///
/// # Errors
/// The description has a mistake, or asks for more than `bounds`. The error says where.
pub fn generate(
    text: &str,
    faults: ReadFaults,
    bounds: Bounds,
) -> Result<Generated, ScenarioError> {
    let made = description::read(text).and_then(|it| run::run(&it, faults, bounds));
    made.map_err(|mistake| mistake.locate(text))
}
