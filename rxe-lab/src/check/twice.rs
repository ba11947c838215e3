//! Detects a capture of two places, in which nearly every packet comes twice.
//!
//! A switch that mirrors both ports, or two interfaces in one file, give two copies of a packet,
//! the second before the sender could have noticed a loss. A requester that sends everything again
//! is not such a case, because its responder does not repeat its answers too.

use rxe_core::types::Psn;
use rxe_core::wire::OpInfo;

use super::finding::{Confidence, Kind, Span};
use super::{Checker, Finding, Flow, Found, Report, Seen};

/// The number of packets behind which a copy is still recognised.
const RECENT: usize = 8;

/// The fewest packets of a direction, and of all together, that show that all come twice.
const ENOUGH: (u64, u64) = (4, 8);

/// The packets of one direction, and how many of them came a second time.
#[derive(Debug, Default)]
pub(super) struct Twice {
    /// The last packets: PSN and ICRC or shape, and how often each came.
    recent: [(u32, u32, u32); RECENT],
    at: usize,
    once: u64,
    copies: u64,
    /// The number of packets that came more than twice: they were sent again.
    more: u64,
    /// The frames of the first copies.
    frames: Vec<u64>,
    /// The PSN of the first copy, and the times of the first and the last.
    place: Option<(Psn, Span)>,
}

impl Twice {
    /// Adds a packet. Returns whether it is the second copy of a recent one.
    pub(super) fn add(&mut self, seen: &Seen<'_>) -> bool {
        let packet = seen.packet;
        let len = u32::try_from(packet.payload_len).unwrap_or(u32::MAX);
        // Without an ICRC, packets of one shape are alike.
        let shape = u32::from(packet.bth.opcode.0) << 24 | len & 0xff_ffff;
        let it = (packet.bth.psn.value(), if seen.icrc == 0 { shape } else { seen.icrc });
        let is_it = |recent: &&mut (u32, u32, u32)| (recent.0, recent.1) == it && recent.2 > 0;
        let Some(recent) = self.recent.iter_mut().find(is_it) else {
            self.recent[self.at] = (it.0, it.1, 1);
            self.at = (self.at + 1) % RECENT;
            self.once += 1;
            return false;
        };
        recent.2 += 1;
        let times = recent.2;
        if times == 2 {
            self.copies += 1;
            self.place.get_or_insert((packet.bth.psn, (seen.at, seen.at))).1.1 = seen.at;
            if self.frames.len() < super::MAX_FRAMES {
                self.frames.push(seen.number);
            }
        } else {
            self.more += 1;
        }
        times.is_multiple_of(2)
    }

    /// Returns whether nearly every packet came twice. `None` if there are too few to tell.
    fn is_most(&self) -> Option<bool> {
        // The first packet may be the second copy of one from before the capture, and the last one may
        // have its copy after it.
        let is_most = (self.copies + 1) * 10 >= self.once * 9 && self.more * 4 <= self.once;
        (self.once >= ENOUGH.0 || self.more > ENOUGH.0).then_some(is_most)
    }
}

impl Report {
    /// Returns this report if the capture was taken at one place. Otherwise checks the capture again
    /// with a checker for two places, to which `read` must give all its frames, and returns the
    /// second report.
    #[must_use]
    pub fn once_more(self, read: impl FnOnce(&mut Checker)) -> Self {
        if !self.is_of_two_places {
            return self;
        }
        let mut checker = self.checker();
        read(&mut checker);
        checker.finish()
    }

    /// Creates a checker for the same capture. If it was taken at two places, the second copy of each
    /// packet is ignored.
    pub fn checker(&self) -> Checker {
        Checker { ignores_copies: self.is_of_two_places, ..Checker::default() }
    }
}

impl Checker {
    /// Returns whether a packet is ignored because it is a copy.
    pub(super) fn is_ignored(&mut self, at: usize, seen: &Seen<'_>, info: &OpInfo) -> bool {
        let flow = &mut self.flows[at];
        flow.answers |= info.is_response();
        flow.twice.add(seen) && self.ignores_copies
    }

    /// Returns a finding if nearly every packet came twice, in requests and in answers.
    pub(super) fn two_places(&self) -> Option<Finding> {
        let is_most = |flow: &Flow| flow.twice.is_most();
        let (mut once, mut answers) = (0, false);
        let mut first: Option<&Flow> = None;
        for flow in &self.flows {
            match is_most(flow) {
                Some(false) => return None,
                Some(true) => {
                    once += flow.twice.once;
                    answers |= flow.answers;
                    first = first.filter(|f| f.twice.frames <= flow.twice.frames).or(Some(flow));
                }
                None => {}
            }
        }
        let flow = first.filter(|_| answers && once >= ENOUGH.1)?;
        let then = match self.ignores_copies {
            true => "Each counts once here.",
            false => {
                "Which of them were sent again or lost cannot be told, and little else is checked."
            }
        };
        let text = format!(
            "Nearly every packet is in this capture twice: it is of two places, such as both ports of a \
             switch. {then} Capture at one place, or keep the places apart as interfaces of one file \
             (`mergecap -I none`)."
        );
        let Found { from, to, dest_qp, .. } = flow.found;
        let mut found = Found::new(from, to, dest_qp);
        let (place, frames) = (flow.twice.place?, flow.twice.frames.clone());
        found.push(Kind::TwoPlaces, Confidence::Likely, place, frames, text);
        found.findings.pop()
    }

    /// Removes the findings that copies may have led to.
    pub(super) fn leave_out_copies(&mut self) {
        let of_one_packet = |kind| {
            matches!(kind, Kind::RemoteAccess | Kind::InvalidRequest | Kind::RemoteOperational)
        };
        self.findings.keep_only(of_one_packet);
    }
}
