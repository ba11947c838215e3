//! The events that the manager gives to its consumer.

use super::{ConnId, ListenerId, Route};
use crate::cm::mad::{RejReason, Rep, Req, SidrRep, SidrReq};
use crate::keyed::Keyed;

/// An event of a listener or a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// A peer requests a connection. The consumer must accept, reject or destroy it.
    Request {
        /// The listener.
        listener: ListenerId,
        /// The new connection.
        id: ConnId,
        /// The addresses of the request.
        route: Route,
        /// The request.
        req: Box<Req>,
    },
    /// The peer accepts. The consumer must establish, reject or destroy the connection.
    Reply {
        /// The connection.
        id: ConnId,
        /// The reply.
        rep: Box<Rep>,
    },
    /// The peer is ready: its RTU or its first packet has arrived.
    Established {
        /// The connection.
        id: ConnId,
    },
    /// The peer refused or abandoned the connection, which is removed.
    Rejected {
        /// The connection.
        id: ConnId,
        /// The reason.
        reason: RejReason,
        /// The private data of the peer's consumer.
        private_data: Box<[u8; 148]>,
    },
    /// The peer does not answer. The connection is removed.
    Unreachable {
        /// The connection.
        id: ConnId,
    },
    /// The peer ends the connection. The consumer must disconnect or destroy it.
    DisconnectRequest {
        /// The connection.
        id: ConnId,
    },
    /// The connection has ended, as the consumer requested.
    Disconnected {
        /// The connection.
        id: ConnId,
        /// Whether the peer answered.
        answered: bool,
    },
    /// No packet of the old connection can arrive any more, so its queue pair may be used again.
    /// The connection is removed.
    TimewaitExit {
        /// The connection.
        id: ConnId,
    },
    /// A peer requests the queue pair of a datagram service. The consumer must answer or destroy
    /// the query.
    Resolve {
        /// The listener.
        listener: ListenerId,
        /// The query.
        id: ConnId,
        /// The addresses of the query.
        route: Route,
        /// The request.
        req: Box<SidrReq>,
    },
    /// A SIDR query was answered. The query is removed.
    Resolved {
        /// The query.
        id: ConnId,
        /// The answer.
        rep: Box<SidrRep>,
    },
}

impl CmEvent {
    /// Returns the connection or query that the event belongs to.
    pub fn id(&self) -> ConnId {
        match *self {
            Self::Request { id, .. }
            | Self::Reply { id, .. }
            | Self::Established { id }
            | Self::Rejected { id, .. }
            | Self::Unreachable { id }
            | Self::DisconnectRequest { id }
            | Self::Disconnected { id, .. }
            | Self::TimewaitExit { id }
            | Self::Resolve { id, .. }
            | Self::Resolved { id, .. } => id,
        }
    }
}

impl Keyed for CmEvent {
    type Key = ConnId;

    fn keys(&self) -> [Option<ConnId>; 2] {
        [Some(self.id()), None]
    }
}
