//! Completion statuses and opcodes. The numbers are those of verbs; statuses that this crate never
//! reports are omitted. IBTA 11.4.2.1.

use std::fmt;

/// The status of a completed request. The numbers are those of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The request succeeded.
    Success = 0,
    /// A local buffer is too small for the message, or the message is too long.
    LocalLength = 1,
    /// The use of the QP contradicts its configuration.
    LocalQpOperation = 2,
    /// A local buffer is not registered, in another protection domain, or not writable.
    LocalProtection = 4,
    /// The QP entered the error state before the request completed.
    WorkRequestFlushed = 5,
    /// A memory window could not be bound.
    MemoryWindowBind = 6,
    /// The response of the peer does not match the request.
    BadResponse = 7,
    /// The peer reports that the request is invalid.
    RemoteInvalidRequest = 9,
    /// The peer reports that the request may not access its memory.
    RemoteAccess = 10,
    /// The peer reports that it could not execute the request.
    RemoteOperation = 11,
    /// The peer did not respond, after all retries.
    RetryExceeded = 12,
    /// The peer had no receive posted, after all RNR retries.
    RnrRetryExceeded = 13,
}

impl Status {
    /// All statuses, in the order of their numbers.
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

    /// Returns the number of `ibv_wc_status`.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the text of `ibv_wc_status_str`.
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

    /// Returns the usual cause and the remedy, as part of an English sentence.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Success => "the request was carried out",
            Self::LocalLength => {
                "the message is longer than the receive buffer that was posted for it: post larger receives or \
                 send less"
            }
            Self::LocalQpOperation => {
                "the QP was used in a way that contradicts its set-up: a READ or atomic although max_rd_atomic is \
                 0, an address handle of another protection domain, or a key to invalidate of which no window is \
                 bound to this QP"
            }
            Self::LocalProtection => {
                "a local buffer may not be used like this: it lies outside its memory region, its lkey is wrong or \
                 of another protection domain, or data arrives in a region registered without LOCAL_WRITE"
            }
            Self::WorkRequestFlushed => {
                "an earlier request of this QP failed and put it into the error state: look at the first \
                 completion that is neither success nor flushed"
            }
            Self::MemoryWindowBind => {
                "the memory window could not be bound: one of type 2 that is bound must be invalidated first; the \
                 region must still be there, be in the QP's protection domain and have MW_BIND and what the \
                 window shall have"
            }
            Self::BadResponse => {
                "the peer's answer does not fit the request: its stack is at fault"
            }
            Self::RemoteInvalidRequest => {
                "the peer refused the request: a message longer than its receive, an operation its QP was not set \
                 up to accept (qp_access_flags), or too many READs at once (max_dest_rd_atomic)"
            }
            Self::RemoteAccess => {
                "the peer's memory may not be used like this: wrong rkey or address, a range beyond the region, or \
                 a region registered without the REMOTE_ right; the peer's QP is now in the error state"
            }
            Self::RemoteOperation => {
                "the peer could not carry the request out: usually a receive buffer of its own is not valid"
            }
            Self::RetryExceeded => {
                "the peer did not answer: is it alive, its QP in RTR or RTS with our QPN, addresses and path MTU, \
                 and UDP port 4791 not blocked by a firewall?"
            }
            Self::RnrRetryExceeded => {
                "the peer had no receive posted: post receives before the other side sends, or set rnr_retry to 7 \
                 (forever)"
            }
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verbs_str())
    }
}

/// The operation of a completed request. The numbers are those of `ibv_wc_opcode`.
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
    /// An RDMA WRITE with immediate data arrived; its data is at the address that the peer named.
    RecvRdmaWithImm = 129,
}
