//! Counters, made from events and packets. Names follow the hw_counters that kernel rxe shows
//! where it has such a one.

use std::ops::AddAssign;

use super::{Event, RetryCause};
use crate::wire::DropReason;

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
    /// Messages that came whole over unreliable connections; of a WRITE nothing else tells.
    pub rcvd_uc_msgs: u64,
    /// Requests that were duplicates.
    pub duplicate_request: u64,
    /// Gaps seen by responders.
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
            cnp_received,
            dropped,
        } = other;
        self.sent_pkts += sent_pkts;
        self.sent_bytes += sent_bytes;
        self.rcvd_pkts += rcvd_pkts;
        self.rcvd_bytes += rcvd_bytes;
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

    pub(crate) fn count(&mut self, event: &Event) {
        use super::Fault;
        match event {
            Event::Dropped { reason, .. } => self.dropped[reason.index()] += 1,
            Event::NakSent { fault, .. } => {
                self.naks_sent += 1;
                match fault {
                    Fault::SequenceGap => self.out_of_seq_request += 1,
                    Fault::ReceiverNotReady => self.send_rnr_err += 1,
                    _ => {}
                }
            }
            Event::NakReceived { .. } => self.naks_received += 1,
            Event::RnrNakReceived { .. } => self.rcvd_rnr_err += 1,
            Event::Retry { cause, .. } => match cause {
                RetryCause::Timeout => self.ack_timeout += 1,
                RetryCause::RoundTripTimeout => self.round_trip_timeout += 1,
                RetryCause::SequenceNak => self.retry_sequence_nak += 1,
                RetryCause::ImpliedNak => self.retry_implied_nak += 1,
                RetryCause::ReceiverNotReady => self.retry_rnr += 1,
            },
            Event::RequestFailed { .. } => self.request_failed += 1,
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
