//! The reasons to drop a received packet. All layers share one list, so that one array of counters
//! and one set of explanations serve all of them.
//!
//! A dropped packet is not an error: any packet can arrive from outside. Packets that the protocol
//! answers with a NAK are not listed here.

use std::fmt;

macro_rules! reasons {
    ($($name:ident $counter:literal $explanation:literal;)*) => {
        /// The reason why a received packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $explanation] $name,)*
        }

        impl DropReason {
            /// All reasons, each at its [`index`](Self::index).
            pub const ALL: [Self; Self::COUNT] = [$(Self::$name),*];

            /// The number of reasons.
            pub const COUNT: usize = [$($counter),*].len();

            /// Returns the name of the reason's counter. The name is stable: scripts may depend on
            /// it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $counter,)*
                }
            }

            /// Returns an explanation for users, one sentence.
            pub const fn explain(self) -> &'static str {
                match self {
                    $(Self::$name => $explanation,)*
                }
            }
        }
    };
}

reasons! {
    // Packets for other receivers.
    NotIp "not_ip" "The frame is neither IPv4 nor IPv6.";
    NotRoce "not_roce" "The packet is not UDP to port 4791.";
    BadIpHeader "bad_ip_header" "The IP or UDP header contradicts itself or the frame's length.";
    Fragment "fragment" "The packet is a fragment; RoCEv2 packets are never fragmented.";

    // Structure.
    Truncated "truncated" "The packet ends before the headers and the ICRC that its opcode needs.";
    BadLength "bad_length" "The packet's length is not a multiple of 4.";
    BadVersion "bad_version" "The transport header version is not 0.";
    UnknownOpcode "unknown_opcode" "The opcode is reserved, or belongs to a service that is not spoken here.";
    BadPad "bad_pad" "The pad count is larger than the payload.";
    UnexpectedPayload "unexpected_payload" "The packet has a payload although its opcode allows none.";
    IcrcMismatch "icrc_mismatch" "The ICRC does not match: the packet was damaged, or altered on its way.";

    // Demultiplexing.
    QpnZero "qpn_zero" "The packet is for QP 0, which does not exist in RoCE.";
    UnknownQp "unknown_qp" "There is no queue pair of that number here.";
    WrongQpState "wrong_qp_state" "The queue pair is in a state in which it takes no such packet.";
    WrongService "wrong_service" "The packet's transport service is not the queue pair's.";
    WrongSource "wrong_source" "The packet does not come from the queue pair's peer.";
    WrongDestination "wrong_destination" "The packet came to another address than the queue pair's own.";
    WrongPkey "wrong_pkey" "The partition key does not match the queue pair's.";
    WrongQkey "wrong_qkey" "The queue key does not match the queue pair's.";
    NoMulticast "no_multicast" "No queue pair here is attached to that multicast group.";
    BadMulticast "bad_multicast" "A multicast packet is not a UD SEND to QP 0xffffff, or one to that QP is not multicast.";

    // Responder.
    GapAlreadyReported "gap_already_reported" "The packet follows a gap for which a sequence NAK is already on its way.";
    DuplicateUnanswerable "duplicate_unanswerable" "The request is a duplicate, and its answer is no longer kept.";
    MessageBroken "message_broken" "An unreliable message lost a packet; the rest of it is skipped.";
    WrongLength "wrong_length" "An unreliable packet's payload does not fit its opcode and the path MTU.";
    ReceiveQueueEmpty "receive_queue_empty" "No receive request is posted for an unreliable message.";
    ReceiveTooSmall "receive_too_small" "The posted receive buffer is too small for the datagram.";
    AccessDenied "access_denied" "An unreliable write may not touch that memory.";

    // Requester.
    GhostAck "ghost_ack" "The response is for a request that is not outstanding.";
    StaleResponse "stale_response" "The response repeats one that already came.";
    UnexpectedResponse "unexpected_response" "The response does not match the kind of the request it answers.";
    ResponseGap "response_gap" "Responses before this one are missing; they will be asked for again.";
    ReservedSyndrome "reserved_syndrome" "The acknowledgement carries a syndrome that the specification reserves.";

    // Management.
    BadMad "bad_mad" "The management datagram is malformed or of an unknown class.";

    // Local limits.
    NoRoom "no_room" "A local queue was full.";
}

impl DropReason {
    /// Returns the index in an array of counters, below [`COUNT`](Self::COUNT).
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Formats the explanation.
impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.explain())
    }
}

impl std::error::Error for DropReason {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_has_its_place_its_own_name_and_a_sentence() {
        let mut names = HashSet::new();
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert!(names.insert(reason.name()), "{} twice", reason.name());
            assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(reason.explain().ends_with('.'), "{reason:?}");
        }
        assert_eq!(names.len(), DropReason::COUNT);
    }
}
