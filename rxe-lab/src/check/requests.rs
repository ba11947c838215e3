//! Requests of one direction: their PSNs, opcodes and lengths, and why they are sent again.

use std::collections::VecDeque;
use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::{OpInfo, OpKind, Position, Service};

use super::finding::{Confidence, Kind};
use super::gaps::{Gap, Gaps};
use super::history::{History, Sent};
use super::text::{lost_after, lost_before, time, timer};
use super::{Found, Seen};

/// A PSN this far from the one expected begins another connection.
const RESTART: i32 = 1 << 18;

/// The most refusals that are kept: so many may come before the first packet is sent again.
const MAX_REFUSALS: usize = 4;

/// A packet that comes again within this time comes from the network: no requester can know so soon.
const AT_ONCE: Duration = Duration::from_micros(20);

/// Requests of one direction.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) history: History,
    /// The PSN of the next request.
    pub(super) next: Option<Psn>,
    message: Option<Message>,
    /// PSNs that were left out.
    pub(super) gaps: Gaps,
    /// Those that no request was sent again for yet, the oldest first.
    refusals: VecDeque<Refusal>,
    episode: Option<Episode>,
    /// Messages whose last packet was sent.
    pub(super) ended: u32,
    /// When the responder has answered something new.
    pub(super) progress: Duration,
    pub(super) min_rtt: Option<Duration>,
    pub(super) mtu: Option<u32>,
    /// Whether the place of the next request follows from a guess.
    uncertain: bool,
    /// READs whose span is a guess that no answer has confirmed: messages may be missing in the count.
    pub(super) guesses: u32,
    /// Whether a request had AckReq set when it was first sent.
    has_asked: bool,
    /// Whether a wrong path MTU was reported.
    length_reported: bool,
}

/// A message of which more packets follow.
#[derive(Debug)]
struct Message {
    kind: OpKind,
    began: Duration,
    frame: u64,
    bytes: u64,
    /// What its RETH says; `None` of a SEND, or if its beginning was not captured.
    dma_len: Option<u32>,
}

/// A reason to send again from a PSN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub(super) psn: Psn,
    pub(super) frame: u64,
    pub(super) kind: Kind,
}

/// A run of requests that are sent again for one reason.
#[derive(Debug)]
struct Episode {
    kind: Kind,
    confidence: Confidence,
    first: Psn,
    last: Psn,
    /// The frame in which it began.
    began: u64,
    frames: Vec<u64>,
    packets: u64,
    text: String,
    /// If nothing that was on the way has asked for an answer: what to say of that.
    unasked: Option<String>,
    /// Whether a request that was not sent before has ended it.
    is_over: bool,
}

impl Requests {
    /// Looks at a request.
    pub(super) fn take(&mut self, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        let psn = seen.packet.bth.psn;
        let Some(next) = self.next else { return self.add(seen, info, None, found) };
        self.settle_read(psn);
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
            self.gaps.add(gap, found);
            self.message = None;
            self.add(seen, info, None, found);
        } else if let Some(gap) = self.gaps.take(psn) {
            self.filled(&gap, seen, info, found);
        } else {
            self.again(seen, found);
        }
    }

    /// A request that was left out comes after later ones.
    fn filled(&mut self, gap: &Gap, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        let psn = seen.packet.bth.psn;
        let waited = seen.at.saturating_sub(gap.at);
        let message = self.message.take();
        self.add(seen, info, Some(waited), found);
        self.message = message;
        if let Some(sent) = self.history.get(psn) {
            let span = if sent.span_known { sent.span } else { sent.dma_len.div_ceil(256) };
            self.gaps.cover(psn, span);
        }
        let refused = self.refusals.iter().rposition(|r| r.psn == psn);
        if refused.is_none() && self.continues(psn, gap.frame) {
            return self.prolong(seen);
        }
        if let Some(refusal) = refused.and_then(|at| self.heed(at)) {
            let (kind, text) = (refusal.kind, lost_before(refusal.kind));
            return self.begin(
                seen,
                kind,
                Confidence::Likely,
                vec![gap.frame, refusal.frame],
                text,
                found,
            );
        }
        let soon = waited < self.min_rtt.unwrap_or(Duration::from_millis(1));
        let (kind, text) = if soon || info.service == Service::Uc {
            (Kind::Reordered, "It came after packets with higher PSNs.".to_owned())
        } else {
            let text = format!(
                "Its first transmission was lost before the capture point; the requester \
                 sent it again after {}.{}",
                time(waited),
                timer(waited)
            );
            (Kind::Timeout, text)
        };
        self.begin(seen, kind, Confidence::Likely, vec![gap.frame], text, found);
    }

    /// A request whose PSN was there before.
    fn again(&mut self, seen: &Seen<'_>, found: &mut Found) {
        let psn = seen.packet.bth.psn;
        let answered = self.history.is_answered(psn);
        let trimmed = self.history.trimmed;
        let asked = trimmed || !self.gaps.is_empty() || self.history.asks_for_answer();
        let Some(sent) = self.history.get(psn) else {
            // It is older than the capture, or the queue pair has begun anew.
            if trimmed {
                self.restart(found);
            }
            return;
        };
        let waited = seen.at.saturating_sub(sent.last_at.max(self.progress));
        let since = seen.at.saturating_sub(sent.last_at);
        let identical = sent.icrc == seen.icrc;
        let (filled, last_frame, times) = (sent.filled, sent.last_frame, sent.times);
        let is_read = sent.info.kind == OpKind::ReadRequest || sent.info.is_atomic();
        let responses = std::mem::replace(&mut sent.responses, psn.diff(sent.psn).unsigned_abs());
        let (first, span) = (sent.psn, sent.span);
        sent.times += 1;
        sent.last_frame = seen.number;
        sent.last_at = seen.at;
        let first_frame = sent.frame;
        found.stats.retransmitted += 1;
        found.stats.retransmitted_bytes += seen.packet.payload_len as u64;
        let pending = self.refusals.iter().rposition(|r| {
            let own = u32::try_from(r.psn.diff(first)).is_ok_and(|at| at < span);
            r.psn == psn || r.kind == Kind::ImpliedNak && own
        });
        // The run that an earlier NAK began goes on over the place that a later one names. What that one
        // has sent again begins there once more.
        let passes = self.episode.as_ref().is_some_and(|e| psn == e.last.next())
            && pending.is_some_and(|at| self.refusals[at].kind == Kind::SequenceNak);
        if passes && self.continues(psn, last_frame) {
            return self.prolong(seen);
        }
        if pending.is_none() {
            if let Some(episode) = &mut self.episode
                && filled.is_some_and(|gap| gap < since)
                && times == 1
                && (episode.first, episode.packets) == (psn, 1)
                && episode.kind != Kind::Reordered
            {
                // The first one was only late: here is the one that the NAK has asked for, after the time
                // that a NAK takes.
                episode.kind = Kind::Reordered;
                episode.text = "It came after packets with higher PSNs, and the responder's NAK \
                                had it sent again."
                    .to_owned();
                episode.last = psn;
                return self.prolong(seen);
            }
            if self.continues(psn, last_frame) {
                return self.prolong(seen);
            }
        }
        let frames = vec![first_frame, last_frame];
        if let Some(refusal) = pending.and_then(|at| self.heed(at)) {
            let text = lost_after(refusal.kind);
            let frames = vec![first_frame, refusal.frame];
            self.begin(seen, refusal.kind, Confidence::Certain, frames, text, found);
        } else if identical && times == 1 && since < AT_ONCE {
            found.stats.retransmitted -= 1;
            found.stats.retransmitted_bytes -= seen.packet.payload_len as u64;
            if let Some(sent) = self.history.get(psn) {
                sent.times -= 1;
            }
            let text = format!(
                "The same packet came again after {}, too soon for a requester to send it again: \
                 the network has duplicated it.",
                time(since)
            );
            self.begin(seen, Kind::Duplicate, Confidence::Likely, frames, text, found);
        } else if answered || (is_read && responses > 0) {
            let what = if is_read { "its response" } else { "the acknowledgement" };
            let text = format!(
                "It was sent again although it was answered: {what} was lost after the place of the \
                 capture, or came too late.{}",
                timer(waited)
            );
            self.begin(seen, Kind::AckLost, Confidence::Likely, frames, text, found);
        } else {
            if let Some(sent) = self.history.get(psn) {
                sent.timeouts += 1;
            }
            let (waited, timer) = (time(waited), timer(waited));
            let text = |why| format!("No answer came for {waited}: {why}.{timer}");
            let lost = text("the request or its answer was lost");
            self.begin(seen, Kind::Timeout, Confidence::Likely, frames, lost, found);
            if let Some(episode) = self.episode.as_mut().filter(|_| !asked) {
                let why = "no request on the way had AckReq set, so the responder need not answer";
                episode.unasked = Some(text(why));
            }
        }
    }

    /// A response asks to send again from a PSN.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        let Refusal { psn, kind, .. } = refusal;
        self.refusals.retain(|r| (r.psn, r.kind) != (psn, kind));
        if self.refusals.len() == MAX_REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(refusal);
    }

    /// The refusals that no request was sent again for yet.
    pub(super) fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        self.refusals.iter()
    }

    /// Takes a refusal that requests are now sent again for, and forgets those before it.
    fn heed(&mut self, at: usize) -> Option<Refusal> {
        self.refusals.drain(..=at).next_back()
    }

    /// Whether a packet that was sent in `last_frame` goes on with the run of packets that are sent
    /// again.
    fn continues(&self, psn: Psn, last_frame: u64) -> bool {
        self.episode.as_ref().is_some_and(|e| {
            !e.is_over
                && !matches!(e.kind, Kind::Duplicate | Kind::Reordered)
                && psn.after(e.last)
                && (last_frame < e.began || psn == e.last.next())
        })
    }

    fn prolong(&mut self, seen: &Seen<'_>) {
        let psn = seen.packet.bth.psn;
        if let Some(episode) = &mut self.episode {
            episode.packets += 1;
            episode.last = psn;
            episode.frames.truncate(7);
            episode.frames.push(seen.number);
        }
    }

    fn begin(
        &mut self,
        seen: &Seen<'_>,
        kind: Kind,
        confidence: Confidence,
        mut frames: Vec<u64>,
        text: String,
        found: &mut Found,
    ) {
        self.close(found);
        let psn = seen.packet.bth.psn;
        frames.push(seen.number);
        let (first, last, began) = (psn, psn, seen.number);
        self.episode = Some(Episode {
            kind,
            confidence,
            first,
            last,
            began,
            frames,
            packets: 1,
            text,
            unasked: None,
            is_over: false,
        });
    }

    /// The request that is sent again and again, up to the end of the capture.
    pub(super) fn unanswered(&mut self) -> Option<Sent> {
        let psn = self.episode.as_ref().filter(|e| !e.is_over)?.first;
        self.history.get(psn).filter(|sent| sent.timeouts >= 3).cloned()
    }

    /// Reports the run of packets that were sent again.
    pub(super) fn close(&mut self, found: &mut Found) {
        // The RNR NAK was reported when it came.
        if let Some(e) = self.episode.take().filter(|e| e.kind != Kind::Rnr) {
            // One who asks otherwise has probably asked here too, by a packet that was lost.
            let (kind, text) = match e.unasked.filter(|_| !self.has_asked) {
                Some(text) => (Kind::AckNotRequested, text),
                None => (e.kind, e.text),
            };
            found.push(kind, e.confidence, e.first, e.frames, e.packets, text);
        }
    }

    pub(super) fn restart(&mut self, found: &mut Found) {
        self.close(found);
        self.report_lost(found);
        *self = Self::default();
        found.restarted = true;
    }

    /// Reports the packets of an unreliable connection that have not come late either.
    pub(super) fn report_lost(&self, found: &mut Found) {
        self.gaps.report_lost(found);
    }

    /// Adds a request that was not there before. `filled`: the gap that it fills was there for so long.
    fn add(
        &mut self,
        seen: &Seen<'_>,
        info: &'static OpInfo,
        filled: Option<Duration>,
        found: &mut Found,
    ) {
        let packet = seen.packet;
        let psn = packet.bth.psn;
        self.check_length(seen, info, found);
        let dma_len = packet.ext.reth.map_or(0, |reth| reth.dma_len);
        let reads = if info.kind == OpKind::ReadRequest { dma_len } else { 0 };
        let (span, span_known) = match self.mtu {
            _ if reads <= 256 => (1, true),
            Some(mtu) => (reads.div_ceil(mtu), true),
            None => (reads.div_ceil(4096).max(1), false),
        };
        let began = match &self.message {
            Some(message) if !info.starts => message.began,
            _ => seen.at,
        };
        self.follow(seen, info, found);
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
            began,
            dma_len,
            icrc: seen.icrc,
            filled,
            responses: 0,
            value: None,
        });
        self.has_asked |= packet.bth.ack_req;
        self.ended += u32::from(info.ends);
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

    /// Follows the message that the packet belongs to.
    fn follow(&mut self, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        let len = seen.packet.payload_len as u64;
        if info.starts {
            let dma_len = seen.packet.ext.reth.map(|reth| reth.dma_len);
            let (kind, began, frame) = (info.kind, seen.at, seen.number);
            self.message = Some(Message { kind, began, frame, bytes: 0, dma_len });
        }
        let Some(message) = &mut self.message else { return };
        message.bytes += len;
        if !info.ends {
            return;
        }
        let Some(message) = self.message.take() else { return };
        if let Some(dma_len) = message.dma_len
            && message.kind == OpKind::Write
            && u64::from(dma_len) != message.bytes
        {
            let text = format!(
                "The RETH of this WRITE announces {dma_len} bytes, and its packets have {}.",
                message.bytes
            );
            let frames = vec![message.frame, seen.number];
            found.add(seen, Kind::Length, Confidence::Certain, frames, text);
        }
    }

    /// The opcode of a request that follows the one before it.
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
        found.add(seen, Kind::OpcodeOrder, Confidence::Certain, frames, text);
    }

    /// The length of a packet against the path MTU.
    fn check_length(&mut self, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        if !matches!(info.kind, OpKind::Send | OpKind::Write) {
            return;
        }
        let len = u32::try_from(seen.packet.payload_len).unwrap_or(u32::MAX);
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
        if wrong && !self.length_reported {
            self.length_reported = true;
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
            found.add(seen, Kind::Length, Confidence::Certain, vec![seen.number], text);
        }
    }

    /// Finds out how many PSNs the last READ takes, from the request after it.
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
                // Requests may be missing between the two.
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
