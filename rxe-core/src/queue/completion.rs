//! Completions and the queue they wait in. IBTA 11.4.2, 10.10.

use std::fmt;
use std::sync::Arc;

use super::bounded::Bounded;
use crate::error::VerbsError;
use crate::sync::{AtomicBool, AtomicU8, Ordering, RwLock, fence};
use crate::types::{CompletionOp, Key, Qpn, Status, Time};

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
            // Who arms and then finds nothing must have looked after arming: either the engine sees
            // the queue armed or this sees the completion.
            fence(Ordering::SeqCst);
            if self.is_empty() {
                return None;
            }
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
