//! Loom models of concurrent threads. Loom runs each model in all orders of steps that the memory
//! model allows (with at most three preemptions).
//!
//! Each model can fail: its comment names the change that makes it fail.

mod shards;

use std::sync::Arc as StdArc;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::{self, yield_now};

use super::{AtomicBool, Ordering, fence};
use crate::engine::{Config, Engine};
use crate::mem::{Access, Buffer, Memory, PdId};
use crate::qp::{AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use crate::queue::{
    Arm, Completion, CompletionQueue, Doorbells, Notify, Payload, PostError, RecvRequest, SendOp,
    SendRequest, SgeList, SharedReceiveQueue, Status, WorkRing,
};
use crate::testing::{Pair, attributes};
use crate::types::{Qpn, Time};
use crate::wire::{TxBatch, TxLimits};

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Fails if the ordering of `tail`, `head` or `released` in `WorkRing` is relaxed. Also fails if a
/// request counts as taken before it is read.
#[test]
fn a_place_that_is_reserved_is_there_and_requests_keep_their_order() {
    explore(|| {
        let ring = Arc::new(WorkRing::new(1).unwrap());
        let poster = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                for item in 0..2 {
                    while ring.post(item).is_err() {
                        yield_now();
                    }
                }
            })
        };
        for want in 0..2 {
            let got = loop {
                match ring.take() {
                    Some(got) => break got,
                    None => yield_now(),
                }
            };
            assert_eq!(got, want);
            assert_eq!(ring.outstanding(), 1, "it holds its place until it is complete");
            ring.release();
        }
        poster.join().unwrap();
        assert_eq!((ring.outstanding(), ring.take()), (0, None));
    });
}

/// Fails if the ring starts again at its first place while it is not empty.
#[test]
fn a_ring_that_becomes_empty_begins_anew_and_loses_nothing() {
    explore(|| {
        let ring = Arc::new(WorkRing::new(2).unwrap());
        let poster = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || (0..3).filter(|&item| ring.post(item).is_ok()).count())
        };
        let mut taken = Vec::new();
        for _ in 0..2 {
            if let Some(item) = ring.take() {
                taken.push(item);
                ring.release();
            }
        }
        let posted = poster.join().unwrap();
        taken.extend(std::iter::from_fn(|| ring.take()));
        assert!(taken.is_sorted() && taken.len() == posted && taken[..2] == [0, 1], "{taken:?}");
    });
}

/// Fails if `WorkRing::post` does not lock.
#[test]
fn two_threads_take_two_places() {
    explore(|| {
        let ring = Arc::new(WorkRing::new(2).unwrap());
        let post = |item| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.post(item).unwrap())
        };
        let (a, b) = (post(1), post(2));
        a.join().unwrap();
        b.join().unwrap();
        assert_eq!((ring.outstanding(), ring.post(3)), (2, Err(PostError::Full)));
        assert!(ring.take().is_some() && ring.take().is_some());
    });
}

fn init(cq: &StdArc<CompletionQueue>) -> QpInit {
    QpInit {
        service: QpType::Rc,
        pd: PdId(1),
        send_cq: StdArc::clone(cq),
        recv_cq: StdArc::clone(cq),
        cap: QpCap { max_send_wr: 2, max_recv_wr: 2, ..QpCap::default() },
        srq: None,
        xrcd: None,
        sq_sig_all: true,
    }
}

fn handle(doorbells: &StdArc<Doorbells>) -> QpHandle {
    let init = init(&StdArc::new(CompletionQueue::new(1, None)));
    let doorbells = StdArc::clone(doorbells);
    let qp = QpHandle::new(Qpn::from_wire(0x11), init, doorbells, 1 << 20).unwrap();
    qp.set_state(QpState::Rts);
    qp
}

fn request(id: u64) -> SendRequest {
    SendRequest::new(id, SendOp::Send { imm: None }, Payload::Sges(SgeList::new()))
}

/// Does what the engine does at the beginning of `poll_transmit`, and then with the queue pair.
fn serve(doorbells: &Doorbells, qp: &QpHandle) -> usize {
    let mut served = 0;
    while doorbells.take().is_some() {
        qp.doorbell_seen();
        while qp.sq.take().is_some() {
            qp.sq.release();
            served += 1;
        }
    }
    served
}

/// Fails if `doorbell_seen` uses a store, which does not read what a poster wrote.
#[test]
fn what_is_posted_while_the_engine_answers_rings_again() {
    explore(|| {
        let doorbells = StdArc::new(Doorbells::default());
        let qp = Arc::new(handle(&doorbells));
        let poster = {
            let qp = Arc::clone(&qp);
            thread::spawn(move || {
                qp.post_send(request(1)).unwrap();
                qp.post_send(request(2)).unwrap();
            })
        };
        let mut served = serve(&doorbells, &qp);
        poster.join().unwrap();
        served += serve(&doorbells, &qp);
        assert_eq!(served, 2);
    });
}

/// A lock with the weakest sufficient orderings.
#[derive(Debug, Default)]
struct Lock(AtomicBool);

impl Lock {
    fn try_lock(&self) -> bool {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        self.0.compare_exchange(false, true, acquire, relaxed).is_ok()
    }

    fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Fails without the fence in `Doorbells::drain`. Also fails if the former holder of the lock does
/// not check again, or if `QpHandle::post_send` rings before it posts.
#[test]
fn a_request_is_begun_by_who_posts_it_or_by_who_holds_the_lock() {
    explore(|| {
        let doorbells = StdArc::new(Doorbells::default());
        let shared = Arc::new((handle(&doorbells), Lock::default(), UnsafeCell::new(0_usize)));
        let work = |shared: &(QpHandle, Lock, UnsafeCell<usize>), doorbells: &Doorbells| {
            doorbells.drain(|| {
                let (qp, lock, turns) = shared;
                if !lock.try_lock() {
                    return false;
                }
                // The engine belongs to the holder of the lock: loom detects if two threads hold
                // it.
                turns.with_mut(|_| serve(doorbells, qp));
                lock.unlock();
                true
            });
        };
        let other = {
            let (shared, doorbells) = (Arc::clone(&shared), StdArc::clone(&doorbells));
            thread::spawn(move || {
                shared.0.post_send(request(1)).unwrap();
                work(&shared, &doorbells);
            })
        };
        shared.0.post_send(request(2)).unwrap();
        work(&shared, &doorbells);
        other.join().unwrap();
        assert!(shared.0.sq.is_empty(), "a request is stranded");
        fence(Ordering::SeqCst);
        assert!(doorbells.is_empty());
    });
}

/// Fails if `post_recv` only loads the state the second time, or if `set_state` only stores it.
#[test]
fn a_receive_posted_while_the_queue_pair_fails_is_flushed_or_rings() {
    explore(|| {
        let doorbells = StdArc::new(Doorbells::default());
        let qp = Arc::new(handle(&doorbells));
        let poster = {
            let qp = Arc::clone(&qp);
            thread::spawn(move || qp.post_recv(RecvRequest::default()).unwrap())
        };
        qp.set_state(QpState::Err);
        let mut flushed = qp.rq.take_own().is_some();
        poster.join().unwrap();
        if doorbells.take().is_some() {
            flushed |= qp.rq.take_own().is_some();
        }
        assert!(flushed, "a receive of a queue pair in the error state completes");
    });
}

#[derive(Debug, Default)]
struct Told(AtomicBool);

impl Notify for Told {
    fn notify(&self) {
        assert!(!self.0.swap(true, Ordering::Relaxed), "told once for one arming");
    }
}

fn completion() -> Completion {
    Completion::new(1, Status::Success, Qpn::from_wire(0x11), Time::ZERO)
}

/// Fails if `push` checks the arming with less than sequential consistency. Also fails if it checks
/// before the completion is in the queue.
#[test]
fn who_arms_a_completion_queue_and_finds_it_empty_is_told() {
    explore(|| {
        let told = StdArc::new(Told::default());
        let cq = Arc::new(CompletionQueue::new(2, Some(StdArc::<Told>::clone(&told))));
        let engine = {
            let cq = Arc::clone(&cq);
            thread::spawn(move || cq.push(completion()).unwrap())
        };
        cq.arm(Arm::Any);
        let found = cq.poll().is_some();
        engine.join().unwrap();
        assert!(found || told.0.load(Ordering::Relaxed), "it would sleep for ever");
    });
}

/// Fails if `push` disarms by a load and a store.
#[test]
fn of_two_completions_at_once_one_tells() {
    explore(|| {
        let told = StdArc::new(Told::default());
        let cq = Arc::new(CompletionQueue::new(2, Some(StdArc::<Told>::clone(&told))));
        cq.arm(Arm::Any);
        let push = || {
            let cq = Arc::clone(&cq);
            thread::spawn(move || cq.push(completion()).unwrap())
        };
        let (a, b) = (push(), push());
        a.join().unwrap();
        b.join().unwrap();
        assert!(told.0.load(Ordering::Relaxed) && cq.len() == 2);
    });
}

/// Fails if a poll frees the place by a load and a store: the next push then finds no place.
#[test]
fn each_completion_is_polled_once_and_leaves_a_place() {
    explore(|| {
        let cq = Arc::new(CompletionQueue::new(2, None));
        (0..2).for_each(|_| cq.push(completion()).unwrap());
        let poller = {
            let cq = Arc::clone(&cq);
            thread::spawn(move || usize::from(cq.poll().is_some()))
        };
        let polled = usize::from(cq.poll().is_some()) + poller.join().unwrap();
        assert_eq!((polled, cq.len()), (2, 0));
        (0..2).for_each(|_| cq.push(completion()).unwrap());
        assert!(cq.push(completion()).is_err() && cq.is_overflowed());
    });
}

/// Fails if `Bounded::resize` changes the places by a load and a store.
#[test]
fn a_completion_queue_never_holds_more_than_its_size_while_that_changes() {
    explore(|| {
        let cq = Arc::new(CompletionQueue::new(2, None));
        cq.push(completion()).unwrap();
        let owner = {
            let cq = Arc::clone(&cq);
            thread::spawn(move || cq.resize(1).is_ok())
        };
        let pushed = cq.push(completion()).is_ok();
        let resized = owner.join().unwrap();
        assert!(pushed != resized, "either there was room or it could be made smaller");
        assert_eq!((cq.len() <= cq.depth(), cq.is_overflowed()), (true, !pushed));
    });
}

/// Fails if `Bounded::push` checks for a place and counts it in two steps.
#[test]
fn of_two_receives_for_one_place_one_is_posted() {
    explore(|| {
        let srq = Arc::new(SharedReceiveQueue::new(1, PdId(1), 1, 1));
        let post = |id| {
            let srq = Arc::clone(&srq);
            thread::spawn(move || srq.post_recv(RecvRequest { id, ..Default::default() }).is_ok())
        };
        let (a, b) = (post(1), post(2));
        assert!(a.join().unwrap() != b.join().unwrap());
        assert_eq!(srq.len(), 1);
        assert!(srq.take().is_some() && srq.take().is_none());
    });
}

/// Fails if `take` frees the place of a receive by a load and a store.
#[test]
fn each_receive_of_a_shared_queue_is_taken_once_while_others_are_posted() {
    explore(|| {
        let srq = Arc::new(SharedReceiveQueue::new(1, PdId(1), 2, 1));
        let post = |id| srq.post_recv(RecvRequest { id, ..Default::default() });
        post(1).unwrap();
        let poster = {
            let srq = Arc::clone(&srq);
            thread::spawn(move || {
                srq.post_recv(RecvRequest { id: 2, ..Default::default() }).unwrap();
            })
        };
        let other = {
            let srq = Arc::clone(&srq);
            thread::spawn(move || srq.take().map(|taken| taken.receive.id))
        };
        let mut taken = vec![srq.take().map(|taken| taken.receive.id)];
        taken.push(other.join().unwrap());
        poster.join().unwrap();
        taken.extend((0..2).map(|_| srq.take().map(|taken| taken.receive.id)));
        let mut ids: Vec<_> = taken.into_iter().flatten().collect();
        ids.sort_unstable();
        assert_eq!((ids, srq.len()), (vec![1, 2], 0));
        post(3).unwrap();
        post(4).unwrap();
    });
}

/// Fails if the limit is cleared by a load and a store.
#[test]
fn the_limit_of_a_shared_queue_is_told_once_however_many_take_from_it() {
    explore(|| {
        let srq = Arc::new(SharedReceiveQueue::new(1, PdId(1), 2, 1));
        for id in 0..2 {
            srq.post_recv(RecvRequest { id, ..RecvRequest::default() }).unwrap();
        }
        srq.set_limit(2).unwrap();
        let take = || {
            let srq = Arc::clone(&srq);
            thread::spawn(move || srq.take().is_some_and(|taken| taken.limit_reached))
        };
        let (a, b) = (take(), take());
        let told = [a, b].map(|thread| u32::from(thread.join().unwrap()));
        assert_eq!(told.iter().sum::<u32>(), 1);
    });
}

/// Fails if a WRITE with immediate data is executed before its receive is taken. That the shared
/// queue is not empty is no proof: a place is counted before its receive is in the list.
#[test]
fn a_write_with_immediate_that_is_acknowledged_completes_a_receive() {
    explore(|| {
        let mut pair = Pair::of(QpType::Rc, &attributes(), QpCap::default(), true);
        let srq = pair.b.srq.clone().unwrap();
        let poster = thread::spawn(move || srq.post_recv(RecvRequest::default()).unwrap());
        pair.a.post(1, SendOp::Write { remote: pair.b.remote(0), imm: Some(1) }, 0, 8);
        pair.run_until_idle();
        let acknowledged = !pair.a.cq.is_empty();
        assert_eq!(pair.b.cq.poll().is_some(), acknowledged);
        poster.join().unwrap();
    });
}

/// Fails if the queue reports its overflow before it is marked. Also fails if it reports only to
/// the engine that noticed the overflow. Two shards of a device each flush a receive into the
/// queue, which has one place.
#[test]
fn of_two_engines_behind_an_overflowed_queue_both_stop() {
    explore(|| {
        let cq = StdArc::new(CompletionQueue::new(1, None));
        let memory = StdArc::new(Memory::new());
        let shards = [0x10, 0x20].map(|first| {
            let mut engine = Engine::new(Config::default(), StdArc::clone(&memory));
            let qps = [first, first + 1].map(|qpn| {
                let qp = engine.create_qp(Qpn::from_wire(qpn), init(&cq)).unwrap();
                modify(&mut engine, &qp, QpState::Init);
                qp
            });
            qps[0].post_recv(RecvRequest::default()).unwrap();
            (engine, qps)
        });
        let threads = shards.map(|(mut engine, qps)| {
            thread::spawn(move || {
                modify(&mut engine, &qps[0], QpState::Err);
                engine.poll_transmit(Time::ZERO, &mut TxBatch::new(TxLimits::default()));
                (engine, qps)
            })
        });
        for (mut engine, qps) in threads.map(|thread| thread.join().unwrap()) {
            engine.poll_transmit(Time::ZERO, &mut TxBatch::new(TxLimits::default()));
            assert_eq!(qps.map(|qp| qp.state()), [QpState::Err; 2]);
        }
        assert!(cq.poll().is_some() && cq.poll().is_none());
    });
}

fn modify(engine: &mut Engine, qp: &QpHandle, to: QpState) {
    let attr = QpAttr { qp_state: to, ..attributes() };
    let mask = match to {
        QpState::Init => AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        _ => AttrMask::empty(),
    };
    engine.modify_qp(Time::ZERO, qp.qpn(), &attr, mask | AttrMask::STATE).unwrap();
}

/// Fails if a copy continues after the guard is dropped. Also fails if deregistration takes only
/// the read guard.
#[test]
fn after_deregistration_the_memory_is_the_owners_alone() {
    explore(|| {
        let memory = Arc::new(Memory::new());
        // Stands for the bytes: loom detects concurrent use.
        let bytes = Arc::new(UnsafeCell::new(()));
        let key =
            memory.register(PdId(1), Buffer::zeroed(8), 0, Access::LOCAL_WRITE, || 0x100).unwrap();
        let engine = {
            let (memory, bytes) = (Arc::clone(&memory), Arc::clone(&bytes));
            thread::spawn(move || {
                let guard = memory.guard();
                if let Ok(span) = guard.writable(PdId(1), key, 0, 8, Access::LOCAL_WRITE) {
                    bytes.with_mut(|_| span.write(&[1; 8]).unwrap());
                }
            })
        };
        assert!(memory.deregister(key));
        bytes.with_mut(|_| ());
        engine.join().unwrap();
    });
}
