//! Shared receive queues that threads post to while messages arrive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::qp::{QpCap, QpType};
use crate::queue::{Immediate, RecvRequest, SendOp, Status};
use crate::testing::{Pair, attributes};
use crate::wire::Syndrome;

fn pair() -> Pair {
    Pair::of(QpType::Rc, &attributes(), QpCap::default(), true)
}

/// A poster may be preempted after it has counted its receive and before the receive is in the queue.
#[test]
fn a_write_with_immediate_waits_for_a_receive_that_is_still_being_posted() {
    for len in [0, 100, 3000] {
        let mut pair = pair();
        let srq = pair.b.srq.clone().unwrap();
        let op = SendOp::Write { remote: pair.b.remote(100_000), imm: Some(1) };
        let finish_post = srq.begin_post();
        pair.a.post(1, op, 0, len);
        pair.run_until_idle();
        assert!(pair.a.completions().is_empty(), "acknowledged without a receive");
        let syndromes = pair.log.iter().filter_map(|sent| sent.packet().aeth());
        let last = syndromes.map(|aeth| aeth.syndrome).next_back();
        assert!(matches!(last, Some(Syndrome::RnrNak { .. })), "{last:?}");
        finish_post(RecvRequest { id: 7, ..RecvRequest::default() });
        pair.run(Duration::from_secs(2));
        assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
        let received = pair.b.completions();
        let [receive] = &received[..] else { panic!("one receive, one completion: {received:?}") };
        assert_eq!((receive.id, receive.imm), (7, Some(Immediate::Data(1))));
        assert_eq!(srq.len(), 0);
    }
}

#[test]
fn every_acknowledged_write_with_immediate_completes_a_receive_while_threads_post() {
    const WRITES: u64 = 1500;
    let mut pair = pair();
    let srq = pair.b.srq.clone().unwrap();
    let op = SendOp::Write { remote: pair.b.remote(100_000), imm: Some(1) };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Keep the queue nearly empty: only then does it matter that a receive may be
                    // counted and not yet be in the queue.
                    if srq.is_empty() {
                        // If another thread has filled it meanwhile, the error does not matter.
                        let _ = srq.post_recv(RecvRequest::default());
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let (mut acknowledged, mut received) = (0, 0);
        for id in 0..WRITES {
            pair.a.post(id, op, 0, 8);
            while acknowledged == id {
                pair.run(Duration::from_millis(10));
                acknowledged += pair.a.completions().len() as u64;
                pair.log.clear();
            }
            received += pair.b.completions().len() as u64;
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!((acknowledged, received), (WRITES, WRITES));
    });
}
