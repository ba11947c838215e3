//! The events of a program's identifiers, with the parameters of both ends.

use rxe_core::qp::AddressVector;
use rxe_core::types::{Qkey, Qpn};

/// The kinds of events. The numbers are those of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CmEventKind {
    /// A device leads to the address.
    AddrResolved = 0,
    /// No device leads to the address.
    AddrError = 1,
    /// A route leads to the address.
    RouteResolved = 2,
    /// No route leads to the address.
    RouteError = 3,
    /// A peer wants to connect, or asks for a datagram service.
    ConnectRequest = 4,
    /// The peer has accepted; the program brings its queue pair up and calls
    /// [`establish`](super::CmId::establish). Only if the identifier has no queue pair of its own.
    ConnectResponse = 5,
    /// The connection could not be established.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer has rejected the request.
    Rejected = 8,
    /// The connection is established, or the datagram service is known.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The interface of the identifier's device was removed, and the device with it: destroy the
    /// identifier.
    DeviceRemoval = 11,
    /// The multicast group is joined.
    MulticastJoin = 12,
    /// The multicast group could not be joined.
    MulticastError = 13,
    /// The own address is gone.
    AddrChange = 14,
    /// No packet of the ended connection can arrive any more.
    TimewaitExit = 15,
    /// The name is resolved.
    AddrinfoResolved = 16,
    /// The name could not be resolved.
    AddrinfoError = 17,
    /// The program's own event ([`write_event`](super::CmId::write_event)).
    User = 18,
}

impl CmEventKind {
    /// Returns the name of the event in C, such as `RDMA_CM_EVENT_ESTABLISHED`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddrResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            Self::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
            Self::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            Self::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            Self::ConnectRequest => "RDMA_CM_EVENT_CONNECT_REQUEST",
            Self::ConnectResponse => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            Self::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
            Self::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
            Self::Rejected => "RDMA_CM_EVENT_REJECTED",
            Self::Established => "RDMA_CM_EVENT_ESTABLISHED",
            Self::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
            Self::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            Self::MulticastJoin => "RDMA_CM_EVENT_MULTICAST_JOIN",
            Self::MulticastError => "RDMA_CM_EVENT_MULTICAST_ERROR",
            Self::AddrChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            Self::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            Self::AddrinfoResolved => "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
            Self::AddrinfoError => "RDMA_CM_EVENT_ADDRINFO_ERROR",
            Self::User => "RDMA_CM_EVENT_USER",
        }
    }
}

/// The parameters of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CmParam {
    /// Nothing.
    #[default]
    None,
    /// The peer's parameters of a connection, seen from this side.
    Conn(ConnParam),
    /// The address of a datagram service or a multicast group.
    Ud(UdParam),
    /// The number that the program passed to [`write_event`](super::CmId::write_event).
    User(u64),
}

impl CmParam {
    /// Returns the private data. The length is fixed by the message; the bytes that the peer did
    /// not fill are zero.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::None | Self::User(_) => &[],
            Self::Conn(param) => &param.private_data,
            Self::Ud(param) => &param.private_data,
        }
    }
}

/// The parameters of a connection. `rdma_conn_param`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// The private data: at most 56 bytes in a request, 196 in an acceptance, 180 in a query for a
    /// datagram service, 136 in its answer.
    pub private_data: Vec<u8>,
    /// The most READs and atomics of the peer that this side answers simultaneously.
    pub responder_resources: u8,
    /// The most READs and atomics that this side has outstanding.
    pub initiator_depth: u8,
    /// Whether the receive queue reports credits (end-to-end flow control).
    pub flow_control: bool,
    /// How often to retry without an answer, 0 to 7. Both ends use the value of the requesting end.
    pub retry_count: u8,
    /// How often to retry after an RNR NAK, 0 to 6; 7 means without limit.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has a shared receive queue. Used only if the identifier has no queue
    /// pair.
    pub srq: bool,
    /// The number of the queue pair. Used only if the identifier has none.
    pub qp_num: Option<Qpn>,
    /// The Q_Key of an accepted datagram service. By default that of the identifier's queue pair,
    /// or [`super::UDP_QKEY`] without one.
    pub qkey: Option<Qkey>,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 16,
            initiator_depth: 16,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: None,
            qkey: None,
        }
    }
}

/// The address of a datagram service. `rdma_ud_param`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdParam {
    /// The peer's private data.
    pub private_data: Vec<u8>,
    /// The address vector for [`crate::ProtectionDomain::create_ah`]. In a request, it leads to the
    /// requester.
    pub ah: AddressVector,
    /// The number of the queue pair; 0 in a request, which does not contain it.
    pub qpn: Qpn,
    /// The Q_Key that datagrams must carry.
    pub qkey: Qkey,
}
