//! The captured requests of one direction of a connection, by PSN.

use std::collections::VecDeque;
use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::{OpInfo, OpKind};

/// The fewest and the most requests that are remembered per direction, answered or not.
const SENT: (usize, usize) = (64, 4096);

/// The number of answered requests that are remembered, to recognise retransmissions.
const MAX_ANSWERED: usize = 512;

/// A request packet and its later fate.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) psn: Psn,
    /// The number of PSNs that the request takes: those of its responses.
    pub(super) span: u32,
    /// Whether `span` is known. For a READ it depends on the path MTU.
    pub(super) span_known: bool,
    /// Whether `span` is a guess or includes unseen packets of a truncated frame.
    /// Part of it may then belong to requests that were not captured.
    pub(super) guessed: bool,
    pub(super) info: &'static OpInfo,
    pub(super) frame: u64,
    /// The frame of the latest transmission.
    pub(super) last_frame: u64,
    /// The time of the latest transmission.
    pub(super) last_at: Duration,
    /// The number of transmissions.
    pub(super) times: u32,
    /// The number of retransmissions caused by a timeout.
    pub(super) timeouts: u32,
    pub(super) ack_req: bool,
    /// The time of the first transmission, as far as the capture shows it.
    /// A packet that fills a gap was sent before the packet behind the gap.
    pub(super) began: Duration,
    pub(super) dma_len: u32,
    /// Whether the request may have been sent, and answered, before the capture began.
    pub(super) may_be_again: bool,
    /// Whether the request is a READ whose length was not captured.
    pub(super) is_cut: bool,
    /// The number of messages complete with this packet. Only differences count.
    pub(super) messages: u32,
    /// The number of messages complete with this packet that consume a receive.
    /// Only differences count.
    pub(super) taken: u32,
    pub(super) icrc: u32,
    /// How long the PSN was missing, if the packet came after packets with higher PSNs.
    pub(super) filled: Option<Duration>,
    /// The retransmissions of a READ, each once.
    /// The first packet, relative to the READ, and the bytes requested.
    pub(super) restarts: Vec<(u32, u32)>,
    /// The number of response packets that were captured in order.
    pub(super) responses: u32,
    /// The original value in an atomic acknowledgement, and its frame.
    pub(super) value: Option<(u64, u64)>,
}

impl Sent {
    /// Returns whether the responder must answer the packet.
    /// SENDs and WRITEs request this by AckReq.
    pub(super) fn asks_for_answer(&self) -> bool {
        self.ack_req || !matches!(self.info.kind, OpKind::Send | OpKind::Write)
    }
}

/// Request packets in the order of their PSNs.
#[derive(Debug, Default)]
pub(super) struct History {
    sent: VecDeque<Sent>,
    /// The number of answered packets, which are the oldest.
    answered: usize,
    /// Whether older packets were forgotten.
    pub(super) trimmed: bool,
    limit: usize,
    /// Whether unanswered packets were forgotten.
    pub(super) overflowed: bool,
}

impl History {
    /// Sets the number of packets to remember.
    pub(super) fn limit(&mut self, limit: usize) {
        self.limit = limit.clamp(SENT.0, SENT.1);
    }

    /// Adds a packet that was not captured before.
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

    /// Returns the packet that takes this PSN.
    pub(super) fn get(&mut self, psn: Psn) -> Option<&mut Sent> {
        let at = self.after(psn).checked_sub(1)?;
        let sent = self.sent.get_mut(at)?;
        u32::try_from(psn.diff(sent.psn)).is_ok_and(|ahead| ahead < sent.span).then_some(sent)
    }

    /// Returns whether the packet with this PSN is answered.
    pub(super) fn is_answered(&self, psn: Psn) -> bool {
        self.after(psn).checked_sub(1).is_some_and(|at| at < self.answered)
    }

    pub(super) fn last(&mut self) -> Option<&mut Sent> {
        self.sent.back_mut()
    }

    /// Returns the packet with the lowest PSN that is remembered.
    pub(super) fn first(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// Returns the first packet that is not answered.
    pub(super) fn oldest(&self) -> Option<&Sent> {
        self.sent.get(self.answered)
    }

    /// Returns the packets that are not answered, in order.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter().skip(self.answered)
    }

    /// Returns whether an unanswered request requires an answer.
    pub(super) fn asks_for_answer(&self) -> bool {
        self.unanswered().any(Sent::asks_for_answer)
    }

    /// Marks packets that end before `psn` as answered, and calls `each` for each of them.
    pub(super) fn answer(&mut self, psn: Psn, mut each: impl FnMut(&Sent)) {
        while let Some(sent) = self.sent.get(self.answered) {
            if (sent.psn + (sent.span - 1)).diff(psn) >= 0 {
                break;
            }
            each(sent);
            self.answered += 1;
        }
    }

    /// Returns the index at which a packet with a PSN after this one belongs.
    fn after(&self, psn: Psn) -> usize {
        match self.sent.back() {
            Some(last) if psn.diff(last.psn) >= 0 => self.sent.len(),
            _ => self.sent.partition_point(|sent| sent.psn.diff(psn) <= 0),
        }
    }
}
