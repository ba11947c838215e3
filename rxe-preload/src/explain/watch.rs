//! Watches the queue pairs of a device for explanations: what put a queue pair into the error
//! state, and which problems persist.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rxe_core::engine::{Event, FailedRequest, ResponderError, RetryCause};
use rxe_core::mem::Access;
use rxe_core::wire::DropReason;
use rxe_verbs::{Completion, Psn, QpState, QpType, Qpn, Status, VerbsFault};

use super::once::once;
use super::regions::{Region, Regions};
use super::text::{self, Evidence};
use crate::config::{CONFIG, Explain};

/// The recorded state of one device's queue pairs and memory.
/// The engine reports events while it runs, so nothing here may call the engine or wait for a
/// thread that does.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The device's name.
    device: String,
    qps: Mutex<HashMap<u32, QpDiagnostics>>,
    regions: Mutex<Regions>,
    /// Queue pair numbers that packets name and no queue pair has.
    unknown_qps: Mutex<HashMap<u32, UnknownQp>>,
}

/// The properties of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewQp {
    pub(crate) service: QpType,
    /// The IDs of the send and the receive completion queue.
    pub(crate) cqs: [u64; 2],
}

/// The recorded history of a queue pair.
#[derive(Debug)]
struct QpDiagnostics {
    is: NewQp,
    state: QpState,
    /// The number of the queue pair to which this one is connected.
    peer: Option<u32>,
    /// The reason for the error state, if the program did not ask for it.
    cause: Option<String>,
    flushed: Flushed,
    /// The PSN of the request that the peer refuses for lack of a receive, and since when.
    refused: Option<(Psn, Instant)>,
    /// The PSN of the request that this side refuses for lack of a receive, and since when.
    refusing: Option<(Psn, Instant)>,
    /// When the first packet arrived in a state that accepts none.
    early_packets: Option<Instant>,
    /// What has happened since the queue pair was created or reset.
    evidence: Evidence,
    /// The PSN of the oldest unanswered request, if it was retransmitted.
    /// With it, the evidence since the first retransmission.
    retried: Option<(Psn, Evidence)>,
}

/// Whether requests of a queue pair have been flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flushed {
    No,
    /// The work request ID of the first flushed request, whose reason is not explained yet.
    Unexplained(u64),
    Explained,
}

/// Packets that name a queue pair number that no queue pair has.
#[derive(Clone, Copy, Debug)]
struct UnknownQp {
    /// When the first packet arrived.
    since: Instant,
    /// The earliest PSN that arrived. A peer without an answer retransmits from there.
    psn: Psn,
    /// The number of packets with that PSN.
    tries: u32,
}

/// How long a problem must last to be explained.
/// Shorter ones are normal while both sides set up. With the usual timeout of 14 (67 ms) and 7
/// retries a peer fails its request after 540 ms.
const SETUP_TIME: Duration = Duration::from_millis(200);
/// How often a packet must arrive for its sender to be explained.
/// The peer has then waited for two ACK timeouts in vain, and with 2 retries its request fails
/// after the next.
const MIN_TRIES: u32 = 3;
/// How long a sender without acknowledgements (UC, UD) may outlast its receiver.
/// Longer sending is explained.
const TEARDOWN_TIME: Duration = Duration::from_secs(1);
/// The most numbers without a queue pair that are remembered.
const MAX_UNKNOWN_QPS: usize = 64;

impl Watch {
    /// Creates a watch for a device without objects.
    pub(crate) fn new(device: &str) -> Arc<Self> {
        Arc::new(Self {
            device: device.to_owned(),
            qps: Mutex::default(),
            regions: Mutex::default(),
            unknown_qps: Mutex::default(),
        })
    }

    /// Records a new queue pair.
    pub(crate) fn created(&self, qpn: u32, is: NewQp) {
        self.qps.lock().insert(qpn, QpDiagnostics::new(is));
    }

    /// Forgets a queue pair.
    pub(crate) fn destroyed(&self, qpn: u32) {
        self.qps.lock().remove(&qpn);
    }

    /// Records that the program has changed the state of a queue pair.
    pub(crate) fn entered(&self, qpn: u32, state: QpState) {
        if let Some(qp) = self.qps.lock().get_mut(&qpn) {
            match state {
                QpState::Reset => *qp = QpDiagnostics::new(qp.is),
                _ => qp.state = state,
            }
        }
    }

    /// Records that the program has connected a queue pair to the one with the number `peer`.
    pub(crate) fn connected(&self, qpn: u32, peer: u32) {
        if let Some(qp) = self.qps.lock().get_mut(&qpn) {
            qp.peer = Some(peer);
        }
    }

    /// Records that memory was registered or reregistered with this key.
    pub(crate) fn registered(&self, key: u32, start: u64, len: u64, at: usize, access: Access) {
        self.regions.lock().insert(key, Region { start, len, at, access });
    }

    /// Records that the region with this key was deregistered.
    pub(crate) fn deregistered(&self, key: u32) {
        self.regions.lock().remove(&key);
    }

    /// Records that a request completed with an error.
    /// For reliable connections the reason is in the engine's events, which may come a moment
    /// later.
    pub(crate) fn completion(&self, completion: &Completion) {
        let Completion { id, status, qpn, .. } = *completion;
        let mut qps = self.qps.lock();
        let Some(qp) = qps.get_mut(&qpn.value()) else { return };
        if status == Status::WorkRequestFlushed {
            if qp.flushed == Flushed::No {
                qp.flushed = Flushed::Unexplained(id);
            }
            drop(qps);
            self.tell_flushed(qpn);
        } else if matches!(qp.is.service, QpType::Uc | QpType::Ud) {
            let told = text::completion(completion, qp.is.service);
            qp.cause.get_or_insert_with(|| format!("a request of it failed with \"{status}\""));
            drop(qps);
            once(status.verbs_str(), &told);
        }
    }

    /// Explains why requests are flushed, as soon as both the flush and the reason are known.
    fn tell_flushed(&self, qpn: Qpn) {
        let mut qps = self.qps.lock();
        let Some(qp) = qps.get_mut(&qpn.value()) else { return };
        let Flushed::Unexplained(id) = qp.flushed else { return };
        let by_program = qp.state == QpState::Err && CONFIG.explain == Explain::All;
        let own = by_program.then_some("the program, or the end of its connection, put it there");
        if let Some(cause) = qp.cause.as_deref().or(own) {
            let told = text::flushed(qpn, id, cause);
            qp.flushed = Flushed::Explained;
            drop(qps);
            once("flushed", &told);
        }
    }

    /// Handles an event of the engine.
    pub(crate) fn event(&self, event: &Event) {
        match *event {
            Event::RequestFailed { qpn, status, detail, request } => {
                let evidence = self.evidence(qpn, &request);
                self.set_cause(qpn, &text::cause_of_request(&request, status));
                let regions = self.regions.lock();
                let told = if on_purpose(status) {
                    text::request_failed_on_purpose(qpn, status)
                } else {
                    text::request_failed(qpn, status, detail, &request, evidence, &regions)
                };
                drop(regions);
                once(status.verbs_str(), &told);
                self.tell_flushed(qpn);
            }
            Event::ResponderFailed { qpn, error, asked } => {
                self.set_cause(qpn, &format!("its peer's request was refused ({error})"));
                let regions = self.regions.lock();
                let told = text::responder_failed(qpn, error, asked, &regions);
                drop(regions);
                once("the peer's request", &told);
                self.tell_flushed(qpn);
            }
            Event::MemoryFaulted { qpn, fault } => {
                self.set_cause(qpn, "memory that is registered was not there");
                let told = text::memory_faulted(qpn, fault, &self.regions.lock());
                once("registered memory", &told);
            }
            Event::CqOverflow { qpn, cq } => {
                once("completion queue overflow", &text::overflow(qpn));
                for flushed in self.overflowed(cq) {
                    self.tell_flushed(flushed);
                }
            }
            Event::RnrNakReceived { qpn, psn } if self.persists(qpn, |qp| &mut qp.refused, psn) => {
                once("no receive", &text::no_receive_there(qpn));
            }
            Event::NakSent { qpn, psn, error: ResponderError::ReceiverNotReady }
                if self.persists(qpn, |qp| &mut qp.refusing, psn) =>
            {
                once("no receive", &text::no_receive_here(qpn));
            }
            Event::Retry { qpn, psn, cause } => {
                if let Some(qp) = self.qps.lock().get_mut(&qpn.value()) {
                    qp.retries(psn, cause);
                }
            }
            Event::Dropped { reason, qpn: Some(qpn), psn } => self.dropped(qpn, reason, psn),
            _ => {}
        }
        if CONFIG.explain == Explain::All {
            let of = event.qpn().map_or(String::new(), |qpn| format!("QP {qpn}: "));
            once("event", &format!("{}: {of}{event}", self.device));
        }
    }

    /// Returns the evidence of why this request was not answered.
    /// If the peer has answered earlier requests, only events since the first retransmission of
    /// this one count.
    fn evidence(&self, qpn: Qpn, failed: &FailedRequest) -> Evidence {
        let qps = self.qps.lock();
        let Some(qp) = qps.get(&qpn.value()) else { return Evidence::default() };
        match qp.retried {
            _ if !failed.answered => qp.evidence,
            Some((psn, since)) if psn == failed.una => since,
            _ => Evidence::default(),
        }
    }

    fn set_cause(&self, qpn: Qpn, cause: &str) {
        if let Some(qp) = self.qps.lock().get_mut(&qpn.value()) {
            qp.cause.get_or_insert_with(|| cause.to_owned());
        }
    }

    /// Records that a completion queue has overflowed.
    /// Returns its queue pairs, which are now in the error state.
    fn overflowed(&self, cq: u64) -> Vec<Qpn> {
        let mut qps = self.qps.lock();
        let behind = qps.iter_mut().filter(|(_, qp)| qp.is.cqs.contains(&cq));
        let failed = behind.map(|(&qpn, qp)| {
            qp.cause.get_or_insert_with(|| "a completion queue of it overflowed".into());
            Qpn::from_wire(qpn)
        });
        failed.collect()
    }

    /// Returns whether the same request has lacked a receive for at least [`SETUP_TIME`].
    fn persists(
        &self,
        qpn: Qpn,
        field: impl Fn(&mut QpDiagnostics) -> &mut Option<(Psn, Instant)>,
        psn: Psn,
    ) -> bool {
        let mut qps = self.qps.lock();
        let Some(since) = qps.get_mut(&qpn.value()).map(field) else { return false };
        match since {
            Some((same, since)) if *same == psn => since.elapsed() >= SETUP_TIME,
            _ => {
                *since = Some((psn, Instant::now()));
                false
            }
        }
    }

    fn dropped(&self, qpn: Qpn, reason: DropReason, psn: Option<Psn>) {
        let mut qps = self.qps.lock();
        let Some(qp) = qps.get_mut(&qpn.value()) else {
            drop(qps);
            let unknown = reason == DropReason::UnknownQp;
            if unknown && psn.is_some_and(|psn| self.unknown_qp_persists(qpn, psn)) {
                once("no such queue pair", &self.unknown_qp(qpn));
            }
            return;
        };
        qp.note(|evidence| evidence.dropped = Some(reason));
        let lasting = match reason {
            DropReason::WrongQpState => {
                // Peers keep sending for a while to a queue pair that has failed or is being
                // closed.
                let began = *qp.early_packets.get_or_insert_with(Instant::now);
                let getting_ready = matches!(qp.state, QpState::Reset | QpState::Init);
                getting_ready && qp.cause.is_none() && began.elapsed() >= SETUP_TIME
            }
            _ => true,
        };
        let told = text::dropped(qpn, reason, qp.is.service, qp.state).filter(|_| lasting);
        drop(qps);
        if let Some(told) = told {
            once("a packet was dropped", &told);
        }
    }

    /// Returns whether a peer keeps sending to this number.
    fn unknown_qp_persists(&self, qpn: Qpn, psn: Psn) -> bool {
        let mut unknown_qps = self.unknown_qps.lock();
        if unknown_qps.len() >= MAX_UNKNOWN_QPS && !unknown_qps.contains_key(&qpn.value()) {
            unknown_qps.clear();
        }
        let new = UnknownQp { since: Instant::now(), psn, tries: 0 };
        let unknown = unknown_qps.entry(qpn.value()).or_insert(new);
        unknown.came(psn);
        unknown.tries >= MIN_TRIES || unknown.since.elapsed() >= TEARDOWN_TIME
    }

    /// Explains who sends to this number, which no queue pair here has.
    /// A packet that this process sends to its own address comes back to it if no other process on
    /// the address has the number.
    fn unknown_qp(&self, qpn: Qpn) -> String {
        let own = self.qps.lock().values().any(|qp| qp.peer == Some(qpn.value()));
        if own { text::unknown_own_peer(qpn) } else { text::unknown_qp(qpn) }
    }
}

impl UnknownQp {
    fn came(&mut self, psn: Psn) {
        if psn.before(self.psn) {
            (self.psn, self.tries) = (psn, 0);
        }
        self.tries += u32::from(psn == self.psn);
    }
}

impl QpDiagnostics {
    fn new(is: NewQp) -> Self {
        Self {
            is,
            state: QpState::Reset,
            peer: None,
            cause: None,
            flushed: Flushed::No,
            refused: None,
            refusing: None,
            early_packets: None,
            evidence: Evidence::default(),
            retried: None,
        }
    }

    /// Records that requests from `psn` on are retransmitted.
    /// All earlier requests are answered, so the evidence of an earlier retransmission no longer
    /// counts.
    fn retries(&mut self, psn: Psn, cause: RetryCause) {
        if self.retried.is_none_or(|(before, _)| before != psn) {
            self.retried = Some((psn, Evidence::default()));
        }
        self.note(|evidence| evidence.gaps |= cause == RetryCause::SequenceNak);
    }

    fn note(&mut self, note: impl Fn(&mut Evidence)) {
        note(&mut self.evidence);
        if let Some((_, since)) = &mut self.retried {
            note(since);
        }
    }
}

/// Returns whether `RXE_FAULT` asks for requests that fail with this status.
fn on_purpose(status: Status) -> bool {
    let mut faults = CONFIG.faults.iter().flatten().flat_map(|(_, plan)| plan.verbs());
    faults.any(
        |fault| matches!(fault, VerbsFault::Completion { status: asked, .. } if *asked == status),
    )
}

#[cfg(test)]
mod tests {
    use rxe_core::queue::CompletionOp;

    use super::*;

    const NOBODY: Qpn = Qpn::from_wire(0x1234);

    /// Returns the index of the packet at which the unknown number is explained, if it is.
    fn told_at(psns: impl IntoIterator<Item = u32>) -> Option<usize> {
        let watch = Watch::new("rxe_test0");
        psns.into_iter().position(|psn| watch.unknown_qp_persists(NOBODY, Psn::new(psn)))
    }

    #[test]
    fn a_peer_that_starts_again_twice_is_told_of() {
        assert_eq!(told_at([7, 7, 7]), Some(2));
        // A message of several packets, then only its first packet.
        assert_eq!(told_at([7, 8, 9, 7, 7]), Some(4));
        // The first packet was lost or late once, and PSNs wrap.
        assert_eq!(told_at([0, 1, 0xff_ffff, 0xff_ffff, 0xff_ffff]), Some(4));
    }

    #[test]
    fn a_sender_that_does_not_notice_at_once_is_not_told_of() {
        assert_eq!(told_at(0..1000), None);
        assert_eq!(told_at([7, 7]), None);
    }

    #[test]
    fn what_happened_before_the_peer_answered_does_not_explain_its_silence() {
        let watch = Watch::new("rxe_test0");
        let qpn = Qpn::from_wire(7);
        watch.created(7, NewQp { service: QpType::Rc, cqs: [1, 1] });
        let dropped = |reason| watch.event(&Event::Dropped { reason, qpn: Some(qpn), psn: None });
        let retry = |psn, cause| watch.event(&Event::Retry { qpn, psn: Psn::new(psn), cause });
        let known = |una, answered| {
            let request = FailedRequest {
                op: CompletionOp::Send,
                range: None,
                peer: [10, 9, 0, 1].into(),
                peer_qp: NOBODY,
                answered,
                una: Psn::new(una),
            };
            let Evidence { gaps, dropped } = watch.evidence(qpn, &request);
            (gaps, dropped)
        };
        dropped(DropReason::WrongQpState);
        assert_eq!(known(5, false), (false, Some(DropReason::WrongQpState)));
        assert_eq!(known(5, true), (false, None));
        retry(5, RetryCause::Timeout);
        dropped(DropReason::GhostAck);
        retry(5, RetryCause::SequenceNak);
        retry(5, RetryCause::Timeout);
        assert_eq!(known(5, true), (true, Some(DropReason::GhostAck)));
        assert_eq!(known(5, false), (true, Some(DropReason::GhostAck)));
        assert_eq!(known(9, true), (false, None));
        retry(9, RetryCause::Timeout);
        assert_eq!(known(9, true), (false, None));
    }

    #[test]
    fn the_sender_of_packets_that_come_back_is_named() {
        let watch = Watch::new("rxe_test0");
        watch.created(7, NewQp { service: QpType::Rc, cqs: [1, 1] });
        watch.connected(7, NOBODY.value() + 1);
        assert!(watch.unknown_qp(NOBODY).starts_with("somebody keeps sending"));
        watch.connected(7, NOBODY.value());
        assert!(watch.unknown_qp(NOBODY).starts_with("a queue pair of this process"));
    }

    #[test]
    fn numbers_without_a_queue_pair_are_counted_apart_and_bounded() {
        let watch = Watch::new("rxe_test0");
        for _ in 0..2 {
            for qpn in 0..10 {
                assert!(!watch.unknown_qp_persists(Qpn::from_wire(qpn), Psn::ZERO));
            }
        }
        assert!(watch.unknown_qp_persists(Qpn::from_wire(3), Psn::ZERO));
        for qpn in 0..1000 {
            watch.unknown_qp_persists(Qpn::from_wire(qpn), Psn::ZERO);
        }
        assert!(watch.unknown_qps.lock().len() <= MAX_UNKNOWN_QPS);
    }
}
