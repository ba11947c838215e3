//! Everything worth knowing that happens in an engine, as one typed value. It feeds the counters,
//! captures' comments, traces, the verbs' asynchronous events and what is explained to a person.

mod counters;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::discriminant;
use std::net::IpAddr;

pub use counters::{Counters, QpCounters};

use crate::bounds::{MAX_EVENT_BYTES, MAX_EVENTS};
use crate::keyed::{Keyed, KeyedQueue};
use crate::types::{AccessError, CompletionOp, Key, MemoryFault, Psn, Qpn, Status};
use crate::wire::{DropReason, NakCode};

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet was dropped.
    Dropped {
        /// Why.
        reason: DropReason,
        /// For which QP, as far as that could be read.
        qpn: Option<Qpn>,
        /// Which packet, as far as that could be read.
        psn: Option<Psn>,
    },
    /// A NAK or "receiver not ready" was sent. If the packet that it would ask for comes before it is
    /// sent, it is not, and there is no event.
    NakSent {
        /// The own QP.
        qpn: Qpn,
        /// The PSN in the NAK.
        psn: Psn,
        /// What was wrong with the request.
        error: ResponderError,
    },
    /// The peer refused a request.
    NakReceived {
        /// The own QP.
        qpn: Qpn,
        /// The PSN in the NAK.
        psn: Psn,
        /// Why.
        code: NakCode,
    },
    /// The peer had no receive posted.
    RnrNakReceived {
        /// The own QP.
        qpn: Qpn,
        /// The PSN in the NAK.
        psn: Psn,
    },
    /// Requests are sent again.
    Retry {
        /// The own QP.
        qpn: Qpn,
        /// From here on.
        psn: Psn,
        /// Why.
        cause: RetryCause,
    },
    /// A request failed and took the QP into the error state.
    RequestFailed {
        /// The own QP.
        qpn: Qpn,
        /// How the request completed.
        status: Status,
        /// What exactly was wrong, where it was local memory.
        detail: Option<AccessError>,
        /// Which request it was.
        request: FailedRequest,
    },
    /// The first packet came on a QP that is ready to receive (`IBV_EVENT_COMM_EST`).
    CommunicationEstablished {
        /// The own QP.
        qpn: Qpn,
    },
    /// The send queue has drained (`IBV_EVENT_SQ_DRAINED`).
    SqDrained {
        /// The own QP.
        qpn: Qpn,
    },
    /// The responder went into the error state because the peer misbehaved
    /// (`IBV_EVENT_QP_REQ_ERR`, `IBV_EVENT_QP_ACCESS_ERR`).
    ResponderFailed {
        /// The own QP.
        qpn: Qpn,
        /// How.
        error: ResponderError,
        /// What memory the peer's packet named, if it did.
        asked: Option<MemoryRange>,
    },
    /// A shared receive queue fell below its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached {
        /// The queue's number.
        srq: u32,
    },
    /// A QP in the error state will take nothing more from its shared receive queue
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached {
        /// The own QP.
        qpn: Qpn,
    },
    /// What the peer sends arrives marked "congestion experienced"; it is told.
    CongestionSeen {
        /// The own QP.
        qpn: Qpn,
    },
    /// The peer says that what we send arrives marked; we slow down.
    CongestionNotified {
        /// The own QP.
        qpn: Qpn,
    },
    /// Memory that is registered was not there when a copy was made. What becomes of the QP is told
    /// by other events.
    MemoryFaulted {
        /// The own QP.
        qpn: Qpn,
        /// Where, and why.
        fault: MemoryFault,
    },
    /// A completion queue overflowed (`IBV_EVENT_CQ_ERR`); all QPs that complete there go into the
    /// error state.
    CqOverflow {
        /// The queue ([`CompletionQueue::id`](crate::queue::CompletionQueue::id)).
        cq: u64,
        /// The QP whose completion was the first to be lost.
        qpn: Qpn,
    },
}

/// The object that an asynchronous event of verbs is about. IBTA 11.6.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Affiliation {
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq(u64),
    /// A shared receive queue.
    Srq(u32),
}

impl Event {
    /// The object, if verbs have an affiliated asynchronous event for this. None of them is lost,
    /// however many there are: of each kind, the newest of each object is kept.
    pub fn affiliation(&self) -> Option<Affiliation> {
        match *self {
            Self::CommunicationEstablished { qpn }
            | Self::SqDrained { qpn }
            | Self::ResponderFailed { qpn, .. }
            | Self::LastWqeReached { qpn } => Some(Affiliation::Qp(qpn)),
            Self::CqOverflow { cq, .. } => Some(Affiliation::Cq(cq)),
            Self::SrqLimitReached { srq } => Some(Affiliation::Srq(srq)),
            _ => None,
        }
    }
}

impl Keyed for Event {
    type Key = Affiliation;

    fn keys(&self) -> [Option<Affiliation>; 2] {
        [self.affiliation(), None]
    }
}

/// The newest events are kept, so they must not grow.
const _: () = assert!(size_of::<Event>() * MAX_EVENTS <= MAX_EVENT_BYTES);

/// Memory as a request names it: the peer's or, by a gather list, the program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// Its first byte.
    pub addr: u64,
    /// How many bytes.
    pub len: u32,
    /// The region's key.
    pub key: Key,
}

/// What a person wants to know of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// What it was.
    pub op: CompletionOp,
    /// The memory it went wrong with: a bad element of its own list, or else the peer's range.
    pub range: Option<MemoryRange>,
    /// Where it went.
    pub peer: IpAddr,
    /// To which QP there.
    pub peer_qp: Qpn,
    /// Whether that peer has ever answered anything on this connection.
    pub answered: bool,
    /// The oldest PSN on this connection that is not answered.
    pub una: Psn,
}

/// Why requests are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryCause {
    /// No acknowledgement in time.
    Timeout,
    /// No acknowledgement for some round trips. This is no retry in the sense of `retry_cnt`.
    RoundTripTimeout,
    /// The responder saw a gap.
    SequenceNak,
    /// An answer skipped a READ or atomic whose own answer must have been lost.
    ImpliedNak,
    /// The time that the peer asked for after "receiver not ready" is over.
    ReceiverNotReady,
}

/// What a responder finds wrong with a request. IBTA 9.9.3 (table 59). What follows from each is in
/// one table, `rc::errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponderError {
    /// A PSN beyond the expected one: something was lost.
    SequenceGap,
    /// No receive was posted.
    ReceiverNotReady,
    /// A First, Middle, Last or Only where it does not belong.
    OpcodeOutOfSequence,
    /// An operation that the QP's access flags do not enable, or that is not implemented.
    OperationNotEnabled,
    /// More READs and atomics at once than `max_dest_rd_atomic`.
    TooManyReads,
    /// A packet's length contradicts its opcode, the path MTU or the RETH.
    BadLength,
    /// A message longer than the receive posted for it.
    MessageTooLong,
    /// An atomic's address is not a multiple of 8.
    MisalignedAtomic,
    /// A SEND with invalidate names no window that the peer could give back.
    InvalidateRefused,
    /// An XRC request names a shared receive queue that is not in the QP's domain.
    UnknownXrcSrq,
    /// The peer may not use this memory like this.
    RemoteAccess(AccessError),
    /// The program's own receive buffer is not valid.
    BadReceiveBuffer(AccessError),
}

impl Event {
    /// The QP that it is about, if it is about one.
    pub const fn qpn(&self) -> Option<Qpn> {
        match *self {
            Self::Dropped { qpn, .. } => qpn,
            Self::NakSent { qpn, .. }
            | Self::NakReceived { qpn, .. }
            | Self::RnrNakReceived { qpn, .. }
            | Self::Retry { qpn, .. }
            | Self::RequestFailed { qpn, .. }
            | Self::CommunicationEstablished { qpn }
            | Self::SqDrained { qpn }
            | Self::LastWqeReached { qpn }
            | Self::CongestionSeen { qpn }
            | Self::CongestionNotified { qpn }
            | Self::ResponderFailed { qpn, .. }
            | Self::MemoryFaulted { qpn, .. }
            | Self::CqOverflow { qpn, .. } => Some(qpn),
            Self::SrqLimitReached { .. } => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped { reason, qpn: Some(qpn), .. } => {
                write!(f, "dropped (QP {qpn}): {}", reason.explain())
            }
            Self::Dropped { reason, qpn: None, .. } => write!(f, "dropped: {}", reason.explain()),
            Self::NakSent { psn, error, .. } => write!(f, "NAKed at PSN {psn}: {error}"),
            Self::NakReceived { psn, code, .. } => write!(f, "peer NAKed PSN {psn}: {code:?}"),
            Self::RnrNakReceived { psn, .. } => {
                write!(f, "peer has no receive posted for PSN {psn}")
            }
            Self::Retry { psn, cause, .. } => write!(f, "sending again from PSN {psn}: {cause:?}"),
            Self::RequestFailed { status, detail, .. } => {
                write!(f, "request failed: {status}")?;
                detail.map_or(Ok(()), |d| write!(f, " ({})", d.explain()))
            }
            Self::CommunicationEstablished { .. } => f.write_str("first packet on this connection"),
            Self::SqDrained { .. } => f.write_str("send queue drained"),
            Self::ResponderFailed { error, .. } => write!(f, "QP into error state: {error}"),
            Self::SrqLimitReached { srq } => write!(f, "SRQ {srq} fell below its limit"),
            Self::LastWqeReached { .. } => f.write_str("last receive of the shared queue returned"),
            Self::CongestionSeen { .. } => f.write_str("arrives marked: congestion on the way"),
            Self::CongestionNotified { .. } => {
                f.write_str("told of congestion on the way to the peer: sending slower")
            }
            Self::MemoryFaulted { fault, .. } => write!(
                f,
                "no access to registered memory at {:#x}: {}",
                fault.addr,
                AccessError::Faulted(*fault).explain()
            ),
            Self::CqOverflow { .. } => f.write_str("completion queue overflowed"),
        }
    }
}

impl fmt::Display for ResponderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SequenceGap => "a packet before this one is missing",
            Self::ReceiverNotReady => "no receive was posted",
            Self::OpcodeOutOfSequence => "this packet does not continue the message before it",
            Self::OperationNotEnabled => {
                "the QP's qp_access_flags do not enable this operation, or it is unknown"
            }
            Self::TooManyReads => "more READs and atomics at once than max_dest_rd_atomic",
            Self::BadLength => "the packet's length contradicts its opcode, path MTU or RETH",
            Self::MessageTooLong => "the message is longer than the receive posted for it",
            Self::MisalignedAtomic => "an atomic's address must be a multiple of 8",
            Self::InvalidateRefused => {
                "no type 2 window bound to this QP has the key to invalidate"
            }
            Self::UnknownXrcSrq => "no such shared receive queue in the QP's XRC domain",
            Self::RemoteAccess(why) => return write!(f, "rkey refused: {}", why.explain()),
            Self::BadReceiveBuffer(why) => {
                return write!(f, "the posted receive buffer is not valid: {}", why.explain());
            }
        })
    }
}

/// Where events go: every one is counted, the newest are kept until somebody takes them.
#[derive(Debug, Default)]
pub(crate) struct EventSink {
    pub(crate) counters: Counters,
    /// The PSN of the packet that is being handled, as far as it could be read.
    pub(crate) psn: Option<Psn>,
    /// A completion queue has overflowed.
    pub(crate) overflowed: bool,
    /// The queue pairs that have had their first packet, if a connection manager wants to know.
    pub(crate) first_packets: Option<Vec<Qpn>>,
    queue: VecDeque<Event>,
    /// Affiliated events that newer ones have displaced from `queue`: older than all there.
    displaced: KeyedQueue<Event>,
    /// Of those queue pairs on which anything was counted.
    of_qps: HashMap<Qpn, QpCounters>,
}

impl EventSink {
    pub(crate) fn emit(&mut self, event: Event) {
        self.counters.count(&event);
        if let Some(qpn) = event.qpn()
            && let Some(field) = QpCounters::field(&event)
        {
            let count = field(self.of_qps.entry(qpn).or_default());
            *count = count.saturating_add(1);
        }
        // Who never takes events loses the oldest ones, but not what a program must learn of its objects.
        if self.queue.len() == MAX_EVENTS
            && let Some(oldest) = self.queue.pop_front()
            && let Some(object) = oldest.affiliation()
        {
            let same = |event: &Event| discriminant(event) == discriminant(&oldest);
            self.displaced.remove_if(object, same);
            self.displaced.push(oldest);
        }
        self.queue.push_back(event);
    }

    pub(crate) fn note_first_packet(&mut self, qpn: Qpn) {
        if let Some(qpns) = &mut self.first_packets {
            qpns.push(qpn);
        }
    }

    pub(crate) fn has_first_packets(&self) -> bool {
        self.first_packets.as_ref().is_some_and(|qpns| !qpns.is_empty())
    }

    pub(crate) fn take(&mut self) -> Option<Event> {
        self.displaced.pop().or_else(|| self.queue.pop_front())
    }

    /// What was counted on a queue pair.
    pub(crate) fn of_qp(&self, qpn: Qpn) -> QpCounters {
        self.of_qps.get(&qpn).copied().unwrap_or_default()
    }

    /// The queue pair is destroyed.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        self.of_qps.remove(&qpn);
        self.displaced.remove(Affiliation::Qp(qpn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_object_loses_its_events_to_a_flood() {
        let mut events = EventSink::default();
        let qpns: Vec<_> = (0..3000).map(|number| Qpn::from_wire(16 + number)).collect();
        for &qpn in &qpns {
            events.emit(Event::LastWqeReached { qpn });
            events.emit(Event::SqDrained { qpn });
            for _ in 0..3 {
                events.emit(Event::CongestionSeen { qpn });
            }
        }
        // Of several of one kind, one is kept.
        events.emit(Event::LastWqeReached { qpn: qpns[0] });
        (0..MAX_EVENTS).for_each(|_| events.emit(Event::CongestionSeen { qpn: qpns[1] }));
        events.forget(qpns[2]);
        let taken = std::iter::from_fn(|| events.take());
        let taken: Vec<_> = taken.filter(|event| event.affiliation().is_some()).collect();
        assert_eq!(taken.len(), 2 * (qpns.len() - 1));
        assert!(taken.contains(&Event::SqDrained { qpn: qpns[0] }), "{:?}", taken.first());
        assert_eq!(taken.last(), Some(&Event::LastWqeReached { qpn: qpns[0] }));
    }

    #[test]
    fn what_happens_is_counted_by_queue_pair_and_strangers_make_no_entries() {
        let mut events = EventSink::default();
        let (qpn, psn) = (Qpn::from_wire(0x12), Psn::new(7));
        let dropped = |reason, qpn| Event::Dropped { reason, qpn: Some(qpn), psn: None };
        for number in 0..1000 {
            events.emit(dropped(DropReason::UnknownQp, Qpn::from_wire(number)));
        }
        assert!(events.of_qps.is_empty());
        events.emit(dropped(DropReason::GhostAck, qpn));
        events.emit(Event::RnrNakReceived { qpn, psn });
        events.emit(Event::NakReceived { qpn, psn, code: NakCode::PsnSequenceError });
        let error = ResponderError::ReceiverNotReady;
        (0..2).for_each(|_| events.emit(Event::NakSent { qpn, psn, error }));
        events.emit(Event::SqDrained { qpn });
        let causes = [
            RetryCause::Timeout,
            RetryCause::RoundTripTimeout,
            RetryCause::SequenceNak,
            RetryCause::ImpliedNak,
            RetryCause::ReceiverNotReady,
        ];
        for (times, cause) in (1..).zip(causes) {
            (0..times).for_each(|_| events.emit(Event::Retry { qpn, psn, cause }));
        }
        let wanted = QpCounters {
            dropped: 1,
            rcvd_rnr_err: 1,
            naks_received: 1,
            send_rnr_err: 2,
            ack_timeout: 1,
            round_trip_timeout: 2,
            retry_sequence_nak: 3,
            retry_implied_nak: 4,
            retry_rnr: 5,
            ..QpCounters::default()
        };
        assert_eq!(events.of_qp(qpn), wanted);
        assert_eq!(wanted.retries(), 15);
        assert_eq!(events.counters.rcvd_seq_err, 1);
        events.forget(qpn);
        assert!(events.of_qps.is_empty());
    }
}
