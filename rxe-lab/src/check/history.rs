//! The requests of one direction of a connection that were captured, by PSN.

use std::collections::VecDeque;
use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::{OpInfo, OpKind};

/// The fewest and the most requests that are remembered of one direction, answered or not.
const SENT: (usize, usize) = (64, 4096);

/// Answered requests that are remembered, to recognise what is sent again.
const MAX_ANSWERED: usize = 512;

/// A request packet, and what became of it.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) psn: Psn,
    /// PSNs that it takes: those of its responses.
    pub(super) span: u32,
    /// Whether `span` is known. That of a READ depends on the path MTU.
    pub(super) span_known: bool,
    /// Whether the span is a guess, or has packets of a frame that was cut, so that some of it may belong to requests that were not captured.
    pub(super) guessed: bool,
    pub(super) info: &'static OpInfo,
    pub(super) frame: u64,
    /// The frame in which it was sent last.
    pub(super) last_frame: u64,
    pub(super) last_at: Duration,
    pub(super) times: u32,
    /// Times that a timeout had it sent again.
    pub(super) timeouts: u32,
    pub(super) ack_req: bool,
    /// When it was sent first, as far as the capture tells: the packet behind the gap that it fills came
    /// later.
    pub(super) began: Duration,
    pub(super) dma_len: u32,
    /// Whether it is a READ whose length was not captured.
    pub(super) is_cut: bool,
    /// Messages of the direction that are complete with it, of all kinds and of those that take a
    /// receive. Only differences count.
    pub(super) messages: u32,
    pub(super) taken: u32,
    pub(super) icrc: u32,
    /// How long its PSN was missing, if it came after packets with higher PSNs.
    pub(super) filled: Option<Duration>,
    /// Where repetitions of a READ begin in it, in packets, and how many bytes they ask for, each once.
    pub(super) restarts: Vec<(u32, u32)>,
    /// Response packets that were captured.
    pub(super) responses: u32,
    /// What an atomic found, and the frame that says so.
    pub(super) value: Option<(u64, u64)>,
}

impl Sent {
    /// Whether the responder must answer it. SEND and WRITE ask for it by AckReq.
    pub(super) fn asks_for_answer(&self) -> bool {
        self.ack_req || !matches!(self.info.kind, OpKind::Send | OpKind::Write)
    }
}

/// Request packets in the order of their PSNs.
#[derive(Debug, Default)]
pub(super) struct History {
    sent: VecDeque<Sent>,
    /// How many of them, from the oldest, are answered.
    answered: usize,
    /// Whether older ones were forgotten.
    pub(super) trimmed: bool,
    limit: usize,
    /// Whether unanswered ones were forgotten.
    pub(super) overflowed: bool,
}

impl History {
    /// Remembers at most so many.
    pub(super) fn limit(&mut self, limit: usize) {
        self.limit = limit.clamp(SENT.0, SENT.1);
    }

    /// Adds a packet that was not there before.
    pub(super) fn add(&mut self, sent: Sent) {
        while self.sent.len() >= self.limit.max(SENT.0) || self.answered > MAX_ANSWERED {
            self.sent.pop_front();
            self.trimmed = true;
            self.overflowed |= self.answered == 0;
            self.answered = self.answered.saturating_sub(1);
        }
        let at = self.after(sent.psn);
        if at < self.answered {
            self.answered += 1;
        }
        self.sent.insert(at, sent);
    }

    /// The packet that takes this PSN.
    pub(super) fn get(&mut self, psn: Psn) -> Option<&mut Sent> {
        let at = self.after(psn).checked_sub(1)?;
        let sent = self.sent.get_mut(at)?;
        u32::try_from(psn.diff(sent.psn)).is_ok_and(|ahead| ahead < sent.span).then_some(sent)
    }

    /// Whether a packet is answered.
    pub(super) fn is_answered(&self, psn: Psn) -> bool {
        self.after(psn).checked_sub(1).is_some_and(|at| at < self.answered)
    }

    pub(super) fn last(&mut self) -> Option<&mut Sent> {
        self.sent.back_mut()
    }

    /// The packet with the first PSN that is remembered.
    pub(super) fn first(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// The first packet that is not answered.
    pub(super) fn oldest(&self) -> Option<&Sent> {
        self.sent.get(self.answered)
    }

    /// The packets that are not answered, in order.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter().skip(self.answered)
    }

    /// Whether a request that is not answered has asked for an answer.
    pub(super) fn asks_for_answer(&self) -> bool {
        self.unanswered().any(Sent::asks_for_answer)
    }

    /// The answered part grows to the packets that end before `psn`; `each` sees them.
    pub(super) fn answer(&mut self, psn: Psn, mut each: impl FnMut(&Sent)) {
        while let Some(sent) = self.sent.get(self.answered) {
            if (sent.psn + (sent.span - 1)).diff(psn) >= 0 {
                break;
            }
            each(sent);
            self.answered += 1;
        }
    }

    /// Where a packet with a PSN after this one would stand.
    fn after(&self, psn: Psn) -> usize {
        match self.sent.back() {
            Some(last) if psn.diff(last.psn) >= 0 => self.sent.len(),
            _ => self.sent.partition_point(|sent| sent.psn.diff(psn) <= 0),
        }
    }
}
