//! Events of an engine, as one type. Counters, comments in captures, traces, the asynchronous
//! events of verbs and explanations for users are derived from them.

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

/// An event in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet was dropped.
    Dropped {
        /// The reason.
        reason: DropReason,
        /// The destination QP, if the packet could be parsed far enough.
        qpn: Option<Qpn>,
        /// The PSN of the packet, if the packet could be parsed far enough.
        psn: Option<Psn>,
    },
    /// A NAK (also an RNR NAK) was sent. If the packet that a pending NAK would request arrives
    /// first, the NAK is not sent and there is no event.
    NakSent {
        /// The local QP.
        qpn: Qpn,
        /// The PSN in the NAK.
        psn: Psn,
        /// The error in the request.
        error: ResponderError,
    },
    /// The peer refused a request with a NAK.
    NakReceived {
        /// The local QP.
        qpn: Qpn,
        /// The PSN in the NAK.
        psn: Psn,
        /// The NAK code.
        code: NakCode,
    },
    /// The peer had no receive posted and sent an RNR NAK.
    RnrNakReceived {
        /// The local QP.
        qpn: Qpn,
        /// The PSN in the NAK.
        psn: Psn,
    },
    /// Requests are sent again.
    Retry {
        /// The local QP.
        qpn: Qpn,
        /// The first PSN that is sent again.
        psn: Psn,
        /// The cause.
        cause: RetryCause,
    },
    /// A request failed and moved the QP into the error state.
    RequestFailed {
        /// The local QP.
        qpn: Qpn,
        /// The completion status of the request.
        status: Status,
        /// The exact reason, if an access to local memory failed.
        detail: Option<AccessError>,
        /// A description of the request.
        request: FailedRequest,
    },
    /// The first packet arrived on a QP in RTR (`IBV_EVENT_COMM_EST`).
    CommunicationEstablished {
        /// The local QP.
        qpn: Qpn,
    },
    /// The send queue has drained (`IBV_EVENT_SQ_DRAINED`).
    SqDrained {
        /// The local QP.
        qpn: Qpn,
    },
    /// The responder moved the QP into the error state because of an invalid request. Verbs report
    /// this as `IBV_EVENT_QP_REQ_ERR` or `IBV_EVENT_QP_ACCESS_ERR`.
    ResponderFailed {
        /// The local QP.
        qpn: Qpn,
        /// The error in the request.
        error: ResponderError,
        /// The memory that the peer's packet named, if it named any.
        asked: Option<MemoryRange>,
    },
    /// A shared receive queue fell below its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached {
        /// The number of the shared receive queue.
        srq: u32,
    },
    /// A QP in the error state has taken its last receive from its shared queue. Verbs report this
    /// as `IBV_EVENT_QP_LAST_WQE_REACHED`.
    LastWqeReached {
        /// The local QP.
        qpn: Qpn,
    },
    /// Packets of the peer arrive marked "congestion experienced"; the peer is notified.
    CongestionSeen {
        /// The local QP.
        qpn: Qpn,
    },
    /// The peer notified us that our packets arrive marked; the QP sends more slowly.
    CongestionNotified {
        /// The local QP.
        qpn: Qpn,
    },
    /// A copy found that registered memory was not accessible. Other events report what happens to
    /// the QP.
    MemoryFaulted {
        /// The local QP.
        qpn: Qpn,
        /// The address and the cause.
        fault: MemoryFault,
    },
    /// A completion queue overflowed (`IBV_EVENT_CQ_ERR`). All QPs that complete there enter the
    /// error state.
    CqOverflow {
        /// The [`id`](crate::queue::CompletionQueue::id) of the completion queue.
        cq: u64,
        /// The QP whose completion was the first to be lost.
        qpn: Qpn,
    },
}

/// The object that an asynchronous event of verbs belongs to. IBTA 11.6.3.1.
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
    /// Returns the object of an affiliated asynchronous event of verbs, if this is one. Such events
    /// are never all lost: of each kind, the newest of each object is kept.
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

/// This assertion keeps the size of an event within the bound on the memory for events.
const _: () = assert!(size_of::<Event>() * MAX_EVENTS <= MAX_EVENT_BYTES);

/// A memory range that a request names: memory of the peer or, in a scatter/gather list, of the
/// program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// The address of the first byte.
    pub addr: u64,
    /// The length in bytes.
    pub len: u32,
    /// The key of the region.
    pub key: Key,
}

/// The description of a failed request, for messages to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// The operation.
    pub op: CompletionOp,
    /// The memory range at fault: the invalid element of the request's own list, or else the peer's
    /// range.
    pub range: Option<MemoryRange>,
    /// The address of the peer.
    pub peer: IpAddr,
    /// The QP of the peer.
    pub peer_qp: Qpn,
    /// Whether the peer has ever responded on this connection.
    pub answered: bool,
    /// The oldest unacknowledged PSN on this connection.
    pub una: Psn,
}

/// The reason why requests are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryCause {
    /// No acknowledgement came within the ACK timeout.
    Timeout,
    /// No acknowledgement came for some round trips. This does not count as a retry in the sense of
    /// `retry_cnt`.
    RoundTripTimeout,
    /// The responder reported a gap in the PSNs.
    SequenceNak,
    /// A response skipped a READ or atomic whose own response must have been lost.
    ImpliedNak,
    /// The time to wait after an RNR NAK has passed.
    ReceiverNotReady,
}

/// An error that a responder finds in a request. IBTA 9.9.3 (table 59). The table in `rc::errors`
/// states the reaction to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponderError {
    /// The PSN is beyond the expected one: a packet was lost.
    SequenceGap,
    /// No receive was posted.
    ReceiverNotReady,
    /// A First, Middle, Last or Only packet does not continue the current message.
    OpcodeOutOfSequence,
    /// The QP's access flags do not enable the operation, or it is not implemented.
    OperationNotEnabled,
    /// More READs and atomics are outstanding than `max_dest_rd_atomic`.
    TooManyReads,
    /// The length of a packet contradicts its opcode, the path MTU or the RETH.
    BadLength,
    /// The message is longer than the receive posted for it.
    MessageTooLong,
    /// The address of an atomic is not a multiple of 8.
    MisalignedAtomic,
    /// A SEND with invalidate does not name a type 2 window bound to this QP.
    InvalidateRefused,
    /// An XRC request names a shared receive queue that is not in the QP's domain.
    UnknownXrcSrq,
    /// The peer has no right to this access.
    RemoteAccess(AccessError),
    /// The receive buffer posted by the program is not valid.
    BadReceiveBuffer(AccessError),
}

impl Event {
    /// Returns the QP that the event belongs to, if any.
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
            Self::TooManyReads => "more READs and atomics outstanding than max_dest_rd_atomic",
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

/// The destination of events. It counts every event and keeps the newest until the caller takes
/// them.
#[derive(Debug, Default)]
pub(crate) struct EventSink {
    pub(crate) counters: Counters,
    /// The PSN of the packet being handled, if it could be parsed.
    pub(crate) psn: Option<Psn>,
    /// Whether a completion queue has overflowed.
    pub(crate) overflowed: bool,
    /// The queue pairs that received their first packet, if a connection manager needs them.
    pub(crate) first_packets: Option<Vec<Qpn>>,
    queue: VecDeque<Event>,
    /// Affiliated events that newer events displaced from `queue`. All are older than those in
    /// `queue`.
    displaced: KeyedQueue<Event>,
    /// The counters of the queue pairs that had an event.
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
        // A caller that takes no events loses the oldest ones, except events that a program must
        // receive about its objects.
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

    /// Returns the counters of a queue pair.
    pub(crate) fn of_qp(&self, qpn: Qpn) -> QpCounters {
        self.of_qps.get(&qpn).copied().unwrap_or_default()
    }

    /// Forgets the counters and events of a destroyed queue pair.
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
        // Of several events of one kind, only one is kept.
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
