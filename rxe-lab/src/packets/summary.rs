//! Counts what a capture has.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::frame::{Content, Frame, Protocol};

/// The most protocols that the line names.
const MAX_NAMES: usize = 5;

/// Counts the frames of a capture.
#[derive(Debug, Default)]
pub struct Summary {
    frames: u64,
    packets: u64,
    /// Packets that the filters accept.
    taken: u64,
    /// Frames that hold several packets.
    several: u64,
    malformed: u64,
    fragments: u64,
    cut: u64,
    /// The frames of other protocols, by protocol.
    others: BTreeMap<Protocol, u64>,
    /// The frames of unknown link types, by type.
    unknown: BTreeMap<u16, u64>,
    lasts: Duration,
    /// Whether the capture has more queue pairs than the tracker follows.
    pub full: bool,
}

/// The numbers of a summary, as JSON.
#[derive(Serialize)]
pub struct Numbers<'a> {
    frames: u64,
    seconds: f64,
    rdma_packets: u64,
    /// The packets that the filters accept; `None` without filters.
    taken: Option<u64>,
    frames_of_several_packets: u64,
    malformed: u64,
    fragments_not_decoded: u64,
    cut_too_short: u64,
    /// The number of frames by the protocol's name.
    other_protocols: &'a BTreeMap<Protocol, u64>,
    /// The number of frames by link type.
    unknown_link_types: &'a BTreeMap<u16, u64>,
    more_queue_pairs_than_followed: bool,
}

impl Summary {
    /// Counts a frame that was captured `since` after the first.
    pub fn count(&mut self, frame: &Frame<'_>, since: Duration) {
        self.frames += 1;
        self.lasts = self.lasts.max(since);
        match &frame.content {
            Content::Rdma(packets) => {
                self.packets += packets.len() as u64;
                self.several += u64::from(packets.len() > 1);
            }
            Content::Malformed(_) => self.malformed += 1,
            Content::Fragment => self.fragments += 1,
            Content::Cut => self.cut += 1,
            Content::Other(Protocol::LinkType(link)) => {
                *self.unknown.entry(*link).or_default() += 1
            }
            Content::Other(protocol) => *self.others.entry(*protocol).or_default() += 1,
        }
    }

    /// Counts a packet that the filters accept.
    pub fn taken(&mut self) {
        self.taken += 1;
    }

    /// Returns the line without a newline. If there are filters, `taken` says what happens to the
    /// packets that they accept.
    pub fn text(&self, taken: Option<&str>) -> String {
        let mut text = format!(
            "{} in {:.6} s: {}",
            count(self.frames, "frame"),
            self.lasts.as_secs_f64(),
            count(self.packets, "RDMA packet")
        );
        if let Some(how) = taken {
            text += &format!(" ({} {how})", self.taken);
        }
        if self.several > 0 {
            let frames = count(self.several, "frame");
            text += &format!(", {frames} with several packets (GSO or GRO)");
        }
        for other in self.others() {
            text += &format!(", {other}");
        }
        if self.full {
            text += "; more queue pairs than are followed";
        }
        text
    }

    /// Returns the numbers as JSON. `is_filtered` means that there are filters.
    pub fn numbers(&self, is_filtered: bool) -> Numbers<'_> {
        Numbers {
            frames: self.frames,
            seconds: self.lasts.as_secs_f64(),
            rdma_packets: self.packets,
            taken: is_filtered.then_some(self.taken),
            frames_of_several_packets: self.several,
            malformed: self.malformed,
            fragments_not_decoded: self.fragments,
            cut_too_short: self.cut,
            other_protocols: &self.others,
            unknown_link_types: &self.unknown,
            more_queue_pairs_than_followed: self.full,
        }
    }

    /// Returns the number of RDMA packets.
    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the number of frames that are RoCE by their port or type, but malformed.
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Returns the kinds of other frames, each with their number.
    pub fn others(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut add = |n: u64, what: &str, after: &str| {
            if n > 0 {
                all.push(count(n, what) + after);
            }
        };
        add(self.malformed, "malformed frame", "");
        add(self.fragments, "IP fragment", " not decoded");
        add(self.cut, "frame", " cut too short to tell");
        let mut others: Vec<_> = self.others.iter().collect();
        others.sort_by_key(|(_, n)| Reverse(**n));
        let (named, rest) = others.split_at(others.len().min(MAX_NAMES));
        for (protocol, n) in named {
            add(**n, "frame", &format!(" of {protocol}"));
        }
        let of_rest = count(rest.len() as u64, "other protocol");
        add(rest.iter().map(|(_, n)| **n).sum(), "frame", &format!(" of {of_rest}"));
        for (link, n) in &self.unknown {
            add(*n, "frame", &format!(" of link type {link}, which is not known here"));
        }
        all
    }
}

fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_said() {
        let mut summary = Summary { frames: 1, packets: 1, ..Summary::default() };
        assert_eq!(summary.text(None), "1 frame in 0.000000 s: 1 RDMA packet");
        summary.unknown.insert(147, 2);
        summary.frames = 4;
        summary.others.insert(Protocol::EtherType(0x0806), 1);
        assert_eq!(
            summary.text(Some("shown")),
            "4 frames in 0.000000 s: 1 RDMA packet (0 shown), 1 frame of ARP, 2 frames of link type \
             147, which is not known here"
        );
    }

    #[test]
    fn the_commonest_protocols_are_named_and_the_others_are_counted() {
        let of = |n: u16| (Protocol::Udp(n), n.into());
        let mut summary = Summary { others: (1..=5).map(of).collect(), ..Summary::default() };
        let named = (1..=5).rev().map(|n| format!("{} of UDP {n}", count(n, "frame")));
        let named: Vec<_> = named.collect();
        assert_eq!(summary.others(), named);
        summary.others.extend([(Protocol::Ip(6), 9), (Protocol::Ip(99), 1)]);
        let mut expected = vec!["9 frames of TCP".to_owned()];
        expected.extend_from_slice(&named[..4]);
        expected.push("2 frames of 2 other protocols".to_owned());
        assert_eq!(summary.others(), expected);
        let json = serde_json::to_value(summary.numbers(false)).unwrap();
        assert_eq!(json["other_protocols"]["TCP"], 9);
        assert_eq!(json["other_protocols"]["UDP 2"], 2);
        assert_eq!(json["other_protocols"]["IP protocol 99"], 1);
    }
}
