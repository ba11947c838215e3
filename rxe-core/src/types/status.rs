//! How work requests end. The numbers are those of verbs, whose other statuses nothing here ends
//! with. IBTA 11.4.2.1.

use std::fmt;

/// How a request ended. The numbers are those of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// A local buffer is too small for the message, or the message too long.
    LocalLength = 1,
    /// An internal inconsistency of the local QP.
    LocalQpOperation = 2,
    /// A local buffer is not registered, not in this domain, or not writable.
    LocalProtection = 4,
    /// The QP went into the error state before the request was done.
    WorkRequestFlushed = 5,
    /// A memory window could not be bound.
    MemoryWindowBind = 6,
    /// The peer answered with something that does not fit the request.
    BadResponse = 7,
    /// The peer says that the request makes no sense to it.
    RemoteInvalidRequest = 9,
    /// The peer says that its memory may not be used like this.
    RemoteAccess = 10,
    /// The peer could not carry it out.
    RemoteOperation = 11,
    /// No answer from the peer, after all retries.
    RetryExceeded = 12,
    /// The peer had no receive posted, after all RNR retries.
    RnrRetryExceeded = 13,
}

impl Status {
    /// All, in order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Success,
        Self::LocalLength,
        Self::LocalQpOperation,
        Self::LocalProtection,
        Self::WorkRequestFlushed,
        Self::MemoryWindowBind,
        Self::BadResponse,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::RnrRetryExceeded,
    ];

    /// The number of `ibv_wc_status`.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// As `ibv_wc_status_str` prints it.
    pub const fn verbs_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local QP operation error",
            Self::LocalProtection => "local protection error",
            Self::WorkRequestFlushed => "Work Request Flushed Error",
            Self::MemoryWindowBind => "memory bind operation error",
            Self::BadResponse => "bad response error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::RnrRetryExceeded => "RNR retry counter exceeded",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verbs_str())
    }
}

/// What kind of request completed. The numbers are those of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CompletionOp {
    /// A SEND.
    Send = 0,
    /// An RDMA WRITE.
    RdmaWrite = 1,
    /// An RDMA READ.
    RdmaRead = 2,
    /// A COMPARE AND SWAP.
    CompareSwap = 3,
    /// A FETCH AND ADD.
    FetchAdd = 4,
    /// A memory window was bound.
    BindWindow = 5,
    /// A memory window was invalidated by its owner.
    LocalInvalidate = 6,
    /// A FLUSH.
    Flush = 8,
    /// An ATOMIC WRITE.
    AtomicWrite = 9,
    /// A message arrived by SEND.
    Recv = 128,
    /// An RDMA WRITE with immediate data arrived; the data went where the peer said.
    RecvRdmaWithImm = 129,
}
