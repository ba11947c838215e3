//! The fields of each message. IBTA 12.6. The numbers are byte, bit and width after the MAD header,
//! most significant bit first. Reserved fields are not stored: they are sent as zero.

use super::bits;
use super::layout::{Block, Field, layout};
use crate::types::{Gid, Psn, Qkey, Qpn};

layout! {
    /// The addresses of one path, as proposed by a REQ.
    Path {
        /// The sender's LID; 0xFFFF on Ethernet.
        local_lid: u16 [0, 0, 16],
        /// The receiver's LID.
        remote_lid: u16 [2, 0, 16],
        /// IPv6 flow label, 20 bits.
        flow_label: u32 [36, 0, 20],
        /// The static rate, as `enum ibv_rate`; 0 for the rate of the port.
        packet_rate: u8 [39, 2, 6],
        /// IPv4 type of service or IPv6 traffic class.
        traffic_class: u8 [40, 0, 8],
        /// Time to live.
        hop_limit: u8 [41, 0, 8],
        /// Service level.
        sl: u8 [42, 0, 4],
        /// Whether both ends are in one subnet.
        subnet_local: bool [42, 4, 1],
        /// The ACK timeout of the sender's queue pair, as a code of [`crate::types::AckTimeout`].
        local_ack_timeout: u8 [43, 0, 5],
    } {
        /// The sender's address.
        local_gid: Gid [4],
        /// The receiver's address.
        remote_gid: Gid [20],
    }
}

layout! {
    /// REQ: requests a connection. IBTA 12.6.5.
    Req {
        /// The sender's communication ID.
        local_comm_id: u32 [0, 0, 32],
        /// The ID of the requested service.
        service_id: u64 [8, 0, 64],
        /// The GUID of the sender's device.
        local_ca_guid: u64 [16, 0, 64],
        /// The Q_Key, for RD only.
        local_qkey: Qkey [28, 0, 32],
        /// The QPN of the sender.
        local_qpn: Qpn [32, 0, 24],
        /// The number of outstanding READs and atomics that the sender accepts.
        responder_resources: u8 [35, 0, 8],
        /// The sender's EE context, for RD only.
        local_eecn: u32 [36, 0, 24],
        /// The number of outstanding READs and atomics that the sender requests.
        initiator_depth: u8 [39, 0, 8],
        /// The receiver's EE context, for RD only.
        remote_eecn: u32 [40, 0, 24],
        /// The time within which the receiver must answer: 4.096 µs × 2^value.
        remote_cm_response_timeout: u8 [43, 0, 5],
        /// 0: RC, 1: UC, 2: RD, 3: see `extended_transport_type`.
        transport_service_type: u8 [43, 5, 2],
        /// Whether the sender's receive queue reports credits.
        end_to_end_flow_control: bool [43, 7, 1],
        /// The PSN of the receiver's first request.
        starting_psn: Psn [44, 0, 24],
        /// The time within which the sender answers: 4.096 µs × 2^value.
        local_cm_response_timeout: u8 [47, 0, 5],
        /// How often the receiver must retry requests that are not acknowledged.
        retry_count: u8 [47, 5, 3],
        /// The partition key.
        partition_key: u16 [48, 0, 16],
        /// The path MTU, as [`crate::types::Mtu::to_verbs`].
        path_mtu: u8 [50, 0, 4],
        /// Whether an RD channel exists, for RD only.
        rdc_exists: bool [50, 4, 1],
        /// How often the receiver must retry requests that find no receive posted.
        rnr_retry_count: u8 [50, 5, 3],
        /// How often the receiver must retry its CM messages.
        max_cm_retries: u8 [51, 0, 4],
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool [51, 4, 1],
        /// 1: XRC, if `transport_service_type` is 3.
        extended_transport_type: u8 [51, 5, 3],
    } {
        /// The path of the connection.
        primary: Path [52],
        /// The path to migrate to; zeros for none.
        alternate: Path [96],
        /// The consumer's private data.
        private_data: [u8; 92] [140],
    }
}

layout! {
    /// MRA: acknowledges a message and requests more time to answer it. IBTA 12.6.6.
    Mra {
        /// The sender's communication ID.
        local_comm_id: u32 [0, 0, 32],
        /// The receiver's communication ID.
        remote_comm_id: u32 [4, 0, 32],
        /// The message that is acknowledged: see [`Subject`].
        message: u8 [8, 0, 2],
        /// The time until the answer: 4.096 µs × 2^value.
        service_timeout: u8 [9, 0, 5],
    } {
        /// The consumer's private data.
        private_data: [u8; 222] [10],
    }
}

layout! {
    /// REJ: refuses or abandons a connection. IBTA 12.6.7.
    Rej {
        /// The sender's communication ID; 0 if it has none.
        local_comm_id: u32 [0, 0, 32],
        /// The receiver's communication ID.
        remote_comm_id: u32 [4, 0, 32],
        /// The message that is rejected: see [`Subject`].
        message: u8 [8, 0, 2],
        /// The number of used bytes of `ari`.
        ari_len: u8 [9, 0, 7],
        /// The reason: see [`RejReason`].
        reason: u16 [10, 0, 16],
    } {
        /// Additional reject information, for example the value that would have been accepted. Its
        /// meaning depends on `reason`.
        ari: [u8; 72] [12],
        /// The consumer's private data.
        private_data: [u8; 148] [84],
    }
}

layout! {
    /// REP: accepts a connection. IBTA 12.6.8.
    Rep {
        /// The sender's communication ID.
        local_comm_id: u32 [0, 0, 32],
        /// The receiver's communication ID.
        remote_comm_id: u32 [4, 0, 32],
        /// The Q_Key, for RD only.
        local_qkey: Qkey [8, 0, 32],
        /// The QPN of the sender.
        local_qpn: Qpn [12, 0, 24],
        /// The sender's EE context, for RD only.
        local_eecn: u32 [16, 0, 24],
        /// The PSN of the receiver's first request.
        starting_psn: Psn [20, 0, 24],
        /// The number of outstanding READs and atomics that the sender accepts.
        responder_resources: u8 [24, 0, 8],
        /// The number of outstanding READs and atomics that the sender will use.
        initiator_depth: u8 [25, 0, 8],
        /// The maximum delay of an acknowledgement by the sender's device: 4.096 µs × 2^value.
        target_ack_delay: u8 [26, 0, 5],
        /// The response to the alternate path: 0: accepted, 1: not supported, 2: rejected.
        failover_accepted: u8 [26, 5, 2],
        /// Whether the sender's receive queue reports credits.
        end_to_end_flow_control: bool [26, 7, 1],
        /// How often the receiver must retry requests that find no receive posted.
        rnr_retry_count: u8 [27, 0, 3],
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool [27, 3, 1],
        /// The GUID of the sender's device.
        local_ca_guid: u64 [28, 0, 64],
    } {
        /// The consumer's private data.
        private_data: [u8; 196] [36],
    }
}

layout! {
    /// RTU: reports that the sender is ready; the connection is established. IBTA 12.6.9.
    Rtu {
        /// The sender's communication ID.
        local_comm_id: u32 [0, 0, 32],
        /// The receiver's communication ID.
        remote_comm_id: u32 [4, 0, 32],
    } {
        /// The consumer's private data.
        private_data: [u8; 224] [8],
    }
}

layout! {
    /// DREQ: requests the end of a connection. IBTA 12.6.10.
    Dreq {
        /// The sender's communication ID.
        local_comm_id: u32 [0, 0, 32],
        /// The receiver's communication ID.
        remote_comm_id: u32 [4, 0, 32],
        /// The QPN of the receiver.
        remote_qpn: Qpn [8, 0, 24],
    } {
        /// The consumer's private data.
        private_data: [u8; 220] [12],
    }
}

layout! {
    /// DREP: answers a DREQ; the connection has ended. IBTA 12.6.11.
    Drep {
        /// The sender's communication ID.
        local_comm_id: u32 [0, 0, 32],
        /// The receiver's communication ID.
        remote_comm_id: u32 [4, 0, 32],
    } {
        /// The consumer's private data.
        private_data: [u8; 224] [8],
    }
}

layout! {
    /// LAP: proposes an alternate path. IBTA 12.8.1.
    Lap {
        /// The sender's communication ID.
        local_comm_id: u32 [0, 0, 32],
        /// The receiver's communication ID.
        remote_comm_id: u32 [4, 0, 32],
        /// The QPN of the receiver.
        remote_qpn: Qpn [12, 0, 24],
        /// The time within which the receiver must answer: 4.096 µs × 2^value.
        remote_cm_response_timeout: u8 [15, 0, 5],
    } {
        /// The alternate path. Its layout differs from a path in a REQ: LIDs, GIDs, then flow label
        /// (20 bits), 4 reserved bits, traffic class, hop limit, rate, service level,
        /// acknowledgement timeout.
        alternate: [u8; 44] [20],
        /// The consumer's private data.
        private_data: [u8; 168] [64],
    }
}

layout! {
    /// APR: answers a LAP. IBTA 12.8.2.
    Apr {
        /// The sender's communication ID.
        local_comm_id: u32 [0, 0, 32],
        /// The receiver's communication ID.
        remote_comm_id: u32 [4, 0, 32],
        /// The number of used bytes of `info`.
        info_len: u8 [8, 0, 8],
        /// The status; 0 for success.
        status: u8 [9, 0, 8],
    } {
        /// Additional information on the status.
        info: [u8; 72] [12],
        /// The consumer's private data.
        private_data: [u8; 148] [84],
    }
}

layout! {
    /// SIDR_REQ: requests the queue pair of a datagram service. IBTA 12.11.1.
    SidrReq {
        /// The sender's number of this query.
        request_id: u32 [0, 0, 32],
        /// The partition key.
        partition_key: u16 [4, 0, 16],
        /// The service ID.
        service_id: u64 [8, 0, 64],
    } {
        /// The consumer's private data.
        private_data: [u8; 216] [16],
    }
}

layout! {
    /// SIDR_REP: reports the queue pair and the Q_Key of a datagram service. IBTA 12.11.2.
    SidrRep {
        /// The number of the query.
        request_id: u32 [0, 0, 32],
        /// The outcome: see [`SidrStatus`].
        status: u8 [4, 0, 8],
        /// The number of used bytes of `info`.
        info_len: u8 [5, 0, 8],
        /// The QPN of the service.
        qpn: Qpn [8, 0, 24],
        /// The service ID.
        service_id: u64 [12, 0, 64],
        /// The Q_Key that datagrams to the service must carry.
        qkey: Qkey [20, 0, 32],
    } {
        /// Additional information on the status.
        info: [u8; 72] [24],
        /// The consumer's private data.
        private_data: [u8; 136] [96],
    }
}

/// The message that an MRA or REJ refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Subject {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// A LAP (in an MRA), or no particular message (in a REJ).
    Other = 2,
}

/// The reason why a connection is refused or abandoned. IBTA 12.6.7.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejReason(pub u16);

impl RejReason {
    /// No queue pair is available.
    pub const NO_QP: Self = Self(1);
    /// A resource is exhausted.
    pub const NO_RESOURCES: Self = Self(3);
    /// No answer came within the timeout.
    pub const TIMEOUT: Self = Self(4);
    /// The request is not supported.
    pub const UNSUPPORTED: Self = Self(5);
    /// The connection does not exist.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// No listener exists for the service ID.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The service requires another transport service.
    pub const INVALID_TRANSPORT_TYPE: Self = Self(9);
    /// The peer still has an earlier connection of this queue pair.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The GID is not an address of the receiver.
    pub const INVALID_GID: Self = Self(12);
    /// The path MTU is not accepted.
    pub const INVALID_MTU: Self = Self(26);
    /// The consumer refused; the private data may contain the reason.
    pub const CONSUMER_DEFINED: Self = Self(28);
    /// The class version of the message is unknown.
    pub const INVALID_CLASS_VERSION: Self = Self(31);
    /// The consumer does not accept the offered vendor options.
    pub const VENDOR_OPTION_NOT_SUPPORTED: Self = Self(35);

    /// Returns a text for the reason.
    pub const fn text(self) -> &'static str {
        match self.0 {
            1 => "no queue pair is available",
            3 => "not enough resources",
            4 => "no answer came in time",
            5 => "the request is not supported",
            6 => "there is no such connection",
            7 => "there is no such connection instance",
            8 => "nobody listens on that service",
            9 => "another transport service is needed",
            10 => "the peer still holds a connection of this queue pair",
            12 => "the address is not the peer's",
            24 => "ask another port's communication manager",
            25 => "ask another port",
            26 => "the path MTU does not fit",
            27 => "not enough responder resources",
            28 => "the peer's program refused",
            29 => "the RNR retry count is not allowed",
            30 => "the communication ID is in use",
            31 => "the class version is unknown",
            35 => "a vendor option is not supported",
            _ => "for a reason of its number",
        }
    }
}

impl std::fmt::Debug for RejReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RejReason({}: {})", self.0, self.text())
    }
}

/// The outcome of a service ID resolution. IBTA 12.11.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The reply contains the queue pair.
    pub const SUCCESS: Self = Self(0);
    /// No listener exists for the service ID.
    pub const UNSUPPORTED: Self = Self(1);
    /// The consumer refused.
    pub const REJECT: Self = Self(2);
    /// No queue pair is available.
    pub const NO_QP: Self = Self(3);
}
