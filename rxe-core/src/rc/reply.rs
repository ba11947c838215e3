//! Answers that wait to be sent, in the order of their PSNs. Acknowledgements coalesce: one that
//! would directly follow another replaces it, so a burst of requests costs one packet back.
//! IBTA 9.7.5.1.2.
//!
//! The queue is bounded. It holds at most `max_dest_rd_atomic` first answers to READs and atomics,
//! as many repeated answers, and between two of these at most one acknowledgement or NAK. First and
//! repeated answers are counted apart: a copy of a request that the network made or delayed must
//! not use up what the peer may have outstanding.

use std::collections::VecDeque;

use crate::mem::PdId;
use crate::types::{Key, Psn};
use crate::wire::{NakCode, Syndrome};

/// The MSN in an answer has 24 bits.
pub(super) const MSN_MASK: u32 = 0xff_ffff;

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Acknowledgement or NAK.
    Ack {
        /// The last PSN acknowledged, or the PSN that the NAK is for.
        psn: Psn,
        /// ACK, or the kind of NAK.
        syndrome: Syndrome,
        /// Messages completed by then.
        msn: u32,
    },
    /// The data of a READ.
    Read(ReadReply),
    /// The value that an atomic found.
    Atomic {
        /// The PSN of the request.
        psn: Psn,
        /// Messages completed by then.
        msn: u32,
        /// The value before the operation.
        value: u64,
        /// This answers a duplicate.
        again: bool,
    },
}

/// A READ whose data is not completely sent.
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
    /// The virtual address of the data.
    pub(super) va: u64,
    /// The key of the region or window.
    pub(super) rkey: Key,
    /// Bytes in all.
    pub(super) len: u32,
    /// Messages completed with this one.
    pub(super) msn: u32,
    /// This answers a duplicate.
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
    /// The first PSN of the answer.
    fn psn(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Atomic { psn, .. } => *psn,
            Self::Read(read) => read.first,
        }
    }

    /// One past the last PSN of the answer.
    fn end(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Atomic { psn, .. } => psn.next(),
            Self::Read(read) => read.first.add(read.packets),
        }
    }

    /// `None` for an acknowledgement or NAK. Otherwise whether this answers a duplicate.
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
    /// It is stored in the queue pair itself, so a peer with one request at a time needs no other
    /// memory. `None` only if there is no answer at all.
    newest: Option<Reply>,
}

impl Replies {
    /// Adds an acknowledgement or NAK. It replaces one directly before it: both acknowledge
    /// everything before their PSN, so the later one says the same and more. But a waiting NAK is
    /// not replaced by an acknowledgement of an earlier PSN; [`Replies::take_resend`] removes it
    /// when its packet has come.
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

    /// Removes the newest answer if it asks the peer to send again. Returns whether it did.
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

    /// Adds the answer to a duplicate READ or atomic. It replaces waiting answers to any of the same
    /// PSNs, and goes before answers to later ones. Returns `false` and changes nothing if there
    /// would be more than `limit` answers to duplicates.
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

    /// How many first answers to READs and atomics wait.
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

    /// Removes READ data and atomic values: the queue pair is in the error state. The oldest first
    /// answer among them would have acknowledged everything before it, so an acknowledgement
    /// replaces it.
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

    /// Removes all answers.
    pub(super) fn clear(&mut self) {
        self.older.clear();
        self.newest = None;
    }

    /// Whether no READ data, atomic value or NAK waits: acknowledgements are not urgent.
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
