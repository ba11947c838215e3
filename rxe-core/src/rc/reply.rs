//! Answers waiting to be sent, in the order of their PSNs. Acknowledgements coalesce: one that
//! would follow another right away replaces it, so a burst of requests costs one packet back.
//! IBTA 9.7.5.1.2.
//!
//! The queue is bounded: of answers to READs and atomics there are at most `max_dest_rd_atomic` for
//! the first time and as many for another time, and between two of them stands at most one other
//! answer. The two are counted apart: a copy of a request that the network made or held back must
//! not use up what the peer may have outstanding.

use std::collections::VecDeque;

use crate::mem::PdId;
use crate::types::{Key, Psn};
use crate::wire::{NakCode, Syndrome};

use super::responder::MSN_MASK;

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
        /// It was answered before.
        again: bool,
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
    /// The protection domain whose memory it is.
    pub(super) pd: PdId,
    /// Where the data is.
    pub(super) va: u64,
    /// Under which key.
    pub(super) rkey: Key,
    /// Bytes.
    pub(super) len: u32,
    /// Messages completed with this one.
    pub(super) msn: u32,
    /// It was answered before.
    pub(super) again: bool,
}

impl ReadReply {
    /// A READ response without data.
    pub(super) fn empty(psn: Psn, msn: u32) -> Self {
        let (pd, rkey) = (PdId(0), Key::new(0));
        Self { first: psn, packets: 1, sent: 0, pd, va: 0, rkey, len: 0, msn, again: false }
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

    /// One past the last PSN of the request that it answers.
    fn end(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Atomic { psn, .. } => psn.next(),
            Self::Read(read) => read.first.add(read.packets),
        }
    }

    /// Whether it is an acknowledgement or NAK, or else whether it was answered before.
    fn again(&self) -> Option<bool> {
        match self {
            Self::Ack { .. } => None,
            Self::Atomic { again, .. } | Self::Read(ReadReply { again, .. }) => Some(*again),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Replies {
    /// All but the newest.
    older: VecDeque<Reply>,
    /// Kept in the queue pair itself: a peer with one request at a time needs no other memory.
    /// `None` only if there is no answer at all.
    newest: Option<Reply>,
}

impl Replies {
    /// Adds an acknowledgement or NAK. It takes the place of one right before it, whose meaning it
    /// includes: both acknowledge everything before their PSN. A NAK that is waiting stays where the
    /// acknowledgement is of something earlier; [`Replies::take_resend`] takes it out when its packet
    /// has come.
    pub(super) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        let new = Reply::Ack { psn, syndrome, msn };
        match &mut self.newest {
            Some(Reply::Ack { psn: before, syndrome: kind, .. })
                if !matches!(kind, Syndrome::Ack { .. })
                    && matches!(syndrome, Syndrome::Ack { .. })
                    && psn.before(*before) => {}
            Some(last @ Reply::Ack { .. }) => *last = new,
            _ => self.push(new),
        }
    }

    /// Takes out the newest answer if it is one that asks the peer to send again. Whether it was.
    pub(super) fn take_resend(&mut self) -> bool {
        let asks = matches!(
            self.newest,
            Some(Reply::Ack {
                syndrome: Syndrome::Nak(NakCode::PsnSequenceError) | Syndrome::RnrNak { .. },
                ..
            })
        );
        if asks {
            self.newest = self.older.pop_back();
        }
        asks
    }

    /// Adds the answer to a READ or atomic.
    pub(super) fn push(&mut self, reply: Reply) {
        if let Some(older) = self.newest.replace(reply) {
            self.older.push_back(older);
        }
    }

    /// Adds another answer to a READ or atomic, in place of what still waits to answer any of the
    /// same PSNs, and before what answers later ones. `false`, and nothing is changed, if that would
    /// be more than `limit`.
    pub(super) fn repeat(&mut self, reply: Reply, limit: usize) -> bool {
        let (first, end) = (reply.psn(), reply.end());
        let replaced =
            |old: &Reply| old.again().is_some() && old.psn().before(end) && first.before(old.end());
        let others = self.iter().filter(|old| old.again() == Some(true) && !replaced(old));
        if others.count() >= limit {
            return false;
        }
        self.older.extend(self.newest.take());
        self.older.retain(|old| !replaced(old));
        let place = self.older.iter().position(|old| !old.psn().before(first));
        self.older.insert(place.unwrap_or(self.older.len()), reply);
        self.newest = self.older.pop_back();
        true
    }

    /// READs and atomics among them that are answered for the first time.
    pub(super) fn reads(&self) -> usize {
        self.iter().filter(|reply| reply.again() == Some(false)).count()
    }

    pub(super) fn front(&self) -> Option<&Reply> {
        self.older.front().or(self.newest.as_ref())
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Reply> {
        self.older.front_mut().or(self.newest.as_mut())
    }

    pub(super) fn pop(&mut self) {
        if self.older.pop_front().is_none() {
            self.newest = None;
        }
    }

    /// Whether READ data or atomic values are waiting.
    pub(super) fn has_data(&self) -> bool {
        self.iter().any(|reply| reply.again().is_some())
    }

    /// Takes out READ data and atomic values: the queue pair is in the error state. The first that
    /// answers a new request would have acknowledged everything before it, so an acknowledgement takes
    /// its place.
    pub(super) fn drop_data(&mut self) {
        if !self.has_data() {
            return;
        }
        let all: Vec<_> = self.older.drain(..).chain(self.newest.take()).collect();
        let mut acknowledged = false;
        for reply in all {
            let (psn, msn) = match reply {
                Reply::Ack { .. } => {
                    self.push(reply);
                    continue;
                }
                Reply::Read(read) => (read.first.add(read.sent), read.msn),
                Reply::Atomic { psn, msn, .. } => (psn, msn),
            };
            if reply.again() == Some(false) && !std::mem::replace(&mut acknowledged, true) {
                self.acknowledge(psn.sub(1), Syndrome::ACK, msn.wrapping_sub(1) & MSN_MASK);
            }
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.older.clear();
        self.newest = None;
    }

    /// Whether there is nothing that the peer waits for: no data, no value, no NAK.
    pub(super) fn can_wait(&self) -> bool {
        let is_ack = |r: &Reply| matches!(r, Reply::Ack { syndrome: Syndrome::Ack { .. }, .. });
        self.iter().all(is_ack)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    pub(super) fn len(&self) -> usize {
        self.older.len() + usize::from(self.newest.is_some())
    }

    fn iter(&self) -> impl Iterator<Item = &Reply> {
        self.older.iter().chain(&self.newest)
    }
}
