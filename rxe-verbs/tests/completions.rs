//! Completion queues that are resized or overflow, and the fields of a completion.

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::*;
use rxe_verbs::*;

/// Returns `count` connected queue pairs of one device, each with its peer. All complete on one
/// queue of this depth.
fn many(depth: u32, count: usize) -> (Device, CompletionQueue, Side, Vec<(QueuePair, QueuePair)>) {
    let (device, peer) = (open(address()), Side::new(open(address())));
    let pd = device.create_pd().unwrap();
    let cq = device.create_cq(depth).unwrap();
    let pairs = (0..count).map(|_| {
        let ours = pd.qp(&cq).build().unwrap();
        let theirs = peer.pd.qp(&peer.cq).build().unwrap();
        connect(&ours, &theirs);
        (ours, theirs)
    });
    let pairs = pairs.collect();
    (device, cq, peer, pairs)
}

/// Waits until the queue holds `count` completions.
fn until_it_holds(cq: &CompletionQueue, count: usize) {
    while cq.len() < count {
        thread::yield_now();
    }
}

#[test]
fn a_queue_changes_size_and_loses_nothing() {
    let (_device, cq, peer, pairs) = many(4, 1);
    let (qp, _) = &pairs[0];
    let to = peer.region(1);
    let post = |id| qp.write_bytes(id, b"x", to.remote(0)).post().unwrap();
    (0..4).for_each(post);
    until_it_holds(&cq, 4);
    cq.resize(64).unwrap();
    assert_eq!(cq.depth(), 64);
    (4..40).for_each(post);
    until_it_holds(&cq, 40);
    let smaller = cq.resize(39).unwrap_err();
    assert_eq!(smaller.errno(), libc::EINVAL, "{smaller}");
    assert_eq!(cq.depth(), 64);
    let mut done = Vec::new();
    assert_eq!(cq.poll(10, |completion| done.push(completion)).unwrap(), 10);
    cq.resize(30).unwrap();
    cq.poll(64, |completion| done.push(completion)).unwrap();
    assert_eq!(done.iter().map(|c| c.id).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
}

#[test]
fn a_queue_changes_size_while_completions_come_and_go() {
    const COUNT: u64 = 20_000;
    let (_device, cq, peer, pairs) = many(256, 1);
    let (qp, _) = &pairs[0];
    let to = peer.region(1);
    let mut ids = HashSet::new();
    thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            while qp.state() == QpState::Rts && cq.depth() != 9999 {
                for depth in [128, 1000, 129, 30_000] {
                    let _ = cq.resize(depth);
                }
            }
        });
        let mut posted = 0;
        while (ids.len() as u64) < COUNT {
            // At most 128 requests are outstanding, so that no queue size of this test overflows.
            while posted < COUNT && posted - (ids.len() as u64) < 128 {
                qp.write_bytes(posted, b"x", to.remote(0)).post().unwrap();
                posted += 1;
            }
            let done = cq.wait_one(TIMEOUT).unwrap();
            assert_eq!(done.status, Status::Success);
            assert!(ids.insert(done.id), "{} completed twice", done.id);
        }
        while cq.resize(9999).is_err() || cq.depth() != 9999 {}
        // The resizer may have changed the size once more.
        while !resizer.is_finished() {
            cq.resize(9999).unwrap();
        }
    });
}

#[test]
fn reset_and_the_end_of_a_queue_pair_take_its_completions_back() {
    let device = open(address());
    let cq = device.create_cq(16).unwrap();
    let pd = device.create_pd().unwrap();
    let (first, second) = (pd.qp(&cq).build().unwrap(), pd.qp(&cq).build().unwrap());
    connect(&first, &second);
    let flush = |qp: &QueuePair, id| {
        qp.recv(id, &[]).unwrap();
        qp.to_error().unwrap();
    };
    flush(&first, 1);
    flush(&second, 2);
    first.to_reset().unwrap();
    let done: Vec<_> = std::iter::from_fn(|| cq.poll_one().unwrap()).collect();
    let found: Vec<_> = done.iter().map(|c| (c.id, c.status)).collect();
    assert_eq!(found, [(2, Status::WorkRequestFlushed)], "those of before are gone");
    second.to_reset().unwrap();
    connect(&first, &second);
    flush(&second, 3);
    drop(second);
    assert!(cq.poll_one().unwrap().is_none());
}

#[test]
fn a_size_that_can_not_be_is_refused() {
    let device = open(address());
    let cq = device.create_cq(1).unwrap();
    for depth in [0, device.attr().max_cqe + 1, u32::MAX] {
        for error in [cq.resize(depth).unwrap_err(), device.create_cq(depth).unwrap_err()] {
            assert_eq!(error.errno(), libc::EINVAL, "{error}");
        }
    }
    cq.resize(device.attr().max_cqe).unwrap();
}

#[test]
fn all_queue_pairs_behind_a_queue_that_overflows_end_and_no_other() {
    let (device, cq, peer, pairs) = many(4, 3);
    let other_cq = device.create_cq(4).unwrap();
    let pd = device.create_pd().unwrap();
    let spared = pd.qp(&other_cq).build().unwrap();
    let theirs = peer.pd.qp(&peer.cq).build().unwrap();
    connect(&spared, &theirs);
    let fresh = pd.qp(&cq).build().unwrap();
    let to = peer.region(1);
    let (qp, _) = &pairs[1];
    for id in 0..8 {
        qp.write_bytes(id, b"x", to.remote(0)).post().unwrap();
    }
    let event = async_event(&device, AsyncKind::CqErr);
    assert_eq!((event.cq, event.qpn), (Some(cq.id()), Some(qp.qpn())));
    // The event comes once, however many completions are lost.
    let again: Vec<_> = std::iter::from_fn(|| device.poll_async_event()).collect();
    assert!(again.iter().all(|event| event.kind != AsyncKind::CqErr), "{again:?}");
    for (ours, _) in &pairs {
        assert_eq!(ours.state(), QpState::Err);
    }
    assert_eq!((spared.state(), fresh.state()), (QpState::Rts, QpState::Reset));
    // The completions that had room are there, in order. Then polling returns the error.
    let mut done = Vec::new();
    cq.poll(16, |completion| done.push(completion)).unwrap();
    assert_eq!(
        done.iter().map(|c| (c.id, c.status)).collect::<Vec<_>>(),
        [(0, Status::Success), (1, Status::Success), (2, Status::Success), (3, Status::Success),]
    );
    assert_eq!(cq.poll_one().unwrap_err().errno(), libc::EOVERFLOW);
    // Other queue pairs continue to work.
    spared.write_bytes(1, b"x", to.remote(0)).post().unwrap();
    assert_eq!(other_cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
}

#[test]
fn a_completion_tells_when_from_whom_and_with_what() {
    let (a, b) = pair();
    let inbox = b.region(64);
    b.qp.recv(1, &[inbox.slice(..)]).unwrap();
    b.qp.recv(2, &[]).unwrap();
    let before = b.device.now();
    a.qp.send_bytes(3, b"hello").imm(0xdead_beef).solicited().post().unwrap();
    a.qp.write_bytes(4, b"written", inbox.remote(0)).imm(5).post().unwrap();
    let (first, second) = (b.ok(), b.ok());
    let after = b.device.now();
    assert_eq!((first.op, first.byte_len, first.solicited), (CompletionOp::Recv, 5, true));
    assert_eq!(first.imm, Some(Immediate::Data(0xdead_beef)));
    assert_eq!((second.op, second.byte_len), (CompletionOp::RecvRdmaWithImm, 7));
    assert_eq!(second.imm, Some(Immediate::Data(5)));
    for done in [first, second] {
        assert_eq!((done.qpn, done.src_qp, done.grh), (b.qp.qpn(), a.qp.qpn(), false));
        assert!(before <= done.timestamp && done.timestamp <= after);
    }
    assert!(first.timestamp <= second.timestamp);
    let sent = a.ok();
    assert_eq!((sent.op, sent.qpn, sent.src_qp), (CompletionOp::Send, a.qp.qpn(), b.qp.qpn()));
    assert!(before <= sent.timestamp);
}

/// The observer is slow. The completion must not reach the program before the event that explains
/// it.
#[test]
fn an_observer_is_told_why_a_request_failed_before_the_program_is_told_that() {
    let told = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&told);
    let observer = move |event: &Event| {
        if matches!(event, Event::RequestFailed { .. }) {
            thread::sleep(Duration::from_millis(100));
            tells.store(true, Ordering::SeqCst);
        }
    };
    let options = Device::options("lo").address(address()).on_event(Box::new(observer));
    let side = Side::new(options.open().unwrap());
    let (a, b) = (side.pd.qp(&side.cq).build().unwrap(), side.pd.qp(&side.cq).build().unwrap());
    connect_with(&a, &b, &ConnectOptions { rnr_retry: 0, ..without_retries() });
    a.send_bytes(1, b"to nobody").post().unwrap();
    while side.cq.is_empty() {
        thread::yield_now();
    }
    let failed = side.cq.poll_one().unwrap().unwrap();
    assert_eq!(failed.status, Status::RnrRetryExceeded);
    assert!(told.load(Ordering::SeqCst));
}

/// An observer may write to a stopped terminal. The program continues anyway.
#[test]
fn an_observer_that_never_returns_is_waited_for_once() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let observer = move |event: &Event| {
        if matches!(event, Event::RequestFailed { .. }) {
            let _ = held.recv();
        }
    };
    let options = Device::options("lo").address(address()).on_event(Box::new(observer));
    let side = Side::new(options.open().unwrap());
    let (a, b) = (side.pd.qp(&side.cq).build().unwrap(), side.pd.qp(&side.cq).build().unwrap());
    connect_with(&a, &b, &ConnectOptions { rnr_retry: 0, ..without_retries() });
    // Waiting for the observer once per request would take longer than the test may.
    (0..100).for_each(|id| a.send_bytes(id, b"to nobody").post().unwrap());
    while side.cq.is_empty() {
        thread::yield_now();
    }
    let start = std::time::Instant::now();
    let failed = (0..100).filter(|_| side.cq.spin_one(TIMEOUT).is_ok()).count();
    let took = start.elapsed();
    drop(release);
    assert_eq!(failed, 100);
    assert!(took < TIMEOUT, "{took:?}");
}
