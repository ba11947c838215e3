//! Compares the answers of a live peer with the recorded ones. IBTA 9.7.5.
//!
//! A responder may acknowledge without being asked, and one acknowledgement may cover several
//! requests. So for positive acknowledgements only the highest acknowledged PSN counts. NAKs, READ
//! responses and atomic acknowledgements must be the recorded ones, in the recorded order. A request
//! that was sent twice may be answered twice.

use std::collections::VecDeque;

use super::outgoing::Outgoing;
use super::plan::{Expected, Plan};
use crate::answer::{Said, Seen};

/// A difference between an answer and the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The frame and description of the answered request.
    pub request: Option<(u64, String)>,
    /// The frame and description of the recorded answer; `None` if no answer was recorded.
    pub recorded: Option<(u64, String)>,
    /// The answer that came; `None` if none came.
    pub came: Option<String>,
    /// Whether the peer's queue pair entered the error state and the recorded one did not.
    pub is_fatal: bool,
}

/// Compares answers with the recording.
#[derive(Debug)]
pub struct Comparison {
    /// The recorded answers that have not come yet.
    expected: VecDeque<Expected>,
    /// The answers that were not compared yet.
    came: VecDeque<Seen>,
    /// The highest acknowledged PSN.
    acknowledged: i32,
    /// The highest PSN that the peer may acknowledge.
    sent: i32,
    /// The highest PSN that the peer must acknowledge.
    asked: i32,
    /// How many more answers to retransmitted requests may come.
    repeats: u32,
    /// The latest requests: PSN, number of PSNs, frame, description.
    requests: VecDeque<(i32, i32, u64, String)>,
    /// The latest acknowledgements: PSN and MSN.
    acks: VecDeque<(i32, u32)>,
    /// The difference between the peer's MSNs and the recorded ones.
    msn: Option<u32>,
    /// The highest PSN of an answer whose MSN was compared.
    msn_at: i32,
    /// The number of recorded answers that came.
    pub same: u64,
    /// The number of READ responses and atomic acknowledgements that were not recorded.
    /// These answers were lost before the capture point, or the recording had ended.
    pub unrecorded: u64,
    found: VecDeque<Difference>,
}

/// The number of requests that are remembered.
const REQUESTS: usize = 4096;

/// The number of acknowledgements that are remembered.
const ACKS: usize = 256;

/// The most answers that wait to be compared.
const MAX_EARLY: usize = 4096;

impl Comparison {
    /// Starts a comparison before anything is sent.
    pub fn new(plan: &Plan) -> Self {
        Self {
            expected: VecDeque::new(),
            came: VecDeque::new(),
            acknowledged: -1,
            sent: -1,
            asked: -1,
            repeats: 0,
            requests: VecDeque::new(),
            acks: VecDeque::new(),
            msn: plan.is_exact.then_some(0),
            msn_at: -1,
            same: 0,
            unrecorded: 0,
            found: VecDeque::new(),
        }
    }

    /// Notes that a packet was sent.
    pub fn sent(&mut self, packet: &Outgoing) {
        if self.requests.len() == REQUESTS {
            self.requests.pop_front();
        }
        self.requests.push_back((packet.psn, packet.span, packet.frame, packet.words.clone()));
        let last = packet.psn.saturating_add(packet.span - 1);
        if packet.is_met {
            self.sent = self.sent.max(last);
        }
        if packet.asks && packet.is_executed {
            self.asked = self.asked.max(last);
        }
        if packet.is_duplicate {
            self.repeats = self.repeats.saturating_add(packet.span.unsigned_abs());
        }
    }

    /// Adds a recorded answer at this point of the recording.
    pub fn expect(&mut self, expected: &Expected) {
        self.expected.push_back(expected.clone());
        self.compare();
    }

    /// Adds a packet that came from the peer.
    pub fn came(&mut self, seen: Seen) {
        if self.came.len() < MAX_EARLY {
            self.came.push_back(seen);
        }
        self.compare();
    }

    /// Adds a packet that no device may send; `why` describes its error.
    pub fn malformed(&mut self, why: String) {
        let request = self.requests.back().map(|(.., frame, words)| (*frame, words.clone()));
        self.found.push_back(Difference {
            request,
            recorded: None,
            came: Some(why),
            is_fatal: false,
        });
    }

    /// Returns the next difference.
    pub fn difference(&mut self) -> Option<Difference> {
        self.found.pop_front()
    }

    /// Returns whether a recorded answer is due that has not come.
    pub fn is_waiting(&self) -> bool {
        self.expected.iter().any(|expected| self.is_due(expected))
    }

    /// Gives up waiting: the first answer that is due becomes a difference.
    pub fn give_up(&mut self) {
        let due = self.expected.iter().position(|expected| self.is_due(expected));
        let Some(expected) = due.and_then(|at| self.expected.remove(at)) else { return };
        self.differs(Some(expected), None);
        self.compare();
    }

    /// Ends the comparison: answers that were not recorded become differences.
    pub fn finish(&mut self) {
        while self.is_waiting() {
            self.give_up();
        }
        self.expected.clear();
        while let Some(seen) = self.came.pop_front() {
            if self.is_new_data(&seen.said) {
                self.unrecorded += 1;
            } else if !self.is_repeat(&seen.said) {
                self.differs(None, Some(&seen));
            }
        }
    }

    /// Returns whether the packet answers an outstanding READ or atomic.
    fn is_new_data(&self, said: &Said) -> bool {
        let is_data = matches!(said, Said::Read(..) | Said::Atomic(..));
        is_data && said.answered().is_some_and(|psn| self.acknowledged < psn && psn <= self.sent)
    }

    /// Returns whether the peer must have sent this answer by now.
    /// A positive acknowledgement is due only as far as one was requested.
    fn is_due(&self, expected: &Expected) -> bool {
        match expected.seen.said {
            Said::Ack(psn) => self.acknowledged < self.asked.min(psn),
            Said::Request(..) | Said::Other(..) => false,
            _ => true,
        }
    }

    fn compare(&mut self) {
        while self.compare_first() {}
    }

    /// Compares the first packet that came, or handles a recorded answer that needs none.
    /// Returns whether anything was compared.
    fn compare_first(&mut self) -> bool {
        let wanted = self.expected.front().map(|expected| expected.seen.said.clone());
        if let Some(Said::Ack(psn)) = wanted
            && psn <= self.acknowledged
        {
            self.pop_acknowledged();
            return true;
        }
        // The request was acknowledged, so the recorded refusal can no longer come.
        if let Some(Said::Nak(_, psn) | Said::Rnr(psn, _)) = wanted
            && psn <= self.acknowledged
        {
            let expected = self.expected.pop_front();
            let ack = Said::Ack(self.acknowledged).to_string();
            self.push(expected, Some(ack), false);
            return true;
        }
        let Some(seen) = self.came.front().cloned() else { return false };
        let answered = self.expected.front().and_then(|expected| expected.seen.said.answered());
        if let Some(psn) = seen.said.answered()
            && answered.is_some_and(|answered| psn < answered)
            && self.is_new_data(&seen.said)
        {
            self.came.pop_front();
            self.unrecorded += 1;
            self.acknowledged = psn;
            return true;
        }
        match (&seen.said, wanted) {
            (Said::Ack(psn), _) => {
                self.came.pop_front();
                self.acknowledge(*psn, &seen);
                true
            }
            (_, None) => false,
            (said, Some(Said::Ack(psn))) if said.answered().is_some_and(|at| at > psn) => {
                // The answer implies the recorded acknowledgement; compare it with the next
                // recorded answer.
                self.pop_acknowledged();
                true
            }
            _ => {
                let expected = self.expected.front().cloned();
                self.came.pop_front();
                let sent = self.sent;
                match expected.map(|expected| (difference(&expected, &seen, sent), expected)) {
                    Some((None, _)) => {
                        let expected = self.expected.pop_front();
                        self.same += 1;
                        self.compare_msn(expected, seen.msn());
                    }
                    Some((Some(_), _)) if self.is_repeat(&seen.said) => {}
                    Some((Some(how), expected)) => {
                        self.expected.pop_front();
                        let is_fatal = is_fatal(&seen.said) && !is_fatal(&expected.seen.said);
                        self.push(Some(expected), Some(how), is_fatal);
                    }
                    None => {}
                }
                if let Some(psn) = seen.said.answered() {
                    // A NAK acknowledges the requests before its PSN.
                    let is_nak = matches!(seen.said, Said::Nak(..) | Said::Rnr(..));
                    let reached = psn.saturating_sub(i32::from(is_nak));
                    self.acknowledged = self.acknowledged.max(reached);
                }
                true
            }
        }
    }

    /// Handles a positive acknowledgement.
    fn acknowledge(&mut self, psn: i32, seen: &Seen) {
        if psn <= self.acknowledged {
            if !self.is_repeat(&seen.said) {
                self.push(None, Some(format!("{} again", seen.said)), false);
            }
            return;
        }
        if psn > self.sent {
            self.differs(None, Some(seen));
            return;
        }
        self.acknowledged = psn;
        if self.acks.len() == ACKS {
            self.acks.pop_front();
        }
        self.acks.extend(seen.msn().map(|msn| (psn, msn)));
        while let Some(Said::Ack(at)) = self.expected.front().map(|e| &e.seen.said)
            && *at <= psn
        {
            self.pop_acknowledged();
        }
        let skipped = |expected: &Expected| match expected.seen.said {
            Said::Read(_, at, _) | Said::Atomic(at, _) => at <= psn,
            _ => false,
        };
        if self.expected.front().is_some_and(skipped) {
            let expected = self.expected.pop_front();
            self.differs(expected, Some(seen));
        }
    }

    /// Removes a recorded acknowledgement that has come, alone or covered by a later one.
    fn pop_acknowledged(&mut self) {
        let expected = self.expected.pop_front();
        let psn = expected.as_ref().and_then(|expected| expected.seen.said.answered());
        let ack = self.acks.iter().find(|(at, _)| Some(*at) == psn).map(|(_, msn)| *msn);
        self.same += 1;
        self.compare_msn(expected, ack);
    }

    /// Compares MSNs, allowing a constant difference: a recording may start in mid-connection.
    fn compare_msn(&mut self, expected: Option<Expected>, came: Option<u32>) {
        let Some(expected) = expected else { return };
        let psn = expected.seen.said.answered().unwrap_or(-1);
        let (Some(recorded), Some(came)) = (expected.seen.msn(), came) else { return };
        if psn <= self.msn_at {
            return;
        }
        self.msn_at = psn;
        let ahead = came.wrapping_sub(recorded) & 0xff_ffff;
        let usual = *self.msn.get_or_insert(ahead);
        if ahead != usual {
            let should = recorded.wrapping_add(usual) & 0xff_ffff;
            let how = format!("{}, MSN {came}, not {should}", expected.seen.said);
            self.same -= 1;
            self.push(Some(expected), Some(how), false);
        }
    }

    /// Returns whether the packet may be the answer to a retransmitted request.
    fn is_repeat(&mut self, said: &Said) -> bool {
        let is_old = said.answered().is_some_and(|psn| psn <= self.acknowledged);
        let is_positive = matches!(said, Said::Ack(_) | Said::Read(..) | Said::Atomic(..));
        if !is_old || !is_positive || self.repeats == 0 {
            return false;
        }
        self.repeats -= 1;
        true
    }

    /// Adds a difference, about the request that the answer names if nothing was expected.
    fn differs(&mut self, expected: Option<Expected>, seen: Option<&Seen>) {
        let is_fatal = seen.is_some_and(|seen| is_fatal(&seen.said))
            && !expected.as_ref().is_some_and(|expected| is_fatal(&expected.seen.said));
        let psn = seen.and_then(|seen| seen.said.answered());
        let came = seen.map(|seen| seen.said.to_string());
        match (&expected, psn) {
            (None, Some(psn)) => {
                let request = self.request(psn);
                self.found.push_back(Difference { request, recorded: None, came, is_fatal });
            }
            _ => self.push(expected, came, is_fatal),
        }
    }

    /// Adds a difference, about the request of the expected answer if there is one.
    fn push(&mut self, expected: Option<Expected>, came: Option<String>, is_fatal: bool) {
        let request = match &expected {
            Some(expected) => expected.request.clone(),
            None => self.request(self.acknowledged),
        };
        let recorded = expected.map(|expected| (expected.frame, expected.seen.said.to_string()));
        self.found.push_back(Difference { request, recorded, came, is_fatal });
    }

    /// Returns the frame and description of the request with this PSN.
    fn request(&self, psn: i32) -> Option<(u64, String)> {
        let all = self.requests.iter().rev();
        let mut found = all.filter(|(first, span, ..)| (0..*span).contains(&(psn - first)));
        found.next().map(|(.., frame, words)| (*frame, words.clone()))
    }
}

/// Describes how an answer differs from the recorded one. `sent` is the highest PSN that was sent.
fn difference(expected: &Expected, seen: &Seen, sent: i32) -> Option<String> {
    use rxe_core::wire::NakCode::PsnSequenceError;
    if let (Said::Nak(PsnSequenceError, psn), Said::Nak(PsnSequenceError, came)) =
        (&expected.seen.said, &seen.said)
        && (*psn..=sent.saturating_add(1)).contains(came)
    {
        // The NAK has the PSN expected at the time it is sent; the gap may be partly filled by then.
        return None;
    }
    if expected.seen.said != seen.said {
        return Some(seen.said.to_string());
    }
    if !expected.is_data_known {
        return None;
    }
    let differs = |(a, b): (&u8, &u8)| a != b;
    let at = expected.seen.payload.iter().zip(&seen.payload).position(differs)?;
    let [should, is] = [&expected.seen, seen].map(|it| it.payload[at]);
    Some(format!("{}, whose byte {at} is 0x{is:02x}, not 0x{should:02x}", seen.said))
}

/// Returns whether the queue pair enters the error state with this answer.
fn is_fatal(said: &Said) -> bool {
    use rxe_core::wire::NakCode::PsnSequenceError;
    matches!(said, Said::Nak(code, _) if *code != PsnSequenceError)
}
