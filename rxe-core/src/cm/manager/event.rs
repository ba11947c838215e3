//! The events that the manager gives to its consumer.

use super::{ConnId, ListenerId, Route};
use crate::cm::mad::{RejReason, Rep, Req, SidrRep, SidrReq};
use crate::keyed::Keyed;

/// Something happened to a listener or a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// A peer asks for a connection: accept, reject or destroy it.
    Request {
        /// The listener.
        listener: ListenerId,
        /// The new connection.
        id: ConnId,
        /// The addresses that the request came with.
        route: Route,
        /// The request.
        req: Box<Req>,
    },
    /// The peer accepts: establish, reject or destroy it.
    Reply {
        /// The connection.
        id: ConnId,
        /// The reply.
        rep: Box<Rep>,
    },
    /// The peer is ready: its RTU or its first packet has come.
    Established {
        /// The connection.
        id: ConnId,
    },
    /// The peer refused or gave up. The connection is removed.
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
    /// The peer ends the connection: disconnect or destroy it.
    DisconnectRequest {
        /// The connection.
        id: ConnId,
    },
    /// The connection is ended, as the consumer asked.
    Disconnected {
        /// The connection.
        id: ConnId,
        /// Whether the peer answered.
        answered: bool,
    },
    /// No packet of the old connection can arrive any more, so its queue pair may be used again. The
    /// connection is removed.
    TimewaitExit {
        /// The connection.
        id: ConnId,
    },
    /// A peer asks for the queue pair of a datagram service: answer or destroy the query.
    Resolve {
        /// The listener.
        listener: ListenerId,
        /// The query.
        id: ConnId,
        /// The addresses that it came with.
        route: Route,
        /// The request.
        req: Box<SidrReq>,
    },
    /// The answer to a SIDR query. The query is removed.
    Resolved {
        /// The query.
        id: ConnId,
        /// The answer.
        rep: Box<SidrRep>,
    },
}

impl CmEvent {
    /// The connection or query that it is about.
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
