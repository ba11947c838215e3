//! Answers waiting to be sent, in the order of their PSNs. Acknowledgements coalesce: one that
//! would follow another right away replaces it, so a burst of requests costs one packet back.
//! IBTA 9.7.5.1.2.
//!
//! The queue is bounded: each READ or atomic in it has a place in [`Replay`](super::replay), of
//! which there are `max_dest_rd_atomic`, and between two of them stands at most one other answer.

use std::collections::VecDeque;

use crate::types::{Key, Psn};
use crate::wire::Syndrome;

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Acknowledgement or NAK.
    Ack {
        /// Up to here, or of this one.
        psn: Psn,
        /// Which.
        syndrome: Syndrome,
        /// Messages completed by then.
        msn: u32,
    },
    /// The data of a READ.
    Read(ReadReply),
    /// The value that an atomic found.
    Atomic {
        /// The request's.
        psn: Psn,
        /// Messages completed by then.
        msn: u32,
        /// The value.
        value: u64,
    },
}

/// The data of a READ, as far as not yet sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadReply {
    /// PSN of the first packet.
    pub(super) first: Psn,
    /// Packets in all.
    pub(super) packets: u32,
    /// Packets sent.
    pub(super) sent: u32,
    /// Where the data is.
    pub(super) va: u64,
    /// Under which key.
    pub(super) rkey: Key,
    /// Bytes.
    pub(super) len: u32,
    /// Messages completed with this one.
    pub(super) msn: u32,
}

impl ReadReply {
    /// A READ response without data.
    pub(super) fn empty(psn: Psn, msn: u32) -> Self {
        Self { first: psn, packets: 1, sent: 0, va: 0, rkey: Key::new(0), len: 0, msn }
    }
}

impl Reply {
    /// The PSN that the answer begins with.
    fn psn(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Atomic { psn, .. } => *psn,
            Self::Read(read) => read.first,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Replies {
    queue: VecDeque<Reply>,
}

impl Replies {
    /// Adds an acknowledgement or NAK. It takes the place of one right before it, whose meaning it
    /// includes: both acknowledge everything before their PSN. Only a NAK is not forgotten for the
    /// sake of an acknowledgement of something earlier.
    pub(super) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        let new = Reply::Ack { psn, syndrome, msn };
        match self.queue.back_mut() {
            Some(Reply::Ack { psn: before, syndrome: kind, .. })
                if !matches!(kind, Syndrome::Ack { .. })
                    && matches!(syndrome, Syndrome::Ack { .. })
                    && psn.before(*before) => {}
            Some(last @ Reply::Ack { .. }) => *last = new,
            _ => self.queue.push_back(new),
        }
    }

    /// Adds the answer to a READ or atomic.
    pub(super) fn push(&mut self, reply: Reply) {
        self.queue.push_back(reply);
    }

    /// The peer asks again from `psn` on: what would answer from there is not sent, it will be asked
    /// for again.
    pub(super) fn cancel_from(&mut self, psn: Psn) {
        self.queue.retain(|reply| reply.psn().before(psn));
    }

    /// READs and atomics among them.
    pub(super) fn reads(&self) -> usize {
        self.queue.iter().filter(|reply| !matches!(reply, Reply::Ack { .. })).count()
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Reply> {
        self.queue.front_mut()
    }

    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}
