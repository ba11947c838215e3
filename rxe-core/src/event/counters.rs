//! Counters of events and packets. A counter that kernel `rdma_rxe` also has in `hw_counters` has
//! the same name here.

use std::ops::AddAssign;

use super::{Event, RetryCause};
use crate::types::Status;
use crate::wire::{DropReason, NakCode};

/// The number of events on one queue pair since its creation. On a connection without losses all
/// are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Packets for the QP that were dropped.
    pub dropped: u32,
    /// Retransmissions because no response came within the ACK timeout.
    pub ack_timeout: u32,
    /// Retransmissions because no response came for some round trips. They do not count as retries
    /// in the sense of `retry_cnt`.
    pub round_trip_timeout: u32,
    /// Retransmissions because of a sequence NAK.
    pub retry_sequence_nak: u32,
    /// Retransmissions because of an implied NAK: a response was skipped.
    pub retry_implied_nak: u32,
    /// Retransmissions after an RNR NAK.
    pub retry_rnr: u32,
    /// RNR NAKs sent.
    pub send_rnr_err: u32,
    /// RNR NAKs received.
    pub rcvd_rnr_err: u32,
    /// NAKs sent, excluding RNR NAKs.
    pub naks_sent: u32,
    /// NAKs received, excluding RNR NAKs.
    pub naks_received: u32,
    /// CNPs sent.
    pub cnp_sent: u32,
    /// CNPs received.
    pub cnp_received: u32,
}

impl QpCounters {
    /// Returns the number of retransmissions for any reason.
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

    /// Returns the field that counts events of this kind, if there is one. Drops for an unknown QP
    /// have no field: a stranger chooses that QPN, so counting by it would use memory without
    /// bound.
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

/// The packets and events that an engine counted since its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent.
    pub sent_pkts: u64,
    /// Bytes sent, from BTH to ICRC.
    pub sent_bytes: u64,
    /// Packets received, valid or not.
    pub rcvd_pkts: u64,
    /// Bytes received, from BTH to ICRC.
    pub rcvd_bytes: u64,
    /// Request packets sent again. `sent_pkts` includes them.
    pub retransmitted_pkts: u64,
    /// Complete messages received on UC queue pairs. For a WRITE this is the only sign of its
    /// arrival.
    pub rcvd_uc_msgs: u64,
    /// Requests that were duplicates.
    pub duplicate_request: u64,
    /// NAKs sent because of a gap in the PSNs.
    pub out_of_seq_request: u64,
    /// RNR NAKs sent.
    pub send_rnr_err: u64,
    /// RNR NAKs received.
    pub rcvd_rnr_err: u64,
    /// NAKs sent, including RNR NAKs.
    pub naks_sent: u64,
    /// NAKs received, excluding RNR NAKs.
    pub naks_received: u64,
    /// Retries because no response came within the ACK timeout.
    pub ack_timeout: u64,
    /// Retransmissions because no response came for some round trips. They do not count as retries.
    pub round_trip_timeout: u64,
    /// Retries because of a sequence NAK.
    pub retry_sequence_nak: u64,
    /// Retries because of an implied NAK: a response was skipped.
    pub retry_implied_nak: u64,
    /// Retries after an RNR NAK.
    pub retry_rnr: u64,
    /// Requests that failed and moved their QP into the error state.
    pub request_failed: u64,
    /// Sequence NAKs received.
    pub rcvd_seq_err: u64,
    /// Requests that failed because no response came after all retries.
    pub retry_exceeded_err: u64,
    /// Requests that failed because the peer had no receive posted after all RNR retries.
    pub retry_rnr_exceeded_err: u64,
    /// SENDs that completed without error.
    pub rdma_sends: u64,
    /// Receives that completed without error.
    pub rdma_recvs: u64,
    /// CNPs sent.
    pub cnp_sent: u64,
    /// CNPs received.
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
        // The pattern names every field, so that a new field cannot be forgotten.
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
    /// Returns the number of packets dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason.index()]
    }

    /// Returns each reason for which packets were dropped, with the number of packets.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let all = DropReason::ALL.iter().map(|&reason| (reason, self.dropped(reason)));
        all.filter(|&(_, n)| n > 0)
    }

    /// Returns the counters that kernel `rdma_rxe` has too. Their names and order are those in
    /// `hw_counters/`. `send_err` and `link_downed` are omitted, because an engine cannot count
    /// them.
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

    /// Returns the counters that kernel `rdma_rxe` does not have, except [`Counters::drops`].
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
