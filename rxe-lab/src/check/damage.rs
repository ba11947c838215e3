//! Packets with a wrong ICRC. IBTA 7.8.1.

use rxe_core::types::Psn;

use super::finding::{Confidence, Kind};
use super::{Found, Seen};

/// Damaged packets of one direction that are remembered.
const MAX_DAMAGED: usize = 32;

/// Damaged packets of one direction, and how many are not.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// Frames and PSNs of the first.
    first: Vec<(u64, Psn)>,
    count: u64,
    sound: u64,
}

impl Damage {
    /// A packet with a wrong ICRC.
    pub(super) fn add(&mut self, seen: &Seen<'_>) {
        self.count += 1;
        if self.first.len() < MAX_DAMAGED {
            self.first.push((seen.number, seen.packet.bth.psn));
        }
    }

    /// A packet without.
    pub(super) fn add_sound(&mut self) {
        self.sound += 1;
    }

    /// Reports them at the end of the capture.
    pub(super) fn report(&mut self, found: &mut Found) {
        let first = std::mem::take(&mut self.first);
        if self.count > 1 && self.sound == 0 {
            let frames = first.iter().map(|(number, _)| *number).take(8).collect();
            let text = format!(
                "All {} packets have a wrong ICRC: they were probably captured before the \
                 sender's device computed it. They are not followed.",
                self.count
            );
            let psn = first.first().map_or(Psn::default(), |(_, psn)| *psn);
            found.push(Kind::IcrcArtefact, Confidence::Likely, psn, frames, 0, text);
            return;
        }
        for (number, psn) in first {
            let text = "The ICRC is wrong: the packet was damaged on its way where no checksum \
                        of the link saw it, or a device changed what the ICRC covers. The \
                        receiver drops it.";
            let frames = vec![number];
            found.push(Kind::Icrc, Confidence::Certain, psn, frames, 0, text.to_owned());
        }
    }
}
