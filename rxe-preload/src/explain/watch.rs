//! What becomes of the queue pairs of a device: who put one into the error state, and what goes wrong
//! for so long that it is more than a moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rxe_core::engine::{Event, Fault, RetryCause};
use rxe_core::mem::Access;
use rxe_core::wire::DropReason;
use rxe_verbs::{Completion, Psn, QpState, QpType, Qpn, Status};

use super::{once, text};
use crate::config::{CONFIG, Explain};

/// What is known of one device's queue pairs and memory. The engine tells it of events in the middle
/// of a turn, so nothing here calls the engine, or waits for anybody who might.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The device's name.
    device: String,
    stories: Mutex<HashMap<u32, Story>>,
    regions: Mutex<Regions>,
    /// Packets for numbers that no queue pair has.
    nobody: Mutex<HashMap<u32, Stray>>,
}

/// Memory regions by their keys.
pub(super) type Regions = HashMap<u32, Region>;

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// The address by which requests name its first byte.
    pub(super) start: u64,
    pub(super) len: u64,
    /// Where its first byte is in this process.
    pub(super) at: usize,
    pub(super) access: Access,
}

/// What a queue pair is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewQp {
    pub(crate) service: QpType,
    /// Its completion queues, by their identity.
    pub(crate) cqs: [u64; 2],
}

/// What has become of a queue pair.
#[derive(Debug)]
struct Story {
    is: NewQp,
    state: QpState,
    /// What put it into the error state, where the program did not.
    cause: Option<String>,
    flushed: Flushed,
    /// The peer has no receive for this request, since then.
    refused: Option<(Psn, Instant)>,
    /// This side has no receive for this request, since then.
    refusing: Option<(Psn, Instant)>,
    /// Packets come in a state that takes none, since then.
    too_early: Option<Instant>,
    /// The peer has said that packets are missing.
    gaps: bool,
    /// The last reason for which a packet of the peer was dropped.
    dropped: Option<DropReason>,
}

/// Whether requests of a queue pair have been flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flushed {
    No,
    /// This was the first, and its reason is still to be said.
    Unsaid(u64),
    Said,
}

/// What comes for a number that no queue pair has.
#[derive(Clone, Copy, Debug)]
struct Stray {
    /// When the first packet came.
    since: Instant,
    /// The earliest PSN seen, which is where a peer without an answer starts again.
    psn: Psn,
    /// How often that one came.
    tries: u32,
}

/// What lasts longer is not the moment in which both sides get ready. With the usual timeout of 14
/// (67 ms) and 7 retries a peer gives up after 540 ms.
const MOMENT: Duration = Duration::from_millis(200);
/// A peer that tries so often has waited two ACK timeouts in vain. With 2 retries it gives up next.
const TRIES: u32 = 3;
/// A sender that does not wait for answers (UC, UD) and goes on for longer did not just miss that the
/// receiver has ended.
const WHILE: Duration = Duration::from_secs(1);
/// So many numbers without a queue pair are remembered.
const STRAYS: usize = 64;

impl Watch {
    /// Of a device on which there is nothing yet.
    pub(crate) fn new(device: &str) -> Arc<Self> {
        Arc::new(Self {
            device: device.to_owned(),
            stories: Mutex::default(),
            regions: Mutex::default(),
            nobody: Mutex::default(),
        })
    }

    /// There is a new queue pair.
    pub(crate) fn created(&self, qpn: u32, is: NewQp) {
        self.stories.lock().insert(qpn, Story::new(is));
    }

    /// It is no more.
    pub(crate) fn destroyed(&self, qpn: u32) {
        self.stories.lock().remove(&qpn);
    }

    /// The program has brought it to another state.
    pub(crate) fn entered(&self, qpn: u32, state: QpState) {
        if let Some(story) = self.stories.lock().get_mut(&qpn) {
            match state {
                QpState::Reset => *story = Story::new(story.is),
                _ => story.state = state,
            }
        }
    }

    /// Memory has been registered, or registered anew, under this key.
    pub(crate) fn registered(&self, key: u32, start: u64, len: u64, at: usize, access: Access) {
        self.regions.lock().insert(key, Region { start, len, at, access });
    }

    /// The key stands for nothing more.
    pub(crate) fn deregistered(&self, key: u32) {
        self.regions.lock().remove(&key);
    }

    /// A request completed with an error. Of reliable connections the engine tells more, though maybe
    /// a moment later.
    pub(crate) fn completion(&self, completion: &Completion) {
        let Completion { id, status, qpn, .. } = *completion;
        let mut stories = self.stories.lock();
        let Some(story) = stories.get_mut(&qpn.value()) else { return };
        if status == Status::WorkRequestFlushed {
            if story.flushed == Flushed::No {
                story.flushed = Flushed::Unsaid(id);
            }
            drop(stories);
            self.tell_flushed(qpn);
        } else if matches!(story.is.service, QpType::Uc | QpType::Ud) {
            let told = text::completion(completion, story.is.service);
            story.cause.get_or_insert_with(|| format!("a request of it failed with \"{status}\""));
            drop(stories);
            once(status.verbs_str(), &told);
        }
    }

    /// Says why requests are flushed, once both are known: that they are, and why.
    fn tell_flushed(&self, qpn: Qpn) {
        let mut stories = self.stories.lock();
        let Some(story) = stories.get_mut(&qpn.value()) else { return };
        let Flushed::Unsaid(id) = story.flushed else { return };
        let by_program = story.state == QpState::Err && CONFIG.explain == Explain::All;
        let own = by_program.then_some("the program, or the end of its connection, put it there");
        if let Some(cause) = story.cause.as_deref().or(own) {
            let told = text::flushed(qpn, id, cause);
            story.flushed = Flushed::Said;
            drop(stories);
            once("flushed", &told);
        }
    }

    /// Something happened in the engine that the program may not notice.
    pub(crate) fn event(&self, event: &Event) {
        match *event {
            Event::RequestFailed { qpn, status, detail, request } => {
                let evidence = self.evidence(qpn);
                self.set_cause(qpn, &text::cause_of_request(&request, status));
                let regions = self.regions.lock();
                let told = text::request_failed(qpn, status, detail, &request, evidence, &regions);
                drop(regions);
                once(status.verbs_str(), &told);
                self.tell_flushed(qpn);
            }
            Event::ResponderFailed { qpn, fault, asked } => {
                self.set_cause(qpn, &format!("its peer's request was refused ({fault})"));
                let regions = self.regions.lock();
                let told = text::responder_failed(qpn, fault, asked, &regions);
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
            Event::RnrNakReceived { qpn, psn }
                if self.lasts(qpn, |story| &mut story.refused, psn) =>
            {
                once("no receive", &text::no_receive_there(qpn));
            }
            Event::NakSent { qpn, psn, fault: Fault::ReceiverNotReady }
                if self.lasts(qpn, |story| &mut story.refusing, psn) =>
            {
                once("no receive", &text::no_receive_here(qpn));
            }
            Event::Retry { qpn, cause: RetryCause::SequenceNak, .. } => {
                if let Some(story) = self.stories.lock().get_mut(&qpn.value()) {
                    story.gaps = true;
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

    fn evidence(&self, qpn: Qpn) -> text::Evidence {
        let stories = self.stories.lock();
        let story = stories.get(&qpn.value());
        text::Evidence {
            gaps: story.is_some_and(|story| story.gaps),
            dropped: story.and_then(|story| story.dropped),
        }
    }

    fn set_cause(&self, qpn: Qpn, cause: &str) {
        if let Some(story) = self.stories.lock().get_mut(&qpn.value()) {
            story.cause.get_or_insert_with(|| cause.to_owned());
        }
    }

    /// All queue pairs that complete there are in the error state: which these are.
    fn overflowed(&self, cq: u64) -> Vec<Qpn> {
        let mut stories = self.stories.lock();
        let behind = stories.iter_mut().filter(|(_, story)| story.is.cqs.contains(&cq));
        let failed = behind.map(|(&qpn, story)| {
            story.cause.get_or_insert_with(|| "a completion queue of it overflowed".into());
            Qpn::from_wire(qpn)
        });
        failed.collect()
    }

    /// Whether the same request has been found without a receive for longer than a moment.
    fn lasts(
        &self,
        qpn: Qpn,
        field: impl Fn(&mut Story) -> &mut Option<(Psn, Instant)>,
        psn: Psn,
    ) -> bool {
        let mut stories = self.stories.lock();
        let Some(since) = stories.get_mut(&qpn.value()).map(field) else { return false };
        match since {
            Some((same, since)) if *same == psn => since.elapsed() >= MOMENT,
            _ => {
                *since = Some((psn, Instant::now()));
                false
            }
        }
    }

    fn dropped(&self, qpn: Qpn, reason: DropReason, psn: Option<Psn>) {
        let mut stories = self.stories.lock();
        let Some(story) = stories.get_mut(&qpn.value()) else {
            drop(stories);
            let unknown = reason == DropReason::UnknownQp;
            if unknown && psn.is_some_and(|psn| self.nobody_lasts(qpn, psn)) {
                once("no such queue pair", &text::nobody(qpn));
            }
            return;
        };
        story.dropped = Some(reason);
        let lasting = match reason {
            DropReason::WrongQpState => {
                // One that has failed, or is being taken down, is still sent to for a while.
                let began = *story.too_early.get_or_insert_with(Instant::now);
                let getting_ready = matches!(story.state, QpState::Reset | QpState::Init);
                getting_ready && story.cause.is_none() && began.elapsed() >= MOMENT
            }
            _ => true,
        };
        let told = text::dropped(qpn, reason, story.is.service, story.state).filter(|_| lasting);
        drop(stories);
        if let Some(told) = told {
            once("a packet was dropped", &told);
        }
    }

    /// Whether somebody keeps sending to this number.
    fn nobody_lasts(&self, qpn: Qpn, psn: Psn) -> bool {
        let mut nobody = self.nobody.lock();
        if nobody.len() >= STRAYS && !nobody.contains_key(&qpn.value()) {
            nobody.clear();
        }
        let new = Stray { since: Instant::now(), psn, tries: 0 };
        let stray = nobody.entry(qpn.value()).or_insert(new);
        stray.came(psn);
        stray.tries >= TRIES || stray.since.elapsed() >= WHILE
    }
}

impl Stray {
    fn came(&mut self, psn: Psn) {
        if psn.before(self.psn) {
            (self.psn, self.tries) = (psn, 0);
        }
        self.tries += u32::from(psn == self.psn);
    }
}

impl Story {
    fn new(is: NewQp) -> Self {
        Self {
            is,
            state: QpState::Reset,
            cause: None,
            flushed: Flushed::No,
            refused: None,
            refusing: None,
            too_early: None,
            gaps: false,
            dropped: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Qpn = Qpn::from_wire(0x1234);

    /// How many of these packets come until it is told, if it is.
    fn told_at(psns: impl IntoIterator<Item = u32>) -> Option<usize> {
        let watch = Watch::new("rxe_test0");
        psns.into_iter().position(|psn| watch.nobody_lasts(NOBODY, Psn::new(psn)))
    }

    #[test]
    fn a_peer_that_starts_again_twice_is_told_of() {
        assert_eq!(told_at([7, 7, 7]), Some(2));
        // A message of several packets, then the first of them alone.
        assert_eq!(told_at([7, 8, 9, 7, 7]), Some(4));
        // The first one was lost, or late, once; the sequence numbers wrap.
        assert_eq!(told_at([0, 1, 0xff_ffff, 0xff_ffff, 0xff_ffff]), Some(4));
    }

    #[test]
    fn a_sender_that_does_not_notice_at_once_is_not_told_of() {
        assert_eq!(told_at(0..1000), None);
        assert_eq!(told_at([7, 7]), None);
    }

    #[test]
    fn numbers_without_a_queue_pair_are_counted_apart_and_bounded() {
        let watch = Watch::new("rxe_test0");
        for _ in 0..2 {
            for qpn in 0..10 {
                assert!(!watch.nobody_lasts(Qpn::from_wire(qpn), Psn::ZERO));
            }
        }
        assert!(watch.nobody_lasts(Qpn::from_wire(3), Psn::ZERO));
        for qpn in 0..1000 {
            watch.nobody_lasts(Qpn::from_wire(qpn), Psn::ZERO);
        }
        assert!(watch.nobody.lock().len() <= STRAYS);
    }
}
