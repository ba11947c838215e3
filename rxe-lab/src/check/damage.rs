//! Detects packets with a wrong ICRC. IBTA 7.8.1.

use rxe_core::types::Psn;

use super::finding::{Confidence, Kind, MAX_FRAMES, Span};
use super::{Found, Seen};

/// Counts the damaged and the undamaged packets of one direction.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// The PSN of the first damaged packet, and the times of the first and the last.
    first: Option<(Psn, Span)>,
    /// The first damaged frames.
    frames: Vec<u64>,
    count: u64,
    sound: u64,
}

impl Damage {
    /// Counts a packet with a wrong ICRC.
    pub(super) fn add(&mut self, seen: &Seen<'_>) {
        self.count += 1;
        self.first.get_or_insert((seen.packet.bth.psn, (seen.at, seen.at))).1.1 = seen.at;
        if self.frames.len() < MAX_FRAMES {
            self.frames.push(seen.number);
        }
    }

    /// Counts a packet whose ICRC is not wrong.
    pub(super) fn add_sound(&mut self) {
        self.sound += 1;
    }

    /// Reports the damaged packets at the end of the capture.
    pub(super) fn report(&mut self, found: &mut Found) {
        let Some(first) = self.first.take() else { return };
        let frames = std::mem::take(&mut self.frames);
        if self.count > 1 && self.sound == 0 {
            let text = format!(
                "All {} packets have a wrong ICRC: they were probably captured before the \
                 sender's device computed it. They are not followed.",
                self.count
            );
            found.push(Kind::IcrcArtefact, Confidence::Likely, first, frames, text);
            return;
        }
        let text = "The ICRC is wrong: the packet was damaged on its way where no checksum of the link \
                    saw it, or a device changed what the ICRC covers. The receiver drops it.";
        let text = text.to_owned();
        // Alone, it may have been captured before the ICRC was computed.
        let confidence = if self.sound == 0 { Confidence::Possible } else { Confidence::Certain };
        found.push(Kind::Icrc, confidence, first, frames, text).count = self.count;
    }
}
