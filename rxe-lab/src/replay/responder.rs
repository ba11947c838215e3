//! Infers how the recorded responder handled each request, from its answers. IBTA 9.7.4 (RC), 9.8.2 (UC).

use std::collections::HashMap;

use rxe_core::types::Psn;
use rxe_core::wire::{NakCode, OpKind, Service, Syndrome};

use super::recording::{Conversation, Packet};
use crate::frame::Icrc;

/// How the responder handled a request packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The request was executed.
    Executed,
    /// The request was refused with this code, and the queue pair entered the error state.
    Refused(NakCode),
    /// No receive was posted for the request.
    NotReady,
    /// The request had been executed before.
    Duplicate,
    /// The request was sent but never arrived: a NAK asks for it.
    Lost,
    /// The request was dropped because it was damaged, out of order, or came after an error.
    Dropped,
}

/// Returns the fate of each packet of a conversation, by index. Answers get [`Fate::Dropped`].
pub(super) fn fates(it: &Conversation, first: Psn, path_mtu: usize, damaged: bool) -> Vec<Fate> {
    let places = Places::new(it);
    let mut expected: i32 = 0;
    let (mut is_dead, mut is_within) = (false, false);
    let mut fate = |at: usize, is_request: bool, packet: &Packet| {
        let is_damaged = damaged && packet.icrc == Icrc::Wrong;
        if !is_request || !packet.is_sound || is_damaged || is_dead {
            return Fate::Dropped;
        }
        let psn = packet.bth.psn.diff(first);
        match it.service {
            Service::Rc | Service::Xrc => {}
            Service::Uc => {
                if !packet.info.starts && (!is_within || psn != expected) {
                    is_within = false;
                    return Fate::Dropped;
                }
                (is_within, expected) = (!packet.info.ends, psn.wrapping_add(1));
                return Fate::Executed;
            }
            Service::Ud | Service::Cnp => return Fate::Executed,
        }
        if psn < expected {
            return Fate::Duplicate;
        }
        if psn > expected {
            return Fate::Dropped;
        }
        match places.refusal(at, packet.bth.psn) {
            Some((_, Syndrome::RnrNak { .. })) => Fate::NotReady,
            Some((nak, Syndrome::Nak(NakCode::PsnSequenceError))) if places.later(at, nak, it) => {
                Fate::Lost
            }
            Some((_, Syndrome::Nak(code))) if code != NakCode::PsnSequenceError => {
                is_dead = true;
                Fate::Refused(code)
            }
            _ => {
                expected = expected.wrapping_add(span(packet, path_mtu));
                Fate::Executed
            }
        }
    };
    let all = it.packets.iter().enumerate();
    all.map(|(at, (is_request, packet))| fate(at, *is_request, packet)).collect()
}

/// Returns the number of PSNs that a request takes.
pub(super) fn span(packet: &Packet, path_mtu: usize) -> i32 {
    if packet.info.kind != OpKind::ReadRequest {
        return 1;
    }
    i32::try_from(packet.dma_len().div_ceil(path_mtu as u64).max(1)).unwrap_or(i32::MAX >> 8)
}

/// The indices of the packets with each PSN.
struct Places {
    requests: HashMap<Psn, Vec<usize>>,
    refusals: HashMap<Psn, Vec<(usize, Syndrome)>>,
}

impl Places {
    fn new(it: &Conversation) -> Self {
        let mut this = Self { requests: HashMap::new(), refusals: HashMap::new() };
        for (at, (is_request, packet)) in it.packets.iter().enumerate() {
            let psn = packet.bth.psn;
            match packet.ext.aeth.map(|aeth| aeth.syndrome) {
                _ if *is_request => this.requests.entry(psn).or_default().push(at),
                Some(what @ (Syndrome::Nak(_) | Syndrome::RnrNak { .. })) => {
                    this.refusals.entry(psn).or_default().push((at, what));
                }
                _ => {}
            }
        }
        this
    }

    /// Returns the first NAK of this PSN after its request at `at`, before a retransmission.
    fn refusal(&self, at: usize, psn: Psn) -> Option<(usize, Syndrome)> {
        let requests = self.requests.get(&psn)?;
        let again = requests.get(requests.partition_point(|place| *place <= at));
        let refusals = self.refusals.get(&psn)?;
        let found = *refusals.get(refusals.partition_point(|(place, _)| *place <= at))?;
        again.is_none_or(|again| found.0 < *again).then_some(found)
    }

    /// Returns whether a request with a later PSN was sent between index `at` and the NAK.
    /// Only then could a responder that missed the request at `at` notice a gap.
    fn later(&self, at: usize, nak: usize, it: &Conversation) -> bool {
        let psn = it.packets[at].1.bth.psn;
        let between = it.packets.get(at..nak).unwrap_or_default();
        between.iter().any(|(is_request, packet)| *is_request && packet.bth.psn.after(psn))
    }
}
