//! Counters, made from events and packets. Names follow the hw_counters that kernel rxe shows
//! where it has such a one.

use std::ops::AddAssign;

use super::{Event, RetryCause};
use crate::types::Status;
use crate::wire::{DropReason, NakCode};

/// What has happened on one queue pair since it was made. A quiet connection has no such events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Packets for it that were dropped.
    pub dropped: u32,
    /// Times that it went back and sent again because no answer came in time.
    pub ack_timeout: u32,
    /// The same because no answer came for some round trips; these are no retries in the sense of
    /// `retry_cnt`.
    pub round_trip_timeout: u32,
    /// The same because of a sequence NAK.
    pub retry_sequence_nak: u32,
    /// The same because an answer was skipped.
    pub retry_implied_nak: u32,
    /// The same after "receiver not ready".
    pub retry_rnr: u32,
    /// "Receiver not ready" sent.
    pub send_rnr_err: u32,
    /// "Receiver not ready" received.
    pub rcvd_rnr_err: u32,
    /// NAKs sent, without "receiver not ready".
    pub naks_sent: u32,
    /// NAKs received, without "receiver not ready".
    pub naks_received: u32,
    /// Congestion notifications sent.
    pub cnp_sent: u32,
    /// Congestion notifications received.
    pub cnp_received: u32,
}

impl QpCounters {
    /// Times that it went back and sent again, for whatever reason.
    pub fn retries(&self) -> u32 {
        [
            self.ack_timeout,
            self.round_trip_timeout,
            self.retry_sequence_nak,
            self.retry_implied_nak,
            self.retry_rnr,
        ]
        .into_iter()
        .fold(0, u32::saturating_add)
    }

    /// The field that counts events of this kind, if one does. An event of a queue pair that does not
    /// exist has none: a stranger chooses that number.
    pub(super) fn field(event: &Event) -> Option<fn(&mut Self) -> &mut u32> {
        use super::ResponderError;
        Some(match event {
            Event::Dropped { reason: DropReason::UnknownQp, .. } => return None,
            Event::Dropped { qpn: Some(_), .. } => |all| &mut all.dropped,
            Event::Retry { cause, .. } => match cause {
                RetryCause::Timeout => |all| &mut all.ack_timeout,
                RetryCause::RoundTripTimeout => |all| &mut all.round_trip_timeout,
                RetryCause::SequenceNak => |all| &mut all.retry_sequence_nak,
                RetryCause::ImpliedNak => |all| &mut all.retry_implied_nak,
                RetryCause::ReceiverNotReady => |all| &mut all.retry_rnr,
            },
            Event::NakSent { error: ResponderError::ReceiverNotReady, .. } => {
                |all| &mut all.send_rnr_err
            }
            Event::NakSent { .. } => |all| &mut all.naks_sent,
            Event::RnrNakReceived { .. } => |all| &mut all.rcvd_rnr_err,
            Event::NakReceived { .. } => |all| &mut all.naks_received,
            Event::CongestionSeen { .. } => |all| &mut all.cnp_sent,
            Event::CongestionNotified { .. } => |all| &mut all.cnp_received,
            _ => return None,
        })
    }
}

/// What an engine has counted since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent.
    pub sent_pkts: u64,
    /// Bytes sent, from BTH to ICRC.
    pub sent_bytes: u64,
    /// Packets received, good or bad.
    pub rcvd_pkts: u64,
    /// Bytes received, from BTH to ICRC.
    pub rcvd_bytes: u64,
    /// Packets of requests that were sent before; `sent_pkts` has them too.
    pub retransmitted_pkts: u64,
    /// Messages that came whole over unreliable connections; of a WRITE nothing else tells.
    pub rcvd_uc_msgs: u64,
    /// Requests that were duplicates.
    pub duplicate_request: u64,
    /// NAKs sent because of a gap.
    pub out_of_seq_request: u64,
    /// "Receiver not ready" sent.
    pub send_rnr_err: u64,
    /// "Receiver not ready" received.
    pub rcvd_rnr_err: u64,
    /// NAKs sent, "receiver not ready" among them.
    pub naks_sent: u64,
    /// NAKs received, without "receiver not ready".
    pub naks_received: u64,
    /// Retries because no answer came in time.
    pub ack_timeout: u64,
    /// Packets sent again because no answer came for some round trips; these are no retries.
    pub round_trip_timeout: u64,
    /// Retries because of a sequence NAK.
    pub retry_sequence_nak: u64,
    /// Retries because an answer was skipped.
    pub retry_implied_nak: u64,
    /// Retries after "receiver not ready".
    pub retry_rnr: u64,
    /// Requests that failed and took their QP into the error state.
    pub request_failed: u64,
    /// Sequence NAKs received.
    pub rcvd_seq_err: u64,
    /// Requests that failed because no answer came for all retries.
    pub retry_exceeded_err: u64,
    /// Requests that failed because the peer never had a receive.
    pub retry_rnr_exceeded_err: u64,
    /// SENDs that completed without error.
    pub rdma_sends: u64,
    /// Receives that completed without error.
    pub rdma_recvs: u64,
    /// Congestion notifications sent.
    pub cnp_sent: u64,
    /// Congestion notifications received.
    pub cnp_received: u64,
    dropped: [u64; DropReason::COUNT],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            sent_pkts: 0,
            sent_bytes: 0,
            rcvd_pkts: 0,
            rcvd_bytes: 0,
            retransmitted_pkts: 0,
            rcvd_uc_msgs: 0,
            duplicate_request: 0,
            out_of_seq_request: 0,
            send_rnr_err: 0,
            rcvd_rnr_err: 0,
            naks_sent: 0,
            naks_received: 0,
            ack_timeout: 0,
            round_trip_timeout: 0,
            retry_sequence_nak: 0,
            retry_implied_nak: 0,
            retry_rnr: 0,
            request_failed: 0,
            rcvd_seq_err: 0,
            retry_exceeded_err: 0,
            retry_rnr_exceeded_err: 0,
            rdma_sends: 0,
            rdma_recvs: 0,
            cnp_sent: 0,
            cnp_received: 0,
            dropped: [0; DropReason::COUNT],
        }
    }
}

impl AddAssign<&Self> for Counters {
    fn add_assign(&mut self, other: &Self) {
        // Every field is named, so that none is forgotten.
        let Self {
            sent_pkts,
            sent_bytes,
            rcvd_pkts,
            rcvd_bytes,
            retransmitted_pkts,
            rcvd_uc_msgs,
            duplicate_request,
            out_of_seq_request,
            send_rnr_err,
            rcvd_rnr_err,
            naks_sent,
            naks_received,
            ack_timeout,
            round_trip_timeout,
            retry_sequence_nak,
            retry_implied_nak,
            retry_rnr,
            request_failed,
            cnp_sent,
            rcvd_seq_err,
            retry_exceeded_err,
            retry_rnr_exceeded_err,
            rdma_sends,
            rdma_recvs,
            cnp_received,
            dropped,
        } = other;
        self.sent_pkts += sent_pkts;
        self.sent_bytes += sent_bytes;
        self.rcvd_pkts += rcvd_pkts;
        self.rcvd_bytes += rcvd_bytes;
        self.retransmitted_pkts += retransmitted_pkts;
        self.rcvd_uc_msgs += rcvd_uc_msgs;
        self.duplicate_request += duplicate_request;
        self.out_of_seq_request += out_of_seq_request;
        self.send_rnr_err += send_rnr_err;
        self.rcvd_rnr_err += rcvd_rnr_err;
        self.naks_sent += naks_sent;
        self.naks_received += naks_received;
        self.ack_timeout += ack_timeout;
        self.round_trip_timeout += round_trip_timeout;
        self.retry_sequence_nak += retry_sequence_nak;
        self.retry_implied_nak += retry_implied_nak;
        self.retry_rnr += retry_rnr;
        self.request_failed += request_failed;
        self.rcvd_seq_err += rcvd_seq_err;
        self.retry_exceeded_err += retry_exceeded_err;
        self.retry_rnr_exceeded_err += retry_rnr_exceeded_err;
        self.rdma_sends += rdma_sends;
        self.rdma_recvs += rdma_recvs;
        self.cnp_sent += cnp_sent;
        self.cnp_received += cnp_received;
        self.dropped.iter_mut().zip(dropped).for_each(|(sum, n)| *sum += n);
    }
}

impl Counters {
    /// Packets dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason.index()]
    }

    /// All reasons for which packets were dropped, with how many.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let all = DropReason::ALL.iter().map(|&reason| (reason, self.dropped(reason)));
        all.filter(|&(_, n)| n > 0)
    }

    /// The counters that kernel rxe has too, by their names in `hw_counters/`, in its order. What the
    /// kernel counts and an engine does not know is left out: `send_err`, `link_downed`.
    pub fn hw_counters(&self) -> [(&'static str, u64); 12] {
        let retries = self.ack_timeout + self.retry_sequence_nak + self.retry_implied_nak;
        [
            ("sent_pkts", self.sent_pkts),
            ("rcvd_pkts", self.rcvd_pkts),
            ("duplicate_request", self.duplicate_request),
            ("out_of_seq_request", self.out_of_seq_request),
            ("rcvd_rnr_err", self.rcvd_rnr_err),
            ("send_rnr_err", self.send_rnr_err),
            ("rcvd_seq_err", self.rcvd_seq_err),
            ("retry_exceeded_err", self.retry_exceeded_err),
            ("retry_rnr_exceeded_err", self.retry_rnr_exceeded_err),
            ("completer_retry_err", retries),
            ("rdma_sends", self.rdma_sends),
            ("rdma_recvs", self.rdma_recvs),
        ]
    }

    /// The counters that kernel rxe does not have, without [`Counters::drops`].
    pub fn own_counters(&self) -> [(&'static str, u64); 14] {
        [
            ("sent_bytes", self.sent_bytes),
            ("rcvd_bytes", self.rcvd_bytes),
            ("retransmitted_pkts", self.retransmitted_pkts),
            ("rcvd_uc_msgs", self.rcvd_uc_msgs),
            ("naks_sent", self.naks_sent),
            ("naks_received", self.naks_received),
            ("ack_timeout", self.ack_timeout),
            ("round_trip_timeout", self.round_trip_timeout),
            ("retry_sequence_nak", self.retry_sequence_nak),
            ("retry_implied_nak", self.retry_implied_nak),
            ("retry_rnr", self.retry_rnr),
            ("request_failed", self.request_failed),
            ("cnp_sent", self.cnp_sent),
            ("cnp_received", self.cnp_received),
        ]
    }

    pub(crate) fn count(&mut self, event: &Event) {
        use super::ResponderError;
        match event {
            Event::Dropped { reason, .. } => self.dropped[reason.index()] += 1,
            Event::NakSent { error, .. } => {
                self.naks_sent += 1;
                match error {
                    ResponderError::SequenceGap => self.out_of_seq_request += 1,
                    ResponderError::ReceiverNotReady => self.send_rnr_err += 1,
                    _ => {}
                }
            }
            Event::NakReceived { code, .. } => {
                self.naks_received += 1;
                self.rcvd_seq_err += u64::from(*code == NakCode::PsnSequenceError);
            }
            Event::RnrNakReceived { .. } => self.rcvd_rnr_err += 1,
            Event::Retry { cause, .. } => match cause {
                RetryCause::Timeout => self.ack_timeout += 1,
                RetryCause::RoundTripTimeout => self.round_trip_timeout += 1,
                RetryCause::SequenceNak => self.retry_sequence_nak += 1,
                RetryCause::ImpliedNak => self.retry_implied_nak += 1,
                RetryCause::ReceiverNotReady => self.retry_rnr += 1,
            },
            Event::RequestFailed { status, .. } => {
                self.request_failed += 1;
                match status {
                    Status::RetryExceeded => self.retry_exceeded_err += 1,
                    Status::RnrRetryExceeded => self.retry_rnr_exceeded_err += 1,
                    _ => {}
                }
            }
            Event::CongestionSeen { .. } => self.cnp_sent += 1,
            Event::CongestionNotified { .. } => self.cnp_received += 1,
            Event::CommunicationEstablished { .. }
            | Event::MemoryFaulted { .. }
            | Event::SqDrained { .. }
            | Event::ResponderFailed { .. }
            | Event::SrqLimitReached { .. }
            | Event::LastWqeReached { .. }
            | Event::CqOverflow { .. } => {}
        }
    }
}
