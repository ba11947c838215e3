//! The catalogue of words for users: what a value of the protocol usually means, and what to do.

use rxe_core::queue::Status;

/// What it usually means that a request ended like this, and what to do.
pub const fn status(status: Status) -> &'static str {
    match status {
        Status::Success => "the request was carried out",
        Status::LocalLength => {
            "the message is longer than the receive buffer that was posted for it: post larger \
             receives or send less"
        }
        Status::LocalQpOperation => {
            "the QP was used in a way that contradicts its set-up: a READ or atomic although \
             max_rd_atomic is 0, an address handle of another protection domain, or a key to \
             invalidate of which no window is bound to this QP"
        }
        Status::LocalProtection => {
            "a local buffer lies outside its memory region, its lkey is wrong or of another \
             protection domain, or data arrives in a region registered without LOCAL_WRITE"
        }
        Status::WorkRequestFlushed => {
            "an earlier request of this QP failed and put it into the error state: look at the \
             first completion that is neither success nor flushed"
        }
        Status::MemoryWindowBind => {
            "the memory window could not be bound: one of type 2 that is bound must be invalidated \
             first; the region must still be there, be in the QP's protection domain and have \
             MW_BIND and what the window shall have"
        }
        Status::BadResponse => "the peer's answer does not fit the request: its stack is at fault",
        Status::RemoteInvalidRequest => {
            "the peer refused the request: a message longer than its receive, an operation its \
             QP was not set up to accept (qp_access_flags), or too many READs at once \
             (max_dest_rd_atomic)"
        }
        Status::RemoteAccess => {
            "the peer's memory may not be used like this: wrong rkey or address, a range beyond \
             the region, or a region registered without the REMOTE_ right; the peer's QP is now \
             in the error state"
        }
        Status::RemoteOperation => {
            "the peer could not carry it out: usually a receive buffer of its own is not valid"
        }
        Status::RetryExceeded => {
            "the peer did not answer: is it alive, its QP in RTR or RTS with our QPN, addresses \
             and path MTU, and UDP port 4791 not blocked by a firewall?"
        }
        Status::RnrRetryExceeded => {
            "the peer had no receive posted: post receives before the other side sends, or set \
             rnr_retry to 7 (for ever)"
        }
    }
}
