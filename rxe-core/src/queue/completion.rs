//! Completions and completion queues. IBTA 11.4.2, 10.10.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use super::Doorbells;
use super::bounded::Bounded;
use crate::error::VerbsError;
use crate::sync::{AtomicBool, AtomicU8, Mutex, Ordering, RwLock, fence};
use crate::types::{CompletionOp, Key, Qpn, Status, Time};

/// The immediate data or the invalidated key of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// Immediate data, as a number in host order.
    Data(u32),
    /// A local key that the peer has invalidated.
    Invalidated(Key),
}

/// The completion of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number of the request, chosen by the program (`wr_id`).
    pub id: u64,
    /// The status of the request. If it is not [`Status::Success`], only `id`, `status` and `qpn`
    /// are valid.
    pub status: Status,
    /// The operation of the request.
    pub op: CompletionOp,
    /// The number of bytes received; for READ and atomics, the number of bytes fetched.
    pub byte_len: u32,
    /// The immediate data or the invalidated key, if the message carried one.
    pub imm: Option<Immediate>,
    /// The local QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub src_qp: Qpn,
    /// Whether the first 40 bytes of the receive hold a GRH, as they do for all datagrams.
    pub grh: bool,
    /// Whether the GRH holds an IPv4 header instead of an IPv6 header. IBTA A17.4.5.1.
    pub ipv4: bool,
    /// Whether the sender set "solicited", or this is an error. Such a completion also notifies a
    /// queue that is armed for solicited completions only.
    pub solicited: bool,
    /// The time of the completion, on the engine's clock.
    pub timestamp: Time,
}

impl Completion {
    /// Creates a completion with these values and defaults for the other fields.
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

/// A receiver of the notifications of a completion queue. It may, for example, make a file
/// descriptor readable.
pub trait Notify: Send + Sync + fmt::Debug {
    /// Called once when an armed queue receives a completion that it was armed for. The method must
    /// not block and must not call into the engine.
    fn notify(&self);

    /// Called once when the queue has overflowed. The doorbells of all engines whose queue pairs
    /// complete there have been rung; [`Engine::poll_transmit`] must soon be called on each. The
    /// method must not block and must not call into an engine.
    ///
    /// [`Engine::poll_transmit`]: crate::engine::Engine::poll_transmit
    fn overflowed(&self) {}
}

/// The kind of completions for which an armed queue notifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Arm {
    /// Errors, and messages whose sender set "solicited".
    Solicited = 1,
    /// Any completion.
    Any = 2,
}

/// A completion queue: bounded and lock-free, filled by the engines of a device, read by any
/// thread. IBTA 11.2.6.
#[derive(Debug)]
pub struct CompletionQueue {
    id: u64,
    list: Bounded<Completion>,
    /// Completions older than those in the list: the rest after the completions of a QP were
    /// removed. Taking a completion from the list requires the read lock.
    older: RwLock<VecDeque<Completion>>,
    /// 0 if the queue is not armed, otherwise an [`Arm`].
    armed: AtomicU8,
    overflowed: AtomicBool,
    /// Whether completions that find no place are lost silently.
    ignores_overrun: AtomicBool,
    /// The doorbells of the engines whose queue pairs complete here.
    doorbells: Mutex<Vec<Weak<Doorbells>>>,
    notify: Option<Arc<dyn Notify>>,
}

impl CompletionQueue {
    /// Creates a queue for `depth` completions (at least 1). When it is armed, it calls `notify`.
    pub fn new(depth: u32, notify: Option<Arc<dyn Notify>>) -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            list: Bounded::new(depth.max(1)),
            older: RwLock::new(VecDeque::new()),
            armed: AtomicU8::new(0),
            overflowed: AtomicBool::new(false),
            ignores_overrun: AtomicBool::new(false),
            doorbells: Mutex::new(Vec::new()),
            notify,
        }
    }

    /// Makes the queue ignore overruns: a completion that finds no place is lost, and neither the
    /// queue nor the QP fails (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`). Completions in the queue stay.
    pub fn ignore_overrun(&self) {
        self.ignores_overrun.store(true, Ordering::Relaxed);
    }

    /// Returns a number that no other completion queue of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Removes and returns the oldest completion.
    pub fn poll(&self) -> Option<Completion> {
        if self.is_empty() {
            return None;
        }
        let older = self.older.read();
        if older.is_empty() {
            return self.list.pop();
        }
        drop(older);
        self.poll_older()
    }

    #[cold]
    fn poll_older(&self) -> Option<Completion> {
        let mut older = self.older.write();
        let Some(completion) = older.pop_front() else { return self.list.pop() };
        self.list.free(1);
        Some(completion)
    }

    /// Changes the depth to `depth` completions (at least 1). Completions in the queue stay.
    ///
    /// # Errors
    /// More than `depth` completions are in the queue. Nothing is changed.
    pub fn resize(&self, depth: u32) -> Result<(), VerbsError> {
        self.list.resize(depth.max(1)).map_err(|len| VerbsError::InvalidAttribute {
            name: "cqe",
            why: format!("{depth}: the queue holds {len} completions: poll them first"),
        })
    }

    /// Requests one notification, at the next completion of the kind `arm`. Completions that are
    /// already in the queue do not count: poll again after arming, as with `ibv_req_notify_cq`.
    pub fn arm(&self, arm: Arm) {
        // A later arming for solicited completions does not weaken an arming for any completion.
        self.armed.fetch_max(arm as u8, Ordering::SeqCst);
        // A caller that then finds the queue empty relies on this fence: either the engine sees that
        // the queue is armed, or this thread sees the completion.
        fence(Ordering::SeqCst);
    }

    /// Returns whether completions were lost because the program did not poll. The queue is then
    /// unusable.
    pub fn is_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// Returns the number of completions in the queue.
    pub fn len(&self) -> usize {
        self.list.len() as usize
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of completions that the queue can hold.
    pub fn depth(&self) -> usize {
        self.list.depth() as usize
    }

    /// Removes the completions of a QP, for RESET and destroy. The caller ensures that this QP
    /// completes nothing here meanwhile. QPs of other engines may. Their completions keep their
    /// order, because the remaining ones are not put back behind newer ones.
    pub(crate) fn discard(&self, qpn: Qpn) {
        if self.is_empty() {
            return;
        }
        let mut older = self.older.write();
        older.extend(self.list.drain());
        let all = older.len();
        older.retain(|completion| completion.qpn != qpn);
        let gone = all - older.len();
        debug_assert!(older.iter().all(|completion| completion.qpn != qpn));
        // There are no more completions than places, so the number fits.
        self.list.free(u32::try_from(gone).unwrap_or(u32::MAX));
    }

    /// Adds a completion, and notifies if the queue is armed for it. If the queue is full, the
    /// completion is lost and the queue is marked; the caller must put the QP into the error state.
    /// A queue that ignores overruns is not marked, and no error is returned.
    pub(crate) fn push(&self, completion: Completion) -> Result<(), Overflow> {
        let wakes = completion.solicited || completion.status != Status::Success;
        let full = self.list.push(completion).is_err();
        let overrun = full && !self.ignores_overrun.load(Ordering::Relaxed);
        let first = overrun && !self.overflowed.swap(true, Ordering::AcqRel);
        let armed = self.armed.load(Ordering::SeqCst);
        if armed == Arm::Any as u8 || (armed != 0 && (wakes || full)) {
            // The swap ensures that only one of several concurrent completions notifies.
            if self.armed.swap(0, Ordering::SeqCst) != 0
                && let Some(notify) = &self.notify
            {
                notify.notify();
            }
        }
        if first {
            self.tell_overflow();
        }
        if overrun { Err(Overflow { first }) } else { Ok(()) }
    }

    /// Registers the doorbells of an engine whose queue pairs complete here.
    pub(crate) fn tell_overflow_to(&self, doorbells: &Arc<Doorbells>) {
        let mut list = self.doorbells.lock();
        if !list.iter().any(|known| known.as_ptr() == Arc::as_ptr(doorbells)) {
            list.retain(|known| known.strong_count() > 0);
            list.push(Arc::downgrade(doorbells));
        }
    }

    #[cold]
    fn tell_overflow(&self) {
        let list = self.doorbells.lock();
        list.iter().filter_map(Weak::upgrade).for_each(|doorbells| doorbells.ring_overflow());
        drop(list);
        if let Some(notify) = &self.notify {
            notify.overflowed();
        }
    }
}

/// The error that a completion queue was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow {
    /// Whether this is the first overflow of the queue.
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

    /// Queue pairs of several engines complete here. One is destroyed while another completes.
    #[test]
    fn completions_of_others_keep_their_order_while_those_of_a_queue_pair_go() {
        const EACH: u32 = if cfg!(miri) { 100 } else { 5_000 };
        let cq = CompletionQueue::new(2 * EACH, None);
        let [stays, goes] = [5, 7].map(|n| Qpn::new(n).unwrap());
        let push = |id: u32, qpn| {
            cq.push(Completion::new(id.into(), Status::Success, qpn, Time::ZERO)).unwrap();
        };
        std::thread::scope(|scope| {
            let completes = scope.spawn(|| {
                for id in 0..EACH {
                    push(id, stays);
                    if id % 16 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            while !completes.is_finished() {
                push(0, goes);
                cq.discard(goes);
            }
        });
        let left: Vec<_> = std::iter::from_fn(|| cq.poll()).collect();
        assert!(left.iter().map(|c| c.id).eq(0..u64::from(EACH)), "in order, and none is lost");
        assert_eq!(cq.len(), 0);
    }

    #[test]
    fn what_was_left_of_a_queue_counts_and_is_polled_first() {
        let cq = CompletionQueue::new(4, None);
        let [stays, goes] = [5, 7].map(|n| Qpn::new(n).unwrap());
        let push = |id, qpn| cq.push(Completion::new(id, Status::Success, qpn, Time::ZERO)).is_ok();
        assert!(push(1, stays) && push(2, goes) && push(3, stays));
        cq.discard(goes);
        assert!(push(4, goes) && push(5, stays));
        assert!(!push(6, stays), "as many as there are places");
        assert_eq!(cq.poll().map(|c| c.id), Some(1));
        cq.discard(goes);
        assert_eq!(cq.len(), 2);
        assert!(push(7, stays) && push(8, stays));
        let left: Vec<_> = std::iter::from_fn(|| cq.poll()).map(|c| c.id).collect();
        assert_eq!((left, cq.len()), (vec![3, 5, 7, 8], 0));
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

    #[test]
    fn a_queue_that_ignores_overruns_keeps_what_was_there_and_still_notifies() {
        let count = Arc::new(Count::default());
        let cq = CompletionQueue::new(1, Some(count.clone()));
        cq.ignore_overrun();
        let push = |id| cq.push(Completion { id, ..completion(false, Status::Success) });
        push(1).unwrap();
        cq.arm(Arm::Any);
        push(2).unwrap();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(!cq.is_overflowed());
        assert_eq!(cq.poll().map(|c| c.id), Some(1));
        assert!(cq.poll().is_none());
        push(3).unwrap();
        assert_eq!(cq.poll().map(|c| c.id), Some(3));
    }
}
