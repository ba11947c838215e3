//! What the manager tells its consumer.

use super::{ConnId, ListenerId, Route};
use crate::cm::mad::{RejReason, Rep, Req, SidrRep, SidrReq};

/// Something happened to a listener or a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// Somebody wants to connect: accept, reject or destroy it.
    Request {
        /// Who listens.
        listener: ListenerId,
        /// The connection to be.
        id: ConnId,
        /// Where the request came from.
        route: Route,
        /// What it says.
        req: Box<Req>,
    },
    /// The peer accepts: establish, reject or destroy it.
    Reply {
        /// The connection.
        id: ConnId,
        /// What the peer says.
        rep: Box<Rep>,
    },
    /// The peer says that it is ready, or its first packet did.
    Established {
        /// The connection.
        id: ConnId,
    },
    /// The peer refused, or gave it up. The connection is forgotten.
    Rejected {
        /// The connection.
        id: ConnId,
        /// Why.
        reason: RejReason,
        /// The consumer's words.
        private_data: Box<[u8; 148]>,
    },
    /// The peer does not answer. The connection is forgotten.
    Unreachable {
        /// The connection.
        id: ConnId,
    },
    /// The peer wants to end it: disconnect or destroy it too.
    DisconnectRequest {
        /// The connection.
        id: ConnId,
    },
    /// It is ended, as the consumer wanted.
    Disconnected {
        /// The connection.
        id: ConnId,
        /// Whether the peer answered.
        answered: bool,
    },
    /// No packet of the old connection can arrive any more: its queue pair may be used again. The
    /// connection is forgotten.
    TimewaitExit {
        /// The connection.
        id: ConnId,
    },
    /// Somebody asks for a datagram service: answer or destroy it.
    Resolve {
        /// Who listens.
        listener: ListenerId,
        /// The question.
        id: ConnId,
        /// Where it came from.
        route: Route,
        /// What it says.
        req: Box<SidrReq>,
    },
    /// The answer to a question. The question is forgotten.
    Resolved {
        /// The question.
        id: ConnId,
        /// What the peer says.
        rep: Box<SidrRep>,
    },
}

impl CmEvent {
    /// The connection or question that it is about.
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
