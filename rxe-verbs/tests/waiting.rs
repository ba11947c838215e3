//! All ways to wait for completions.

mod common;

use std::thread;
use std::time::Duration;

use common::*;
use rxe_verbs::*;

#[test]
fn a_wait_ends_when_another_thread_s_request_completes() {
    let (a, b) = pair();
    let to = b.region(8);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| a.ok().id);
        thread::sleep(Duration::from_millis(50));
        a.qp.write_bytes(7, b"x", to.remote(0)).post().unwrap();
        assert_eq!(waiter.join().unwrap(), 7);
    });
}

#[test]
fn many_threads_wait_on_queues_of_one_device() {
    let (a, b) = (open(address()), open(address()));
    let sides: Vec<_> = (0..8).map(|_| (Side::new(a.clone()), Side::new(b.clone()))).collect();
    let to = sides[0].1.region(8);
    thread::scope(|scope| {
        for (a, b) in &sides {
            connect(&a.qp, &b.qp);
            let memory = b.region(64);
            scope.spawn(move || {
                for i in 0..200 {
                    b.qp.recv(i, &[memory.slice(..)]).unwrap();
                    assert_eq!(b.ok().id, i);
                    b.qp.send_bytes(i, b"pong").unsignaled().post().unwrap();
                    // A signaled send now and then, so that the send queue empties.
                    if i % 50 == 49 {
                        b.qp.send_bytes(i, b"").post().unwrap();
                        b.ok();
                    }
                }
            });
            scope.spawn(move || {
                let memory = a.region(64);
                for i in 0..200 {
                    a.qp.recv(i, &[memory.slice(..)]).unwrap();
                    a.qp.send_bytes(i, b"ping").unsignaled().post().unwrap();
                    assert_eq!(a.ok().op, CompletionOp::Recv);
                    if i % 50 == 49 {
                        a.qp.recv(i, &[memory.slice(..)]).unwrap();
                        assert_eq!(a.ok().byte_len, 0);
                        a.qp.write(i, &[], Remote { addr: 0, rkey: Key::new(0) }).post().unwrap();
                        a.ok();
                    }
                }
            });
        }
    });
    assert_eq!(to.to_vec(..).unwrap(), [0; 8]);
}

#[test]
fn a_sleeping_program_serves_its_peer() {
    let (a, b) = pair();
    let (mine, theirs) = (a.region(1 << 20), b.region(1 << 20));
    theirs.write_at(0, &pattern(1 << 20, 9)).unwrap();
    // `b`'s program polls for a while, so that its driver yields to it, and then stops.
    for _ in 0..10_000 {
        assert_eq!(b.cq.poll_one().unwrap(), None);
    }
    a.qp.read(1, &[mine.slice(..)], theirs.remote(0)).post().unwrap();
    a.ok();
    assert_eq!(mine.to_vec(..).unwrap(), pattern(1 << 20, 9));
}

#[test]
fn both_sides_may_spin() {
    let (a, b) = pair();
    let (x, y) = (a.region(8), b.region(8));
    thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..500u64 {
                b.qp.recv(i, &[y.slice(..)]).unwrap();
                assert_eq!(b.cq.spin_one(TIMEOUT).unwrap().id, i);
                b.qp.send_bytes(i, &i.to_ne_bytes()).post().unwrap();
                assert_eq!(b.cq.spin_one(TIMEOUT).unwrap().op, CompletionOp::Send);
            }
        });
        for i in 0..500u64 {
            a.qp.recv(i, &[x.slice(..)]).unwrap();
            a.qp.send_bytes(i, b"ping").post().unwrap();
            let ops = [a.cq.spin_one(TIMEOUT).unwrap().op, a.cq.spin_one(TIMEOUT).unwrap().op];
            assert!(ops.contains(&CompletionOp::Send) && ops.contains(&CompletionOp::Recv));
            assert_eq!(x.load_u64(0).unwrap(), i);
        }
    });
}

#[test]
fn a_channel_s_descriptor_tells_of_an_armed_queue_once() {
    let (a, b) = (Side::new(open(address())), open(address()));
    let pd = b.create_pd().unwrap();
    let channel = b.create_channel().unwrap();
    let cq = b.create_cq_on(16, &channel).unwrap();
    let qp = pd.qp(&cq).build().unwrap();
    connect(&a.qp, &qp);
    let to = pd.register(64, Access::LOCAL_WRITE).unwrap();
    for i in 0..4 {
        qp.recv(i, &[to.slice(..)]).unwrap();
    }
    assert!(channel.get_event(Some(Duration::ZERO)).unwrap().is_none());

    cq.arm(false).unwrap();
    a.qp.send_bytes(0, b"one").post().unwrap();
    assert!(readable(&channel, TIMEOUT));
    let event = channel.get_event(None).unwrap().unwrap();
    assert_eq!(event.id(), cq.id());
    assert!(!readable(&channel, Duration::ZERO));
    assert_eq!(cq.poll_one().unwrap().unwrap().id, 0);

    // Not armed: no event.
    a.qp.send_bytes(1, b"two").post().unwrap();
    assert_eq!(cq.wait_one(TIMEOUT).unwrap().id, 1);
    assert!(!readable(&channel, Duration::ZERO));

    // Armed for solicited completions: the first gives no event, the second does.
    cq.arm(true).unwrap();
    a.qp.send_bytes(2, b"quiet").post().unwrap();
    (0..3).for_each(|_| {
        a.ok();
    });
    assert!(!readable(&channel, Duration::ZERO));
    a.qp.send_bytes(3, b"loud").solicited().post().unwrap();
    assert!(channel.get_event(Some(TIMEOUT)).unwrap().is_some());
    assert_eq!(cq.poll(10, drop).unwrap(), 2);
}

#[test]
fn a_wait_that_nothing_ends_times_out() {
    let side = Side::new(open(address()));
    let error = side.cq.wait_one(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }));
    let error = side.cq.spin_one(Duration::from_millis(5)).unwrap_err();
    assert!(error.to_string().starts_with("no completion within 5ms"), "{error}");
}

#[test]
fn a_program_that_polls_once_and_then_does_nothing_has_acknowledged() {
    let (a, b) = (Side::new(open(address())), Side::new(open(address())));
    connect_without_retries(&a.qp, &b.qp);
    let memory = b.region(8);
    for round in 0..20 {
        b.qp.recv(round, &[memory.slice(..)]).unwrap();
        a.qp.send_bytes(round, b"x").post().unwrap();
        assert_eq!(b.cq.spin_one(TIMEOUT).unwrap().id, round);
        // From here on only `b`'s driver serves `b`.
        assert_eq!(a.ok().id, round);
    }
}

#[test]
fn a_queue_pair_that_ends_right_after_a_message_has_acknowledged_it() {
    for round in 0..20 {
        let (a, b) = (Side::new(open(address())), Side::new(open(address())));
        connect_without_retries(&a.qp, &b.qp);
        let memory = b.region(8);
        b.qp.recv(round, &[memory.slice(..)]).unwrap();
        a.qp.send_bytes(round, b"x").post().unwrap();
        assert_eq!(b.cq.spin_one(TIMEOUT).unwrap().id, round);
        match round % 3 {
            0 => drop(b.qp),
            1 => b.qp.to_reset().unwrap(),
            _ => drop(b),
        }
        assert_eq!(a.ok().id, round);
    }
}
