//! What a program is told about its identifiers, with the parameters of both ends.

use rxe_core::qp::AddressVector;
use rxe_core::types::{Qkey, Qpn};

/// The kinds of events. The numbers are those of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CmEventKind {
    /// There is a device that leads to the address.
    AddrResolved = 0,
    /// There is none.
    AddrError = 1,
    /// There is a way to the address.
    RouteResolved = 2,
    /// There is none.
    RouteError = 3,
    /// Somebody wants to connect, or asks for a datagram service.
    ConnectRequest = 4,
    /// The peer accepts; the program brings its queue pair up and calls [`establish`](super::CmId::establish). Only
    /// where the identifier has no queue pair of its own.
    ConnectResponse = 5,
    /// The connection could not be made.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer refuses.
    Rejected = 8,
    /// The connection stands, or the datagram service is known.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The interface of the identifier's device was removed, and the device with it: destroy the identifier.
    DeviceRemoval = 11,
    /// The group is joined.
    MulticastJoin = 12,
    /// The group could not be joined.
    MulticastError = 13,
    /// The own address is gone.
    AddrChange = 14,
    /// No packet of the ended connection can arrive any more.
    TimewaitExit = 15,
    /// A name is resolved.
    AddrinfoResolved = 16,
    /// It could not be.
    AddrinfoError = 17,
    /// The program itself said so, by [`write_event`](super::CmId::write_event).
    User = 18,
}

impl CmEventKind {
    /// The name that programs know, as in `RDMA_CM_EVENT_ESTABLISHED`.
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

/// What the peer said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CmParam {
    /// Nothing.
    #[default]
    None,
    /// Of a connection. READs and atomics are told from this side's point of view.
    Conn(ConnParam),
    /// Of a datagram service or a group.
    Ud(UdParam),
    /// Of the program itself.
    User(u64),
}

impl CmParam {
    /// The program's own data. Messages have room for a fixed number of bytes; what was not filled
    /// is zero.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::None | Self::User(_) => &[],
            Self::Conn(param) => &param.private_data,
            Self::Ud(param) => &param.private_data,
        }
    }
}

/// How a connection shall be. `rdma_conn_param`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// The program's own data: at most 56 bytes in a request, 196 in an acceptance, 180 in a question
    /// for a datagram service, 136 in its answer.
    pub private_data: Vec<u8>,
    /// READs and atomics of the peer to answer at once.
    pub responder_resources: u8,
    /// READs and atomics to have outstanding.
    pub initiator_depth: u8,
    /// Whether the receive queue tells credits.
    pub flow_control: bool,
    /// How often to send again without an answer, 0 to 7. Both ends take what the asking one says.
    pub retry_count: u8,
    /// How often to try again where no receive is posted, 0 to 6; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has a shared receive queue; where the identifier has no queue pair.
    pub srq: bool,
    /// The queue pair; where the identifier has none.
    pub qp_num: Option<Qpn>,
    /// The Q_Key of an accepted datagram service, where it is not [`super::UDP_QKEY`].
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

/// Where to send datagrams. `rdma_ud_param`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdParam {
    /// The peer's data.
    pub private_data: Vec<u8>,
    /// The way: for [`crate::ProtectionDomain::create_ah`]. Of a request, the way back to the asker.
    pub ah: AddressVector,
    /// The queue pair. Of a request, 0: it is not told.
    pub qpn: Qpn,
    /// What datagrams must carry.
    pub qkey: Qkey,
}
