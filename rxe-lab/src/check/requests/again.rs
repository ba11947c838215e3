//! Explains retransmissions: a refusal, a loss, or a timer that expired.

use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::{OpInfo, OpKind, Service};

use super::super::finding::{Confidence, Kind, Span};
use super::super::gaps::Gap;
use super::super::history::Sent;
use super::super::text::{lost_after, lost_before, lost_unseen, unexplained};
use super::super::{Found, Seen};
use super::{Refusal, Requests};
use crate::words::time;

/// A packet repeated within this time is duplicated by the network.
const AT_ONCE: Duration = Duration::from_micros(20);

/// The network does not delay an answer this long.
const LONG_AGO: Duration = Duration::from_millis(1);

/// The shortest timer of a requester: Local ACK Timeout 1. IBTA 9.7.6.
const SHORTEST_TIMER: Duration = Duration::from_nanos(8192);

/// The most retransmissions of a READ whose beginnings are remembered.
pub(in super::super) const MAX_RESTARTS: usize = 16;

/// The number of measured round trips from which a shortest one is meaningful.
const ENOUGH_TRIPS: u64 = 4;

/// A run of requests that are retransmitted for one reason.
#[derive(Debug)]
pub(super) struct Episode {
    kind: Kind,
    confidence: Confidence,
    first: Psn,
    last: Psn,
    /// The times of the first and the last packet.
    span: Span,
    /// The frame in which the run began.
    began: u64,
    frames: Vec<u64>,
    packets: u64,
    text: String,
    /// If no outstanding request had asked for an answer: the explanation of that.
    unasked: Option<(Confidence, String)>,
    /// If a timer expired: the time of the first retransmission.
    timeout: Option<Duration>,
    /// Whether a NAK caused retransmission of a reordered packet and all after it.
    goes_back: bool,
    /// Whether a new request has ended the run.
    pub(super) is_over: bool,
    /// Whether the cause may be before the capture. The run is not reported then.
    is_unseen: bool,
}

/// A packet whose PSN was sent before, compared with the earlier transmissions.
struct Repetition {
    psn: Psn,
    /// The first PSN of the original request.
    first: Psn,
    /// The number of PSNs that the original request takes.
    span: u32,
    /// The frame of the first transmission.
    first_frame: u64,
    /// The frame of the latest transmission before this one.
    last_frame: u64,
    /// The number of earlier transmissions.
    times: u32,
    /// The time since the latest transmission.
    since: Duration,
    /// How long a timer has run: the time since the latest transmission or acknowledgement.
    waited: Duration,
    /// How long the PSN was missing, if the original came after packets with higher PSNs.
    filled: Option<Duration>,
    /// Whether the ICRC is the same.
    is_identical: bool,
    is_answered: bool,
    /// Whether what was before the capture may explain the retransmission.
    is_open: bool,
    /// Whether the request is a READ or an atomic.
    is_read: bool,
}

impl Repetition {
    /// Returns whether the network duplicated the packet.
    /// No requester can detect a loss this soon.
    fn is_by_network(&self) -> bool {
        self.is_identical && self.times == 1 && self.since < AT_ONCE
    }
}

impl Requests {
    /// Handles a request that fills a gap.
    pub(super) fn filled(
        &mut self,
        gap: &Gap,
        seen: &Seen<'_>,
        info: &'static OpInfo,
        found: &mut Found,
    ) {
        let psn = seen.packet.bth.psn;
        let waited = seen.at.saturating_sub(gap.at);
        let message = self.message.take();
        self.add(seen, info, Some(waited), found);
        self.message = message;
        if let Some(sent) = self.history.get(psn) {
            let span = if sent.span_known { sent.span } else { sent.dma_len.div_ceil(256) };
            self.gaps.cover(psn, span);
        }
        self.fill_with_cut(seen, found);
        let refused = self.refusals.iter().rposition(|r| r.psn == psn);
        if refused.is_none() && self.continues(psn, gap.frame) {
            return self.prolong(seen);
        }
        if let Some(refusal) = refused.and_then(|at| self.heed(at)) {
            let is_damaged = self.flaws.is_damaged(psn);
            let (kind, text) = (refusal.kind, lost_before(refusal.kind, is_damaged));
            return self.begin(
                seen,
                kind,
                Confidence::Likely,
                vec![gap.frame, refusal.frame],
                text,
                found,
            );
        }
        // At the responder, a measured round trip is only the responder's processing time.
        let trip = self.min_rtt.map_or(Duration::from_millis(1), |min| min.max(AT_ONCE));
        let is_doubtful = self.is_doubtful(psn);
        let soon = !is_doubtful && waited < trip;
        let (kind, text) = if soon || info.service == Service::Uc {
            (Kind::Reordered, "It came after packets with higher PSNs.".to_owned())
        } else if is_doubtful {
            (Kind::Unexplained, unexplained("It came after packets with higher PSNs"))
        } else if self.is_too_soon(waited) || self.refused_in > gap.frame {
            return self.belong_to_run(seen);
        } else {
            let lost = match self.flaws.is_damaged(psn) {
                true => "was damaged (wrong ICRC)",
                false => "was lost before the capture point",
            };
            let waited = time(waited);
            let text = format!(
                "Its first transmission {lost}; the requester sent it again after {waited}."
            );
            (Kind::Timeout, text)
        };
        self.begin(seen, kind, Confidence::Likely, vec![gap.frame], text, found);
    }

    /// Assigns the gap after a packet to its frame if that was truncated and may have it.
    fn fill_with_cut(&mut self, seen: &Seen<'_>, found: &mut Found) {
        let psn = seen.packet.bth.psn;
        let missing = self.gaps.beginning_at(psn.next());
        let count = seen.packet.unseen.most(self.path_mtu()).min(missing);
        let Some(sent) = self.history.get(psn).filter(|_| count > 0) else { return };
        let until = psn.next() + count;
        sent.span = sent.span.max(until.diff(sent.psn).unsigned_abs());
        if !std::mem::replace(&mut sent.guessed, true) {
            self.guesses += 1;
        }
        self.gaps.cover(psn.next(), count);
        found.cut.add(seen.number, psn, seen.at);
    }

    /// Handles a request whose PSN was captured before.
    pub(super) fn again(&mut self, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        self.fill_with_cut(seen, found);
        self.check_change(seen, info, found);
        let Some(it) = self.repetition(seen, found) else {
            return self.again_unseen(seen, found);
        };
        if self.goes_on(seen) {
            return;
        }
        let refusal = self.refusal_of(&it);
        if self.joins(seen, &it, refusal) {
            return;
        }
        if let Some(refusal) = refusal.and_then(|at| self.heed(at)) {
            let is_unseen = |first: &Sent| refusal.psn.before(first.psn);
            let (confidence, text) = match self.history.first().is_some_and(is_unseen) {
                true => (Confidence::Likely, lost_unseen(refusal.kind)),
                // The answer to an earlier transmission may have come before the capture.
                false if refusal.kind == Kind::ImpliedNak && it.is_open => {
                    (Confidence::Possible, lost_after(refusal.kind))
                }
                false => (Confidence::Certain, lost_after(refusal.kind)),
            };
            let frames = vec![it.first_frame, refusal.frame];
            return self.begin(seen, refusal.kind, confidence, frames, text, found);
        }
        let Some((kind, confidence, text)) = self.verdict(&it) else {
            return self.belong_to_run(seen);
        };
        if let Some(sent) = self.history.get(it.psn) {
            sent.times -= u32::from(kind == Kind::Duplicate);
            sent.timeouts += u32::from(kind == Kind::Timeout);
        }
        if kind == Kind::Duplicate {
            found.stats.retransmitted -= 1;
            found.stats.retransmitted_bytes -= seen.packet.payload_len as u64;
        }
        self.begin(seen, kind, confidence, vec![it.first_frame, it.last_frame], text, found);
        if kind == Kind::Timeout {
            self.note_timeout(seen, &it);
            if self.is_by_timer_alone(&it) {
                found.stats.timer.add(it.waited);
            }
        }
    }

    /// Handles a retransmission of a request that was sent before the capture began.
    fn again_unseen(&mut self, seen: &Seen<'_>, found: &mut Found) {
        let psn = seen.packet.bth.psn;
        if self.history.trimmed || !self.history.first().is_some_and(|it| psn.before(it.psn)) {
            return;
        }
        self.sends_unseen();
        let refusal = self.refusals.iter().rposition(|r| r.psn == psn);
        if refusal.is_none() && self.continues(psn, 0) {
            return self.prolong(seen);
        }
        match refusal.and_then(|at| self.heed(at)) {
            Some(Refusal { kind, frame, .. }) => {
                let text = lost_unseen(kind);
                self.begin(seen, kind, Confidence::Likely, vec![frame], text, found);
            }
            None if self.is_doubtful(psn) => {
                let (kind, text) = (Kind::Unexplained, unexplained("It was sent again"));
                self.begin(seen, kind, Confidence::Certain, Vec::new(), text, found);
            }
            None => {
                // The cause may be before the capture too.
                let (kind, text) = (Kind::Timeout, String::new());
                self.begin(seen, kind, Confidence::Possible, Vec::new(), text, found);
                if let Some(episode) = &mut self.episode {
                    episode.is_unseen = true;
                }
            }
        }
    }

    /// Compares the opcode of a retransmission with the original.
    fn check_change(&mut self, seen: &Seen<'_>, info: &'static OpInfo, found: &mut Found) {
        let psn = seen.packet.bth.psn;
        let Some(sent) = self.history.get(psn).filter(|sent| sent.psn == psn) else { return };
        // A packet of another service comes from another sender.
        let same = sent.info.opcode == info.opcode || sent.info.service != info.service;
        if same {
            return;
        }
        let text = format!(
            "It was sent as {} and again as {}. A request that is sent again must be the same packet: the \
             responder may have had the first one.",
            sent.info.name, info.name
        );
        let frames = vec![sent.frame, seen.number];
        found.add(seen, Kind::Changed, Confidence::Certain, frames, text);
    }

    /// Adds the details of a timeout to the run that has begun.
    fn note_timeout(&mut self, seen: &Seen<'_>, it: &Repetition) {
        let asked = self.history.trimmed || !self.gaps.is_empty() || self.history.asks_for_answer();
        let why = "no request on the way had AckReq set, so the responder need not answer";
        // A request from before the capture may have asked.
        let confidence = if it.is_open { Confidence::Possible } else { Confidence::Likely };
        let unasked = (!asked).then(|| (confidence, self.no_answer(it, why)));
        let timeout = Some(seen.at);
        if let Some(episode) = &mut self.episode {
            (episode.unasked, episode.timeout) = (unasked, timeout);
        }
    }

    /// Counts a retransmission and compares it with the earlier transmissions.
    /// `None` if these are unknown: they precede the capture, or the queue pair was reset.
    fn repetition(&mut self, seen: &Seen<'_>, found: &mut Found) -> Option<Repetition> {
        let psn = seen.packet.bth.psn;
        self.reaches(seen);
        let answered = self.history.is_answered(psn);
        let trimmed = self.history.trimmed;
        let is_open = self.is_open(psn);
        let Some(sent) = self.history.get(psn) else {
            if trimmed {
                self.restart(found);
            }
            return None;
        };
        let it = Repetition {
            psn,
            first: sent.psn,
            span: sent.span,
            first_frame: sent.frame,
            last_frame: sent.last_frame,
            times: sent.times,
            since: seen.at.saturating_sub(sent.last_at),
            waited: seen.at.saturating_sub(sent.last_at.max(self.progress)),
            filled: sent.filled,
            is_identical: sent.icrc == seen.icrc,
            is_answered: answered,
            is_open,
            is_read: sent.info.kind == OpKind::ReadRequest || sent.info.is_atomic(),
        };
        // The retransmission of a READ may begin in the middle of it and end before its end.
        let at = psn.diff(sent.psn).unsigned_abs();
        sent.responses = at;
        let asked = (at, seen.packet.ext.reth.map_or(0, |reth| reth.dma_len));
        if sent.info.kind == OpKind::ReadRequest && sent.restarts.len() < MAX_RESTARTS {
            sent.restarts.extend((!sent.restarts.contains(&asked)).then_some(asked));
        }
        sent.times += 1;
        sent.last_frame = seen.number;
        sent.last_at = seen.at;
        found.stats.retransmitted += 1;
        found.stats.retransmitted_bytes += seen.packet.payload_len as u64;
        Some(it)
    }

    /// Returns the index of the refusal that caused the retransmission.
    fn refusal_of(&self, it: &Repetition) -> Option<usize> {
        let trimmed = self.history.trimmed;
        let oldest = self.history.first().map(|first| first.psn);
        let named = self.refusals.iter().rposition(|r| {
            let own = u32::try_from(r.psn.diff(it.first)).is_ok_and(|at| at < it.span);
            // The missing packet may have arrived meanwhile.
            let since = r.frame > it.last_frame && !r.psn.after(it.psn) && !it.is_answered;
            // Packets lost before the capture began are retransmitted first, and then everything
            // after them.
            let begun = !trimmed && oldest.is_some_and(|oldest| r.psn.before(oldest));
            r.psn == it.psn
                || r.kind == Kind::ImpliedNak && (own || since)
                || matches!(r.kind, Kind::SequenceNak | Kind::Rnr) && begun && since
        });
        // Some requesters go back beyond the PSN in the NAK, to the first unanswered request.
        named.or_else(|| {
            let is_before = |r: &Refusal| r.kind == Kind::SequenceNak && it.psn.before(r.psn);
            if it.is_answered || it.is_by_network() {
                None
            } else {
                self.refusals.iter().rposition(is_before)
            }
        })
    }

    /// Joins the retransmission to the current run if it continues the run. Returns whether it did.
    /// `refusal` is the index of the refusal that caused the retransmission.
    fn joins(&mut self, seen: &Seen<'_>, it: &Repetition, refusal: Option<usize>) -> bool {
        if refusal.is_none()
            && let Some(episode) = &mut self.episode
            && it.filled.is_some_and(|gap| gap < it.since)
            && it.times == 1
            && (episode.first, episode.packets) == (it.psn, 1)
            && episode.kind != Kind::Reordered
        {
            // The original was only late. This is the retransmission that the NAK asked for, one
            // NAK delay later. The packets after it are retransmitted for this NAK too.
            (episode.goes_back, episode.is_over, episode.began) = (true, false, seen.number);
            episode.kind = Kind::Reordered;
            episode.text = "It came after packets with higher PSNs, and the responder's NAK \
                            had it sent again."
                .to_owned();
            episode.last = it.psn;
            self.prolong(seen);
            return true;
        }
        // The run of an earlier NAK continues past the PSN of a later NAK. The retransmission for
        // the later NAK begins at that PSN again.
        let passes = refusal.is_none_or(|at| {
            self.refusals[at].kind == Kind::SequenceNak
                && self.episode.as_ref().is_some_and(|e| it.psn == e.last.next())
        });
        let joins = passes && self.continues(it.psn, it.last_frame);
        if joins {
            self.prolong(seen);
        }
        joins
    }

    /// Explains a retransmission that no refusal asked for.
    /// `None` if there is no explanation: no timer expires that soon.
    fn verdict(&self, it: &Repetition) -> Option<(Kind, Confidence, String)> {
        let likely = if it.is_open { Confidence::Possible } else { Confidence::Likely };
        if it.is_by_network() {
            let text = format!(
                "The same packet came again after {}, too soon for a requester to send it again: \
                 the network has duplicated it.",
                time(it.since)
            );
            return Some((Kind::Duplicate, likely, text));
        }
        if self.is_doubtful(it.psn) {
            let text = unexplained("It was sent again");
            return Some((Kind::Unexplained, Confidence::Certain, text));
        }
        let in_part = it.is_read && self.until.is_some_and(|until| it.psn.before(until));
        if it.is_answered || in_part {
            let what = if it.is_read { "its response" } else { "the acknowledgement" };
            let text = format!(
                "It was sent again although it was answered: {what} was lost after the place of the \
                 capture, or came too late."
            );
            return Some((Kind::AckLost, likely, text));
        }
        // A NAK came since, so a timer need not have expired.
        if self.is_too_soon(it.waited) || self.refused_in > it.last_frame {
            return None;
        }
        let text = self.no_answer(it, "the request or its answer was lost");
        // A NAK from before the capture would have been heeded sooner.
        let likely = if it.waited > LONG_AGO { Confidence::Likely } else { likely };
        Some((Kind::Timeout, likely, text))
    }

    /// Returns whether no timer expires within this time: no requester gives the answer less than
    /// twice the time that it has taken.
    fn is_too_soon(&self, waited: Duration) -> bool {
        waited < SHORTEST_TIMER || self.max_rtt.is_some_and(|trip| waited < trip * 2)
    }

    /// Returns whether nothing but a timer can have caused the retransmission.
    fn is_by_timer_alone(&self, it: &Repetition) -> bool {
        self.refusals.is_empty() && self.gaps.is_empty() && it.filled.is_none()
    }

    /// Describes a retransmission caused by a timer.
    fn no_answer(&self, it: &Repetition, why: &str) -> String {
        format!("No answer came for {}: {why}.", time(it.waited))
    }

    /// Handles the first answer after a timeout.
    /// If it comes much sooner than any answer has come, it answers the original, and was late.
    /// `until` is the PSN after the acknowledged ones, and `trips` the number of measured round trips.
    pub(in super::super) fn answered(&mut self, seen: &Seen<'_>, until: Psn, trips: u64) {
        let is_at_point = self.is_at_point(seen);
        let Some(episode) = self.episode.as_mut().filter(|e| until.after(e.first)) else { return };
        let Some(at) = episode.timeout.take() else { return };
        let (Some(min), Some(max)) = (self.min_rtt, self.max_rtt) else { return };
        // Times of two capture points are not compared.
        if !is_at_point {
            return;
        }
        let Some(sent) = self.history.get(seen.packet.bth.psn) else { return };
        let (since, took) = (seen.at.saturating_sub(at), seen.at.saturating_sub(sent.began));
        // An answer is late only if it comes within half of the shortest round trip after the
        // retransmission: one to a packet sent shortly before the timer expired is in time.
        if trips < ENOUGH_TRIPS || since * 2 >= min || took <= max || sent.times < 2 {
            return;
        }
        let (since, took, min) = (time(since), time(took), time(min));
        episode.kind = Kind::AckLate;
        episode.unasked = None;
        episode.frames.truncate(7);
        episode.frames.push(seen.number);
        episode.text = format!(
            "The answer came {since} after the request was sent again, too soon to be one to that (the \
             shortest round trip is {min}): it is the answer to the first transmission, after {took}. \
             Nothing was lost, the timer is too short."
        );
    }

    /// Removes the refusal that caused the present retransmissions, and all older ones.
    fn heed(&mut self, at: usize) -> Option<Refusal> {
        self.refusals.drain(..=at).next_back()
    }

    /// Returns whether a packet last sent in `last_frame` continues the current run.
    fn continues(&self, psn: Psn, last_frame: u64) -> bool {
        self.episode.as_ref().is_some_and(|e| {
            !e.is_over
                && (e.goes_back || !matches!(e.kind, Kind::Duplicate | Kind::Reordered))
                && psn.after(e.last)
                && (last_frame < e.began || psn == e.last.next())
        })
    }

    /// Adds a packet to the current run.
    fn prolong(&mut self, seen: &Seen<'_>) {
        let psn = seen.packet.bth.psn;
        if let Some(episode) = &mut self.episode {
            episode.packets += 1;
            episode.span.1 = seen.at;
            episode.last = psn;
            episode.frames.truncate(7);
            episode.frames.push(seen.number);
        }
    }

    /// Adds a packet that came too soon for a timer to the current run. If there is none, its cause is
    /// not known.
    fn belong_to_run(&mut self, seen: &Seen<'_>) {
        if self.episode.as_ref().is_some_and(|e| !e.is_over) {
            self.prolong(seen);
        }
    }

    /// Ends the current run and begins another one.
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
            span: (seen.at, seen.at),
            began,
            frames,
            packets: 1,
            text,
            unasked: None,
            timeout: None,
            goes_back: false,
            is_over: false,
            is_unseen: false,
        });
    }

    /// Returns the request that is retransmitted repeatedly up to the end of the capture.
    pub(in super::super) fn unanswered(&mut self) -> Option<Sent> {
        let psn = self.episode.as_ref().filter(|e| !e.is_over)?.first;
        self.history.get(psn).filter(|sent| sent.timeouts >= 3).cloned()
    }

    /// Reports the current run of retransmissions and ends it.
    pub(in super::super) fn close(&mut self, found: &mut Found) {
        // The RNR NAK itself was already reported.
        if let Some(e) = self.episode.take().filter(|e| e.kind != Kind::Rnr && !e.is_unseen) {
            // A requester that sets AckReq elsewhere probably set it here too, in a packet that was lost.
            let (kind, confidence, text) = match e.unasked.filter(|_| !self.has_asked) {
                Some((confidence, text)) => (Kind::AckNotRequested, confidence, text),
                None => (e.kind, e.confidence, e.text),
            };
            found.push(kind, confidence, (e.first, e.span), e.frames, text).packets = e.packets;
        }
    }
}
