//! Completions and the queue they wait in. IBTA 11.4.2, 10.10.

use std::fmt;
use std::sync::Arc;

use super::bounded::Bounded;
use crate::error::VerbsError;
use crate::sync::{AtomicBool, AtomicU8, Ordering, RwLock};
use crate::types::{Key, Qpn, Time};

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
    /// A local access violation (of a peer's write to our memory).
    LocalAccess = 8,
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
    /// The remote side aborted it.
    RemoteAborted = 16,
    /// Something else went wrong for good.
    Fatal = 19,
    /// Something else went wrong.
    General = 21,
}

impl Status {
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
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::RnrRetryExceeded => "RNR retry counter exceeded",
            Self::RemoteAborted => "remote abort",
            Self::Fatal => "fatal error",
            Self::General => "general error",
        }
    }

    /// What it usually means and what to do, for a person.
    pub const fn explain(self) -> &'static str {
        match self {
            Self::Success => "the request was carried out",
            Self::LocalLength => {
                "the message is longer than the receive buffer that was posted for it: post larger \
                 receives or send less"
            }
            Self::LocalQpOperation => {
                "the QP was used in a way that contradicts its set-up: a READ or atomic although \
                 max_rd_atomic is 0, an address handle of another protection domain, or a key to \
                 invalidate of which no window is bound to this QP"
            }
            Self::LocalProtection => {
                "a local buffer lies outside its memory region, its lkey is wrong or of another \
                 protection domain, or data arrives in a region registered without LOCAL_WRITE"
            }
            Self::WorkRequestFlushed => {
                "an earlier request of this QP failed and put it into the error state: look at the \
                 first completion that is neither success nor flushed"
            }
            Self::MemoryWindowBind => {
                "the memory window could not be bound: one of type 2 that is bound must be invalidated \
                 first; the region must still be there, be in the QP's protection domain and have \
                 MW_BIND and what the window shall have"
            }
            Self::BadResponse => {
                "the peer's answer does not fit the request: its stack is at fault"
            }
            Self::LocalAccess => "a local memory region does not allow what was attempted",
            Self::RemoteInvalidRequest => {
                "the peer refused the request: a message longer than its receive, an operation its \
                 QP was not set up to accept (qp_access_flags), or too many READs at once \
                 (max_dest_rd_atomic)"
            }
            Self::RemoteAccess => {
                "the peer's memory may not be used like this: wrong rkey or address, a range beyond \
                 the region, or a region registered without the REMOTE_ right; the peer's QP is now \
                 in the error state"
            }
            Self::RemoteOperation => {
                "the peer could not carry it out: usually a receive buffer of its own is not valid"
            }
            Self::RetryExceeded => {
                "the peer did not answer: is it alive, its QP in RTR or RTS with our QPN, addresses \
                 and path MTU, and UDP port 4791 not blocked by a firewall?"
            }
            Self::RnrRetryExceeded => {
                "the peer had no receive posted: post receives before the other side sends, or set \
                 rnr_retry to 7 (for ever)"
            }
            Self::RemoteAborted => "the peer aborted the operation",
            Self::Fatal | Self::General => "the device or the QP is no longer usable",
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

/// What came along with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// Immediate data, as a number in host order.
    Data(u32),
    /// A key of ours that the peer has invalidated.
    Invalidated(Key),
}

/// The end of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number the program gave the request.
    pub id: u64,
    /// How it ended. Where it is not [`Status::Success`], only `id`, `status` and `qpn` mean
    /// anything.
    pub status: Status,
    /// What it was.
    pub op: CompletionOp,
    /// Bytes received; for READ and atomics, bytes fetched.
    pub byte_len: u32,
    /// What came along.
    pub imm: Option<Immediate>,
    /// The local QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub src_qp: Qpn,
    /// Whether the receive's first 40 bytes hold a GRH: always so for datagrams.
    pub grh: bool,
    /// Whether what stands there is an IPv4 header; else it is one of IPv6. IBTA A17.4.5.1.
    pub ipv4: bool,
    /// Whether the sender set "solicited" on it, or it is an error: such a completion wakes a
    /// waiter for solicited ones.
    pub solicited: bool,
    /// When it was made, on the engine's clock.
    pub timestamp: Time,
}

impl Completion {
    /// A completion of which nothing else is known.
    pub fn new(id: u64, status: Status, qpn: Qpn, timestamp: Time) -> Self {
        Self {
            id,
            status,
            op: CompletionOp::Send,
            byte_len: 0,
            imm: None,
            qpn,
            src_qp: Qpn::from_wire(0),
            grh: false,
            ipv4: false,
            solicited: false,
            timestamp,
        }
    }
}

/// Somebody to be told of a completion, such as a file descriptor that becomes readable.
pub trait Notify: Send + Sync + fmt::Debug {
    /// Called once each time a queue that was armed gets a completion it was armed for. Must not
    /// block and must not call back into the engine.
    fn notify(&self);
}

/// For which completions a queue wakes its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Arm {
    /// Errors and those whose sender asked for it.
    Solicited = 1,
    /// Any.
    Any = 2,
}

/// A completion queue: bounded and lock-free, filled by the engines of a device, read by any
/// thread. IBTA 11.2.6.
#[derive(Debug)]
pub struct CompletionQueue {
    id: u64,
    list: Bounded<Completion>,
    /// Held for reading to take a completion, for writing to take out those of a QP.
    discarding: RwLock<()>,
    /// 0, or an [`Arm`].
    armed: AtomicU8,
    overflowed: AtomicBool,
    notify: Option<Arc<dyn Notify>>,
}

impl CompletionQueue {
    /// A queue for `depth` completions (at least 1), that tells `notify` when armed.
    pub fn new(depth: u32, notify: Option<Arc<dyn Notify>>) -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            list: Bounded::new(depth.max(1)),
            discarding: RwLock::new(()),
            armed: AtomicU8::new(0),
            overflowed: AtomicBool::new(false),
            notify,
        }
    }

    /// Tells it from all others of this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The oldest completion not yet taken.
    pub fn poll(&self) -> Option<Completion> {
        if self.is_empty() {
            return None;
        }
        let _reading = self.discarding.read();
        self.list.pop()
    }

    /// Makes it hold `depth` completions (at least 1) from now on; what it holds stays.
    ///
    /// # Errors
    /// It holds more than that; it is as it was.
    pub fn resize(&self, depth: u32) -> Result<(), VerbsError> {
        self.list.resize(depth.max(1)).map_err(|len| VerbsError::InvalidAttribute {
            name: "cqe",
            why: format!("{depth}: the queue holds {len} completions: poll them first"),
        })
    }

    /// Asks for one notification at the next completion that matters. One that is already in the
    /// queue does not count (poll again after arming, as with `ibv_req_notify_cq`).
    pub fn arm(&self, arm: Arm) {
        // Arming for any is not weakened by a later arming for solicited ones.
        self.armed.fetch_max(arm as u8, Ordering::SeqCst);
    }

    /// Whether completions were lost because nobody polled: the queue is then of no more use.
    pub fn is_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// Completions waiting.
    pub fn len(&self) -> usize {
        self.list.len() as usize
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many it can hold.
    pub fn depth(&self) -> usize {
        self.list.depth() as usize
    }

    /// Takes out the completions of a QP that nobody has taken yet, for RESET and destroy. The caller
    /// holds off whatever else completes here, so that the order of the others stays.
    pub(crate) fn discard(&self, qpn: Qpn) {
        if self.is_empty() {
            return;
        }
        let _writing = self.discarding.write();
        self.list.retain(|completion| completion.qpn != qpn);
    }

    /// Adds a completion and wakes who asked for it. On overflow the completion is lost and the
    /// queue marked; the caller must put the QP into the error state.
    pub(crate) fn push(&self, completion: Completion) -> Result<(), Overflow> {
        let wakes = completion.solicited || completion.status != Status::Success;
        let full = self.list.push(completion).is_err();
        let first = full && !self.overflowed.swap(true, Ordering::AcqRel);
        let armed = self.armed.load(Ordering::SeqCst);
        if armed == Arm::Any as u8 || (armed != 0 && (wakes || full)) {
            // Of several completions at once only one notifies.
            if self.armed.swap(0, Ordering::SeqCst) != 0
                && let Some(notify) = &self.notify
            {
                notify.notify();
            }
        }
        if full { Err(Overflow { first }) } else { Ok(()) }
    }
}

/// The queue was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow {
    /// It was not before.
    pub(crate) first: bool,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Debug, Default)]
    struct Count(AtomicUsize);

    impl Notify for Count {
        fn notify(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn completion(solicited: bool, status: Status) -> Completion {
        let qpn = Qpn::new(5).unwrap();
        Completion { solicited, ..Completion::new(1, status, qpn, Time::ZERO) }
    }

    #[test]
    fn an_armed_queue_notifies_once_and_only_for_what_it_was_armed() {
        let count = Arc::new(Count::default());
        let cq = CompletionQueue::new(10, Some(count.clone()));
        let push = |solicited, status| {
            cq.push(completion(solicited, status)).unwrap();
            count.0.load(Ordering::SeqCst)
        };
        assert_eq!(push(true, Status::Success), 0, "not armed");
        cq.arm(Arm::Solicited);
        assert_eq!(push(false, Status::Success), 0, "not solicited");
        assert_eq!(push(true, Status::Success), 1);
        assert_eq!(push(true, Status::Success), 1, "no longer armed");
        cq.arm(Arm::Solicited);
        assert_eq!(push(false, Status::WorkRequestFlushed), 2, "errors always wake");
        cq.arm(Arm::Any);
        cq.arm(Arm::Solicited);
        assert_eq!(push(false, Status::Success), 3, "the wider arming stays");
    }

    #[test]
    fn the_completions_of_one_queue_pair_go_and_the_others_keep_their_order() {
        let cq = CompletionQueue::new(6, None);
        let numbers = [5, 7, 5, 5, 7, 9].map(|n| Qpn::new(n).unwrap());
        for (id, qpn) in (0..).zip(numbers) {
            cq.push(Completion { id, ..Completion::new(1, Status::Success, qpn, Time::ZERO) })
                .unwrap();
        }
        cq.discard(numbers[0]);
        assert_eq!(cq.len(), 3);
        let left: Vec<_> = std::iter::from_fn(|| cq.poll()).map(|c| c.id).collect();
        assert_eq!(left, [1, 4, 5]);
        cq.discard(numbers[0]);
    }

    #[test]
    fn overflow_is_told_and_keeps_what_was_there() {
        let cq = CompletionQueue::new(1, None);
        cq.push(completion(false, Status::Success)).unwrap();
        for first in [true, false] {
            let pushed = cq.push(completion(false, Status::Success));
            assert_eq!(pushed, Err(Overflow { first }));
        }
        assert!(cq.is_overflowed());
        assert!(cq.poll().is_some() && cq.poll().is_none());
    }
}
