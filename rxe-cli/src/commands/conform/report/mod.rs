//! The results of a run, for people and for programs.

pub(super) mod html;
pub(super) mod json;
pub(super) mod junit;
pub(super) mod text;

use std::net::IpAddr;
use std::path::PathBuf;

use super::case::Case;
use super::verdict::Verdict;
use crate::common::peer::Peer;

/// The results of a run.
pub(super) struct Report {
    pub(super) device: String,
    pub(super) peer: IpAddr,
    pub(super) own: IpAddr,
    pub(super) active_mtu: u32,
    pub(super) played: Vec<Played>,
}

/// The result of a case.
pub(super) struct Played {
    pub(super) group: String,
    pub(super) case: &'static Case,
    pub(super) verdict: Verdict,
    /// The packets sent and received, and other events, one per line.
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

    /// Returns the number of cases with this verdict.
    pub(super) fn count(&self, verdict: &str) -> usize {
        self.played.iter().filter(|played| played.verdict.name() == verdict).count()
    }

    /// Returns the counts of all verdicts in words.
    fn counts(&self) -> String {
        let [conforms, deviates, untested] =
            ["conforms", "deviates", "not testable"].map(|verdict| self.count(verdict));
        format!(
            "cases {}: conforms {conforms}, deviates {deviates}, not testable {untested}",
            self.played.len()
        )
    }
}
