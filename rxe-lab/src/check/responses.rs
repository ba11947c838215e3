//! Compares the responses of one direction with the requests that they answer.

use std::collections::VecDeque;
use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::{Aeth, NakCode, OpInfo, OpKind, Position, Service, Syndrome};

use super::finding::{Confidence, Kind};
use super::history::{History, Sent};
use super::latency::Latency;
use super::msn::Msn;
use super::requests::{MAX_RESTARTS, Refusal, Requests};
use super::trips::Sendings;
use super::{Found, Seen};
use crate::words;

/// The number of response packets that are remembered to recognise duplicates.
const MAX_LAST: usize = 32;

/// The network does not delay a packet this long behind a later one.
const LONG_AGO: Duration = Duration::from_millis(1);

/// The responses of one direction.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// The PSN after the newest that is answered.
    answered: Option<Psn>,
    msn: Msn,
    /// The last NAK that was reported.
    nak: Option<(Psn, NakCode)>,
    /// The PSN of the last RNR NAK.
    rnr: Option<Psn>,
    /// The latest response packets of READs and atomics: PSN, frame, ICRC.
    last: VecDeque<(Psn, u64, u32)>,
    latency: Latency,
}

impl Responses {
    /// Follows a response to `requests`.
    pub(super) fn take(
        &mut self,
        seen: &Seen<'_>,
        info: &'static OpInfo,
        requests: &mut Requests,
        found: &mut Found,
    ) {
        let psn = seen.packet.bth.psn;
        requests.unready.answered(psn, seen.packet.is_nak());
        requests.settle_cut(psn.next(), found);
        if !seen.packet.is_nak() {
            requests.is_served(psn, found);
        }
        let Some(next) = requests.next else { return };
        let open_read = requests.history.last().is_some_and(|last| !last.span_known);
        if psn.diff(next) >= 0 && !open_read {
            // The response answers a request that was not captured, or the capture is not in wire order.
            self.msn = Msn::default();
            return;
        }
        if info.service == Service::Rc
            && let Some(Aeth { syndrome: Syndrome::Ack { credits }, msn }) = seen.packet.ext.aeth
        {
            found.stats.credits.add(credits);
            let exact = requests.guesses == 0 && requests.gaps.is_empty();
            let Requests { credits: all, history, .. } = requests;
            all.given(seen, (credits, msn), history, exact, found);
        }
        let is_old = self.answered.is_some_and(|answered| psn.before(answered));
        self.msn.check(seen, info, is_old, requests, found);
        match (info.kind, seen.packet.ext.aeth.map(|aeth| aeth.syndrome)) {
            (OpKind::Acknowledge, Some(Syndrome::Nak(code))) => {
                self.refused(seen, code, requests, found);
            }
            (OpKind::Acknowledge, Some(Syndrome::RnrNak { timer })) => {
                self.progress(seen, psn, requests, found);
                let again = self.rnr.replace(psn) == Some(psn);
                requests.refuse(Refusal { psn, frame: seen.number, kind: Kind::Rnr });
                let Requests { unready, history, .. } = &mut *requests;
                unready.refused(seen, timer.duration(), history);
                let text = format!(
                    "The receiver had no receive request; it asks to try again after {}.",
                    words::rnr_timer(timer.duration())
                );
                let frames = frames(&mut requests.history, psn, seen.number);
                found.add(seen, Kind::Rnr, Confidence::Certain, frames, text);
                if info.service == Service::Rc {
                    // A second RNR NAK may have been in flight when the credits were granted.
                    let exact = requests.guesses == 0 && requests.gaps.is_empty() && !again;
                    let Requests { credits, history, .. } = requests;
                    credits.refused(seen, history, exact, found);
                }
            }
            (OpKind::Acknowledge, Some(Syndrome::Ack { .. })) => {
                found.stats.acks.count += 1;
                self.progress(seen, psn.next(), requests, found);
            }
            (OpKind::ReadResponse, _) => self.read(seen, info, requests, found),
            (OpKind::AtomicAcknowledge, _) => self.atomic(seen, requests, found),
            _ => {}
        }
        let unseen = seen.packet.unseen;
        if info.kind != OpKind::Acknowledge && unseen.most(requests.path_mtu()) > 0 {
            requests.hide_responses(seen, unseen.most(requests.path_mtu()));
            if unseen.is_certain(requests.path_mtu()) {
                found.cut.add(seen.number, psn, seen.at);
            }
        }
    }

    /// Follows a NAK.
    fn refused(
        &mut self,
        seen: &Seen<'_>,
        code: NakCode,
        requests: &mut Requests,
        found: &mut Found,
    ) {
        let psn = seen.packet.bth.psn;
        if self.is_of_repetition(seen, requests) {
            let text = "The NAK refuses a request that was acknowledged long before and came again: a \
                        responder acknowledges what it has carried out.";
            let frames = frames(&mut requests.history, psn, seen.number);
            found.add(seen, Kind::Response, Confidence::Likely, frames, text.to_owned());
            return;
        }
        self.progress(seen, psn, requests, found);
        if code == NakCode::PsnSequenceError {
            let kind = Kind::SequenceNak;
            // Kernel `rdma_rxe` also sends sequence NAKs for requests that follow one answered with
            // an RNR NAK.
            let kind = if self.rnr == Some(psn) { Kind::Rnr } else { kind };
            requests.refuse(Refusal { psn, frame: seen.number, kind });
            return;
        }
        if self.nak.replace((psn, code)) == Some((psn, code)) {
            return;
        }
        let (kind, text) = match code {
            NakCode::RemoteAccessError => {
                (Kind::RemoteAccess, "The responder refuses the access (NAK, remote access error)")
            }
            NakCode::RemoteOperationalError => (
                Kind::RemoteOperational,
                "The responder cannot go on (NAK, remote operational error)",
            ),
            _ => (Kind::InvalidRequest, "The responder refuses the request (NAK, invalid request)"),
        };
        let why = requests.flaws.of(psn).filter(|_| kind == Kind::InvalidRequest);
        let text = why.map_or_else(|| format!("{text}."), |why| format!("{text}: {why}."));
        let frames = frames(&mut requests.history, psn, seen.number);
        requests.ends(seen, kind, text, frames, found);
    }

    /// Returns whether a NAK refuses a SEND or WRITE that had already been acknowledged.
    /// A NAK shortly after the acknowledgement may have been overtaken by it. A READ is executed
    /// again, which may no longer be permitted.
    fn is_of_repetition(&self, seen: &Seen<'_>, requests: &mut Requests) -> bool {
        let psn = seen.packet.bth.psn;
        let progress = requests.progress;
        let Some(trip) = requests.max_rtt else { return false };
        // Times of two capture points are not compared.
        if !requests.is_at_point(seen) {
            return false;
        }
        let is_late = seen.at.saturating_sub(progress) > LONG_AGO.max(trip * 8);
        self.answered.is_some_and(|answered| psn.before(answered))
            && is_late
            && requests.history.get(psn).is_some_and(|sent| {
                let writes = matches!(sent.info.kind, OpKind::Send | OpKind::Write);
                writes && sent.times > 1 && sent.last_at > progress
            })
    }

    /// Follows a READ response.
    fn read(
        &mut self,
        seen: &Seen<'_>,
        info: &'static OpInfo,
        requests: &mut Requests,
        found: &mut Found,
    ) {
        let psn = seen.packet.bth.psn;
        let len = u32::try_from(seen.packet.payload_len).unwrap_or(u32::MAX);
        let may_be_several = seen.packet.unseen.most(requests.path_mtu()) > 0;
        if !may_be_several {
            learn_span(requests, psn, len, info.position);
        }
        let mtu = requests.mtu;
        let Some(sent) = requests.history.get(psn) else { return };
        let at = psn.diff(sent.psn).unsigned_abs();
        let missing = sent.psn + sent.responses;
        let is_behind = sent.responses < at;
        let unseen = requests.unseen_response(missing, psn).filter(|_| is_behind);
        let Some(sent) = requests.history.get(psn) else { return };
        if let Some(it) = unseen {
            sent.responses = at;
            found.cut.add(it.frame, it.psn, it.at);
        }
        let is_whole = info.position == Position::Only && at == 0;
        // The answer confirms or refutes the guess.
        let packets = match mtu {
            Some(mtu) => Some(sent.dma_len.div_ceil(mtu).max(1)),
            None => (is_whole && len == sent.dma_len).then_some(1),
        };
        if sent.guessed && sent.info.kind == OpKind::ReadRequest && packets == Some(sent.span) {
            sent.guessed = false;
            requests.guesses -= 1;
        }
        let wrong = wrong_response(sent, info, at, len, mtu).filter(|_| !may_be_several);
        // A requester accepts responses in order only; responses received earlier stay valid.
        let is_next = u32::from(at == sent.responses);
        sent.responses += is_next;
        let (once, first_frame) = (sent.times == 1, sent.frame);
        if let Some(text) = wrong {
            let frames = vec![first_frame, seen.number];
            // The response may answer a longer READ from before the capture, of which this is the rest.
            let is_open = requests.is_open(psn);
            let confidence = if is_open { Confidence::Possible } else { Confidence::Certain };
            return found.add(seen, Kind::Response, confidence, frames, text);
        }
        if self.came_twice(seen, once, requests, found) {
            if let Some(sent) = requests.history.get(psn) {
                sent.responses -= is_next;
            }
            return;
        }
        if self.answered.is_none_or(|answered| !psn.before(answered)) {
            found.stats.bytes += u64::from(len);
        }
        if !self.progress(seen, psn.next(), requests, found)
            && let Some(sent) = requests.history.get(psn)
        {
            sent.responses -= is_next;
        }
    }

    /// Follows an atomic acknowledgement.
    fn atomic(&mut self, seen: &Seen<'_>, requests: &mut Requests, found: &mut Found) {
        let psn = seen.packet.bth.psn;
        let Some(sent) = requests.history.get(psn) else { return };
        let frame = sent.frame;
        if !sent.info.is_atomic() {
            if sent.guessed {
                return;
            }
            let text = format!("ATOMIC ACKNOWLEDGE answers {}.", sent.info.name);
            let frames = vec![frame, seen.number];
            return found.add(seen, Kind::Response, Confidence::Certain, frames, text);
        }
        let is_next = u32::from(sent.responses == 0);
        sent.responses += is_next;
        let once = sent.times == 1;
        if let Some(value) = seen.packet.ext.atomic_ack {
            match sent.value {
                Some((before, answer)) if before != value => {
                    let text = format!(
                        "The same atomic was answered with 0x{before:x}, then with 0x{value:x}: it \
                         was carried out twice, or its result was not kept."
                    );
                    let frames = vec![frame, answer, seen.number];
                    found.add(seen, Kind::Atomic, Confidence::Certain, frames, text);
                }
                Some(_) => {}
                None => sent.value = Some((value, seen.number)),
            }
        }
        if !self.came_twice(seen, once, requests, found)
            && !self.progress(seen, psn.next(), requests, found)
            && let Some(sent) = requests.history.get(psn)
        {
            sent.responses -= is_next;
        }
    }

    /// Returns whether a response came before although its request was sent once.
    fn came_twice(
        &mut self,
        seen: &Seen<'_>,
        once: bool,
        requests: &mut Requests,
        found: &mut Found,
    ) -> bool {
        let psn = seen.packet.bth.psn;
        let it = (psn, seen.icrc);
        let before = self.last.iter().find(|(psn, _, icrc)| (*psn, *icrc) == it).copied();
        if self.last.len() == MAX_LAST {
            self.last.pop_front();
        }
        self.last.push_back((psn, seen.number, seen.icrc));
        match before {
            Some((_, frame, _)) if once => {
                let text = "The same response came again, although its request was sent once: the \
                            network has duplicated it.";
                let frames = vec![frame, seen.number];
                // The request may have been sent before the capture too.
                let is_open = requests.is_open(psn);
                let confidence = if is_open { Confidence::Possible } else { Confidence::Likely };
                found.add(seen, Kind::Duplicate, confidence, frames, text.to_owned());
                true
            }
            _ => false,
        }
    }

    /// Notes that everything before `until` is answered.
    /// Returns `false` if an earlier answer is missing, so that a requester discards this one.
    fn progress(
        &mut self,
        seen: &Seen<'_>,
        until: Psn,
        requests: &mut Requests,
        found: &mut Found,
    ) -> bool {
        if self.answered.is_some_and(|answered| until.diff(answered) <= 0) {
            return true;
        }
        let own = seen.packet.bth.psn;
        // An ACK does not answer the READ or atomic with its own PSN.
        let by_ack = seen.packet.info.is_some_and(|info| info.kind == OpKind::Acknowledge);
        let end = if by_ack { until } else { own };
        if let Some((psn, first)) = missing_response(requests, own, end) {
            let known = requests
                .refusals()
                .any(|r| r.kind == Kind::ImpliedNak && !r.psn.before(first) && !r.psn.after(own));
            if !known {
                requests.refuse(Refusal { psn, frame: seen.number, kind: Kind::ImpliedNak });
            }
            return false;
        }
        self.answered = Some(until);
        requests.answered(seen, until, found.stats.round_trips.count());
        requests.answered_until(until, seen);
        self.count_answered(seen, until, requests, found);
        true
    }

    /// Counts the requests answered up to `until`, and the times they took.
    fn count_answered(
        &mut self,
        seen: &Seen<'_>,
        until: Psn,
        requests: &mut Requests,
        found: &mut Found,
    ) {
        let own = seen.packet.bth.psn;
        let stats = &mut found.stats;
        let mut sendings = Sendings::default();
        let (mut packets, mut messages, mut earlier) = (0, 0, 0);
        requests.history.answer(until, |sent| {
            packets += 1;
            messages += u64::from(sent.info.ends);
            let is_it = sent.psn + (sent.span - 1) == own;
            earlier += u64::from(!is_it);
            if let Some(began) = self.latency.acknowledged(sent) {
                sendings.messages.push(began);
            }
            // Only for a request that was sent once is it known which transmission is answered (Karn).
            if sent.times == 1 && sent.asks_for_answer() && is_it && sent.span == 1 {
                sendings.trip = Some(sent.last_at);
            }
        });
        let times = match requests.is_at_point(seen) {
            true => Some((sendings, seen.at)),
            false => requests.trips.answered(seen, sendings),
        };
        if let Some((sendings, at)) = times {
            requests.progress = requests.progress.max(at);
            requests.took(&sendings, at, stats);
        }
        match seen.packet.info.map(|info| info.kind) {
            Some(OpKind::Acknowledge) if !seen.packet.is_nak() => {
                stats.acks.add(packets, messages);
            }
            _ => stats.acks.implied += earlier,
        }
    }
}

/// Finds a READ or atomic whose responses are incomplete although a later response came.
/// The candidates are the first unanswered one before `end` and the request of response `own`. Returns
/// the missing PSN and the first PSN of the request.
fn missing_response(requests: &mut Requests, own: Psn, end: Psn) -> Option<(Psn, Psn)> {
    // A READ or atomic must be answered by its own responses, not by an ACK.
    let before = |sent: &&Sent| (sent.psn + (sent.span - 1)).before(end);
    let missing = requests.history.unanswered().take_while(before).find(|sent| {
        let reads = matches!(sent.info.kind, OpKind::ReadRequest) || sent.info.is_atomic();
        let (first, end) = (sent.psn + sent.responses, sent.psn + sent.span);
        let is_unseen = || requests.unseen_response(first, end).is_some();
        reads && sent.responses < sent.span && !requests.is_doubtful(sent.psn) && !is_unseen()
    });
    if let Some(sent) = missing {
        return Some((sent.psn + sent.responses, sent.psn));
    }
    let doubtful = requests.is_doubtful(own);
    let sent = requests.history.get(own)?;
    let at = own.diff(sent.psn).unsigned_abs();
    let short = sent.info.kind == OpKind::ReadRequest;
    (short && !sent.guessed && !doubtful && sent.responses <= at)
        .then(|| (sent.psn + sent.responses.saturating_sub(1), sent.psn))
}

/// Learns the path MTU, and the span of the last request, from a READ response.
fn learn_span(requests: &mut Requests, psn: Psn, len: u32, position: Position) {
    let possible = len.is_power_of_two() && (256..=4096).contains(&len);
    if is_full(position) && possible && requests.mtu.is_none() {
        requests.mtu = Some(len);
    }
    let Some(last) = requests.history.last().filter(|last| !last.span_known) else { return };
    if let Some(mtu) = requests.mtu {
        last.span = last.dma_len.div_ceil(mtu).max(1);
    } else if position == Position::Only && (last.psn, last.dma_len) == (psn, len) {
        // An answer in one packet reveals the span, though not the path MTU.
        last.span = 1;
    } else {
        return;
    }
    last.span_known = true;
    requests.next = Some(last.psn + last.span);
}

/// Returns whether a packet at this position of a message is filled to the path MTU.
fn is_full(position: Position) -> bool {
    matches!(position, Position::First | Position::Middle)
}

/// Explains why a response cannot be packet `at` of the answer to this request.
fn wrong_response(
    sent: &Sent,
    info: &OpInfo,
    at: u32,
    len: u32,
    mtu: Option<u32>,
) -> Option<String> {
    let kind = sent.info.kind;
    if sent.is_cut && info.kind == OpKind::ReadResponse {
        return None;
    }
    if !matches!(kind, OpKind::ReadRequest | OpKind::Flush | OpKind::AtomicWrite) {
        (!sent.guessed).then(|| format!("{} answers {}.", info.name, sent.info.name))
    } else if is_full(info.position) && !sent.guessed && mtu.is_some_and(|mtu| mtu != len) {
        Some(format!("{} has {len} bytes, not a path MTU.", info.name))
    } else if kind == OpKind::ReadRequest {
        wrong_place(sent, info, at, len, mtu)
    } else {
        None
    }
}

/// Explains why a response of `len` bytes cannot be packet `at` of the answer to a READ.
/// A retransmission of the READ may begin in its middle and ask for less.
fn wrong_place(sent: &Sent, info: &OpInfo, at: u32, len: u32, mtu: Option<u32>) -> Option<String> {
    let (name, all) = (info.name, sent.dma_len);
    if sent.restarts.len() == MAX_RESTARTS {
        return None;
    }
    let asked = || [(0, all)].into_iter().chain(sent.restarts.iter().copied());
    // This check does not depend on the path MTU.
    let is_asked = |it: (u32, u32)| it == (0, len);
    if info.position == Position::Only && at == 0 && !asked().any(is_asked) {
        return Some(format!("{name} has {len} bytes; the READ is of {all} bytes."));
    }
    if sent.guessed || !sent.span_known {
        return None;
    }
    // The bytes left from this packet on, for the READ or a retransmission of it.
    let left = |(from, bytes): (u32, u32)| {
        let place = at.checked_sub(from)?;
        let packets = match mtu {
            Some(mtu) => bytes.div_ceil(mtu).max(1),
            None => sent.span.checked_sub(from)?,
        };
        let fits = place < packets && info.position == Position::of(place, packets);
        let before = mtu.map_or(0, |mtu| place.saturating_mul(mtu));
        fits.then(|| bytes.saturating_sub(before))
    };
    let Some(first) = asked().find_map(left) else {
        let (nth, packets) = (at + 1, sent.span);
        return Some(format!("{name} is packet {nth} of {packets} to a READ of {all} bytes."));
    };
    let is_last = matches!(info.position, Position::Last | Position::Only);
    let is_right = || asked().filter_map(left).any(|left| left == len);
    (is_last && (mtu.is_some() || at == 0) && !is_right())
        .then(|| format!("{name} has {len} bytes; the READ of {all} bytes has {first} left."))
}

/// Returns the frames of the request with this PSN and of the response.
fn frames(history: &mut History, psn: Psn, frame: u64) -> Vec<u64> {
    let request = history.get(psn).map(|sent| sent.last_frame);
    request.into_iter().chain([frame]).collect()
}
