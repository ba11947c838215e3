//! What a run has found, for people and for programs.

pub(super) mod html;
pub(super) mod json;
pub(super) mod junit;
pub(super) mod text;

use std::net::IpAddr;
use std::path::PathBuf;

use super::case::Case;
use super::verdict::Verdict;
use crate::common::peer::Peer;

/// A run.
pub(super) struct Report {
    pub(super) device: String,
    pub(super) peer: IpAddr,
    pub(super) own: IpAddr,
    pub(super) active_mtu: u32,
    pub(super) played: Vec<Played>,
}

/// A case that was played.
pub(super) struct Played {
    pub(super) group: String,
    pub(super) case: &'static Case,
    pub(super) verdict: Verdict,
    /// What was sent and what came, line by line.
    pub(super) log: Vec<String>,
    pub(super) capture: Option<PathBuf>,
}

impl Report {
    pub(super) fn new(peer: &Peer, own: IpAddr) -> Self {
        Self {
            device: peer.device.clone(),
            peer: peer.address,
            own,
            active_mtu: peer.active_mtu,
            played: Vec::new(),
        }
    }

    /// How many cases have this verdict.
    pub(super) fn count(&self, verdict: &str) -> usize {
        self.played.iter().filter(|played| played.verdict.name() == verdict).count()
    }

    /// The counts in words.
    fn counts(&self) -> String {
        let [conforms, deviates, untested] =
            ["conforms", "deviates", "not testable"].map(|verdict| self.count(verdict));
        format!(
            "cases {}: conforms {conforms}, deviates {deviates}, not testable {untested}",
            self.played.len()
        )
    }
}
