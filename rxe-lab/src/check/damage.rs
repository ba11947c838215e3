//! Detects packets with a wrong ICRC. IBTA 7.8.1.

use rxe_core::types::Psn;

use super::finding::{Confidence, Kind};
use super::{Found, Seen};

/// The most damaged packets of one direction that are reported one by one.
const MAX_DAMAGED: usize = 32;

/// Counts the damaged and the undamaged packets of one direction.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// The frames and PSNs of the first damaged packets.
    first: Vec<(u64, Psn)>,
    count: u64,
    sound: u64,
}

impl Damage {
    /// Counts a packet with a wrong ICRC.
    pub(super) fn add(&mut self, seen: &Seen<'_>) {
        self.count += 1;
        if self.first.len() < MAX_DAMAGED {
            self.first.push((seen.number, seen.packet.bth.psn));
        }
    }

    /// Counts a packet whose ICRC is not wrong.
    pub(super) fn add_sound(&mut self) {
        self.sound += 1;
    }

    /// Reports the damaged packets at the end of the capture.
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
