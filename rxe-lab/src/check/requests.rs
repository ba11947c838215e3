//! Follows the requests of one direction: PSNs, opcodes, lengths, retransmissions.

mod again;
mod flaws;
mod refused;

use std::collections::VecDeque;
use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::{OpInfo, OpKind, Position, Service};

use super::credits::Credits;
use super::finding::{Confidence, Kind};
use super::gaps::{Gap, Gaps, RESTART};
use super::history::{History, Sent};
use super::summary::Stats;
use super::trips::{Sendings, Trips};
use super::unready::Unready;
use super::{Found, Seen};
use again::Episode;
pub(super) use again::MAX_RESTARTS;
use flaws::Flaws;
use refused::Refused;

/// The most refusals that are kept: this many may come before the first retransmission.
const MAX_REFUSALS: usize = 4;

/// The requests of one direction.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) history: History,
    /// The expected PSN of the next request.
    pub(super) next: Option<Psn>,
    message: Option<Message>,
    /// The gaps in the PSNs.
    pub(super) gaps: Gaps,
    pub(super) credits: Credits,
    /// The refusals that were not yet followed by a retransmission, oldest first.
    refusals: VecDeque<Refusal>,
    /// The frame of the newest refusal.
    refused_in: u64,
    /// The current run of retransmissions.
    episode: Option<Episode>,
    /// The NAK after which the requester must not go on.
    refused: Option<Refused>,
    pub(super) flaws: Flaws,
    /// The number of messages whose last packet was sent.
    pub(super) ended: u32,
    /// The time at which the responder last answered something new.
    pub(super) progress: Duration,
    /// The PSN after the last one that was answered in order.
    pub(super) until: Option<Psn>,
    pub(super) min_rtt: Option<Duration>,
    pub(super) max_rtt: Option<Duration>,
    pub(super) mtu: Option<u32>,
    /// Whether the next PSN is expected on the basis of a guess.
    uncertain: bool,
    /// The number of guessed spans (READs, truncated frames) that no answer has confirmed.
    /// While this is not 0, messages may be missing from the count.
    pub(super) guesses: u32,
    unseen_responses: Option<UnseenResponses>,
    /// The PSNs that the last frame may contain, if it was truncated.
    reach: Option<Reach>,
    /// Whether some responses may belong to these requests or to another queue pair's.
    /// If so, it is unknown which requests were answered.
    pub(super) doubtful: bool,
    /// The PSN after the requests that were sent while `doubtful` was set.
    doubtful_before: Option<Psn>,
    /// Whether the capture has the beginning of the connection.
    pub(super) is_whole: bool,
    /// The PSN after the requests that were captured when one from before the capture was sent again.
    unseen_before: Option<Psn>,
    /// Whether a request had AckReq set at its first transmission.
    has_asked: bool,
    /// The interface on which the requests were captured.
    interface: Option<u32>,
    pub(super) trips: Trips,
    pub(super) unready: Unready,
}

/// A message whose last packet has not been sent yet.
#[derive(Debug)]
struct Message {
    kind: OpKind,
    frame: u64,
    bytes: u64,
    /// The DMA length in the RETH; `None` for a SEND, or if the beginning was not captured.
    dma_len: Option<u32>,
    /// Whether a frame of the message was truncated and may contain more than the message.
    may_hide: bool,
}

/// The PSN before which the packets of a truncated frame end, at the latest.
#[derive(Clone, Copy, Debug)]
struct Reach {
    until: Psn,
    /// The frame of the packet with PSN `psn`.
    frame: u64,
    psn: Psn,
    at: Duration,
}

/// The PSNs whose responses may be in a truncated frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnseenResponses {
    first: Psn,
    /// The PSN after the last.
    until: Psn,
    /// The frame of the captured response, whose PSN is `psn`.
    pub(super) frame: u64,
    pub(super) psn: Psn,
    pub(super) at: Duration,
}

/// A response that demands retransmission from a PSN on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub(super) psn: Psn,
    pub(super) frame: u64,
    pub(super) kind: Kind,
}

impl Requests {
    /// Follows a request.
    pub(super) fn take(&mut self, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        let psn = seen.packet.bth.psn;
        self.interface = Some(seen.interface);
        let Some(next) = self.next else { return self.add(seen, info, None, found) };
        self.settle_read(psn);
        self.settle_cut(psn, found);
        let ahead = psn.diff(self.next.unwrap_or(next));
        if ahead.abs() > RESTART {
            self.restart(found);
            self.add(seen, info, None, found);
        } else if ahead == 0 {
            self.check_order(seen, info, found);
            self.add(seen, info, None, found);
        } else if ahead > 0 {
            let (first, count) = (psn - ahead.unsigned_abs(), ahead.unsigned_abs());
            let unreliable = info.service == Service::Uc;
            let gap = Gap { first, count, frame: seen.number, at: seen.at, unreliable };
            if let Some(given_up) = self.gaps.add(gap) {
                given_up.report_lost(found);
            }
            self.credits.lose_count(psn);
            self.message = None;
            self.add(seen, info, None, found);
        } else if let Some(gap) = self.gaps.take(psn) {
            self.filled(&gap, seen, info, found);
        } else {
            self.again(seen, info, found);
        }
    }

    /// Ends the doubt: all responses are known from here on.
    pub(super) fn end_doubt(&mut self) {
        if std::mem::take(&mut self.doubtful) {
            self.doubtful_before = self.next;
        }
    }

    /// Returns whether responses to the request with this PSN may have been missed.
    pub(super) fn is_doubtful(&self, psn: Psn) -> bool {
        self.doubtful || self.doubtful_before.is_some_and(|end| psn.before(end))
    }

    /// Returns whether nothing has shown yet that requests are sent for the first time. Those that are
    /// sent again from before the capture look new until one of them is answered.
    fn is_opening(&self) -> bool {
        let is_answered = self
            .history
            .first()
            .zip(self.until)
            .is_some_and(|(first, until)| until.after(first.psn));
        !self.is_whole && !self.history.trimmed && !is_answered
    }

    /// Returns whether what was before the capture may explain what becomes of the request with this
    /// PSN.
    pub(super) fn is_open(&mut self, psn: Psn) -> bool {
        self.unseen_before.is_some_and(|end| psn.before(end))
            || self.history.get(psn).is_some_and(|sent| sent.may_be_again)
    }

    /// Notes that a request from before the capture is sent again. The requester may have discarded
    /// the answers to all later ones.
    fn sends_unseen(&mut self) {
        self.unseen_before = self.next;
    }

    /// Notes that everything before `until` is answered.
    pub(super) fn answered_until(&mut self, until: Psn, seen: &Seen<'_>) {
        self.until = Some(until);
        // If answers have another clock, the copy of this answer gives the time instead.
        if self.is_at_point(seen) {
            self.progress = seen.at;
        }
        // Forget the limit when it is so old that its PSN may be reused.
        self.doubtful_before.take_if(|end| until.diff(*end) > RESTART);
        self.unseen_before.take_if(|end| until.diff(*end) > RESTART);
    }

    /// Returns whether an answer was captured on the same interface as the requests.
    pub(super) fn is_at_point(&self, seen: &Seen<'_>) -> bool {
        self.interface == Some(seen.interface)
    }

    /// Handles a copy of an answer, captured at another point than the answer itself.
    pub(super) fn copied(&mut self, seen: &Seen<'_>, found: &mut Found) {
        if self.is_at_point(seen)
            && let Some((sendings, at)) = self.trips.copied(seen)
        {
            self.progress = self.progress.max(at);
            self.took(&sendings, at, &mut found.stats);
        }
    }

    /// Records the times from requests to their answer at `at`.
    pub(super) fn took(&mut self, sendings: &Sendings, at: Duration, stats: &mut Stats) {
        for began in &sendings.messages {
            stats.latencies.add(at.saturating_sub(*began));
        }
        if let Some(sent) = sendings.trip {
            let trip = at.saturating_sub(sent);
            stats.round_trips.add(trip);
            self.min_rtt = Some(self.min_rtt.map_or(trip, |min| min.min(trip)));
            self.max_rtt = self.max_rtt.max(Some(trip));
        }
    }

    /// Adds a response that demands retransmission.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        let Refusal { psn, kind, frame } = refusal;
        self.refused_in = frame;
        self.refusals.retain(|r| (r.psn, r.kind) != (psn, kind));
        if self.refusals.len() == MAX_REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(refusal);
    }

    /// Returns the refusals that were not yet followed by a retransmission.
    pub(super) fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        self.refusals.iter()
    }

    /// Reports what is open and forgets everything: the queue pair was reset.
    pub(super) fn restart(&mut self, found: &mut Found) {
        self.close(found);
        self.report_refused(found);
        self.report_lost(found);
        self.unready.report(None, found);
        self.credits.report(found);
        *self = Self::default();
        found.restarted = true;
    }

    /// Reports the packets of an unreliable service that are missing.
    pub(super) fn report_lost(&self, found: &mut Found) {
        self.gaps.report_lost(found);
    }

    /// Adds a request that was not captured before.
    /// `filled` is how long the gap existed that it fills, if it fills one.
    fn add(
        &mut self,
        seen: &Seen<'_>,
        info: &'static OpInfo,
        filled: Option<Duration>,
        found: &mut Found,
    ) {
        let packet = seen.packet;
        let psn = packet.bth.psn;
        let may_be_again = self.is_opening();
        self.check_length(seen, info, found);
        self.flaws.look(packet);
        let dma_len = packet.ext.reth.map_or(0, |reth| reth.dma_len);
        let reads = if info.kind == OpKind::ReadRequest { dma_len } else { 0 };
        let (span, span_known) = match self.mtu {
            _ if reads <= 256 => (1, true),
            Some(mtu) => (reads.div_ceil(mtu), true),
            None => (reads.div_ceil(4096).max(1), false),
        };
        self.follow(seen, info, found);
        self.ended += u32::from(info.ends);
        match filled {
            None => self.credits.request(seen, info),
            Some(_) => self.credits.lose_count(self.next.unwrap_or(psn)),
        }
        if packet.unseen.is_certain(self.path_mtu()) {
            found.cut.add(seen.number, psn, seen.at);
        }
        if filled.is_none() {
            self.reach = None;
            self.reaches(seen);
        }
        self.history.add(Sent {
            psn,
            span,
            span_known,
            guessed: false,
            info,
            frame: seen.number,
            last_frame: seen.number,
            last_at: seen.at,
            times: 1,
            timeouts: 0,
            ack_req: packet.bth.ack_req,
            began: seen.at.saturating_sub(filled.unwrap_or_default()),
            dma_len,
            may_be_again,
            is_cut: packet.is_read_of_unknown_length(),
            messages: self.ended,
            taken: self.credits.complete(),
            icrc: seen.icrc,
            filled,
            restarts: Vec::new(),
            responses: 0,
            value: None,
        });
        self.has_asked |= packet.bth.ack_req;
        if info.ends {
            found.stats.messages += 1;
        }
        found.stats.bytes += packet.payload_len as u64;
        if filled.is_none() {
            self.next = Some(psn + span);
            if let Some(episode) = &mut self.episode {
                episode.is_over = true;
            }
        }
    }

    /// Follows the message to which the packet belongs.
    fn follow(&mut self, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        let len = seen.packet.payload_len as u64;
        if info.starts {
            let dma_len = seen.packet.ext.reth.map(|reth| reth.dma_len);
            let (kind, frame) = (info.kind, seen.number);
            self.message = Some(Message { kind, frame, bytes: 0, dma_len, may_hide: false });
        }
        let may_hide = seen.packet.unseen.most(self.path_mtu()) > 0;
        let Some(message) = &mut self.message else { return };
        message.bytes += len;
        message.may_hide |= may_hide;
        if !info.ends {
            return;
        }
        let Some(message) = self.message.take() else { return };
        if let Some(dma_len) = message.dma_len
            && message.kind == OpKind::Write
            && u64::from(dma_len) != message.bytes
            && !message.may_hide
        {
            let text = format!(
                "The RETH of this WRITE announces {dma_len} bytes, and its packets have {}.",
                message.bytes
            );
            let frames = vec![message.frame, seen.number];
            self.flaws.add(
                seen.packet.bth.psn,
                "its RETH announces another length than its packets have",
            );
            found.add(seen, Kind::Length, Confidence::Certain, frames, text);
        }
    }

    /// Checks the opcode of a request against the preceding one.
    fn check_order(&mut self, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        if std::mem::take(&mut self.uncertain) {
            return;
        }
        let Some(last) = self.history.last() else { return };
        let fits = if last.info.ends { info.starts } else { !info.starts };
        let fits = fits && (info.starts || last.info.kind == info.kind);
        let known = !matches!(info.kind, OpKind::Reserved)
            && last.psn.next().diff(seen.packet.bth.psn) <= 0;
        if fits || !known {
            return;
        }
        let text = format!(
            "{} follows {}: the message before is not complete, or this one has no beginning.",
            info.name, last.info.name
        );
        let frames = vec![last.frame, seen.number];
        self.message = None;
        self.flaws.add(seen.packet.bth.psn, "its opcode does not follow the one before");
        found.add(seen, Kind::OpcodeOrder, Confidence::Certain, frames, text);
    }

    /// Checks the length of a packet against the path MTU.
    fn check_length(&mut self, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        if !matches!(info.kind, OpKind::Send | OpKind::Write) {
            return;
        }
        let len = u32::try_from(seen.packet.payload_len).unwrap_or(u32::MAX);
        if seen.packet.may_be_several() && len > self.mtu.unwrap_or(256) {
            return;
        }
        let is_full = matches!(info.position, Position::First | Position::Middle);
        let possible = len.is_power_of_two() && (256..=4096).contains(&len);
        let wrong = match (self.mtu, is_full) {
            (Some(mtu), true) => len != mtu,
            (None, true) => !possible,
            (Some(mtu), false) => len > mtu,
            (None, false) => len > 4096,
        } || info.position == Position::Last && len == 0;
        if is_full && possible && self.mtu.is_none() {
            self.mtu = Some(len);
        }
        if wrong {
            let text = match (is_full, self.mtu) {
                (true, Some(mtu)) => format!(
                    "The payload of {} has {len} bytes; before it the path MTU was {mtu}.",
                    info.name
                ),
                (true, None) => {
                    format!("The payload of {} has {len} bytes, which is no path MTU.", info.name)
                }
                _ => format!("The payload of {} has {len} bytes.", info.name),
            };
            self.flaws
                .add(seen.packet.bth.psn, "the length of its packet does not fit the path MTU");
            found.add(seen, Kind::Length, Confidence::Certain, vec![seen.number], text);
        }
    }

    /// Returns the path MTU as a `usize`.
    pub(super) fn path_mtu(&self) -> Option<usize> {
        usize::try_from(self.mtu?).ok()
    }

    /// Returns whether a PSN may belong to a packet in the last frame, which was truncated.
    pub(super) fn may_be_unseen(&self, psn: Psn) -> bool {
        let (Some(next), Some(reach)) = (self.next, self.reach) else { return false };
        !psn.before(next) && psn.before(reach.until)
    }

    /// Notes that the PSNs after this packet's may be in its frame, if it was truncated.
    fn reaches(&mut self, seen: &Seen<'_>) {
        let psn = seen.packet.bth.psn;
        let most = seen.packet.most_unseen(self.path_mtu());
        let until = psn.next() + most;
        if most > 0 && self.reach.is_none_or(|reach| until.after(reach.until)) {
            self.reach = Some(Reach { until, frame: seen.number, psn, at: seen.at });
        }
    }

    /// Assigns the PSNs before `psn` to the last frame if that was truncated and may have them.
    /// These PSNs are then not missing.
    pub(super) fn settle_cut(&mut self, psn: Psn, found: &mut Found) {
        let (Some(next), Some(reach)) = (self.next, self.reach) else { return };
        let count = psn.diff(next).min(reach.until.diff(next));
        let Some(last) = self.history.last() else { return };
        let Some(count) =
            u32::try_from(count).ok().filter(|count| (1..RESTART.unsigned_abs()).contains(count))
        else {
            return;
        };
        last.span += count;
        if !std::mem::replace(&mut last.guessed, true) {
            self.guesses += 1;
        }
        found.cut.add(reach.frame, reach.psn, reach.at);
        self.next = Some(next + count);
        self.uncertain = true;
        self.message = None;
        self.credits.lose_count(psn);
    }

    /// Notes that the responses to `count` PSNs after this one may be in its truncated frame.
    pub(super) fn hide_responses(&mut self, seen: &Seen<'_>, count: u32) {
        let (frame, psn, at) = (seen.number, seen.packet.bth.psn, seen.at);
        let first = match self.unseen_responses {
            Some(UnseenResponses { first, until, .. })
                if !psn.after(until) && !psn.before(first) =>
            {
                first
            }
            _ => psn.next(),
        };
        let until = psn.next() + count;
        self.unseen_responses = Some(UnseenResponses { first, until, frame, psn, at });
    }

    /// Returns the truncated frame that may contain the responses from `psn` to `end`.
    pub(super) fn unseen_response(&self, psn: Psn, end: Psn) -> Option<UnseenResponses> {
        self.unseen_responses.filter(|it| !psn.before(it.first) && !end.after(it.until))
    }

    /// Determines how many PSNs the last READ takes, from the PSN of the request after it.
    fn settle_read(&mut self, psn: Psn) {
        let mtu = self.mtu;
        let Some(last) = self.history.last().filter(|last| !last.span_known) else { return };
        let (least, most) = match mtu {
            Some(mtu) => (last.dma_len.div_ceil(mtu), last.dma_len.div_ceil(mtu)),
            None => (last.dma_len.div_ceil(4096).max(1), last.dma_len.div_ceil(256)),
        };
        let ahead = psn.diff(last.psn);
        let span = match u32::try_from(ahead) {
            Ok(ahead) if least < most && (least..=most).contains(&ahead) => {
                // Other requests may be missing between the two.
                self.uncertain = true;
                self.guesses += 1;
                last.guessed = true;
                ahead
            }
            _ if least == most => least,
            Ok(ahead) if ahead > most => most,
            _ => return,
        };
        last.span = span;
        last.span_known = true;
        self.next = Some(last.psn + span);
    }
}
