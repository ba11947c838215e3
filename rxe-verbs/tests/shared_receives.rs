//! Shared receive queues: which queue pair gets a receive, the limit event, and the last receives.

mod common;

use common::*;
use rxe_verbs::*;

/// A server with a shared receive queue, and a client connected to each of its queue pairs.
struct Shop {
    server: Side,
    client: Side,
    srq: SharedReceiveQueue,
    inbox: MemoryRegion,
    pairs: Vec<(QueuePair, QueuePair)>,
}

const RECEIVE_SIZE: usize = 64;

impl Shop {
    fn new(depth: u32, services: &[QpType]) -> Self {
        let (server, client) = (Side::new(open(address())), Side::new(open(address())));
        let srq = server.pd.create_srq(depth, 2).unwrap();
        let inbox = server.region(RECEIVE_SIZE * depth as usize);
        let pairs = services.iter().map(|&service| {
            let ours = server.pd.qp(&server.cq).service(service).srq(&srq).build().unwrap();
            let theirs = client.pd.qp(&client.cq).service(service).build().unwrap();
            connect(&ours, &theirs);
            (ours, theirs)
        });
        let pairs = pairs.collect();
        Self { server, client, srq, inbox, pairs }
    }

    fn stock(&self, ids: std::ops::Range<u64>) {
        for id in ids {
            let start = usize::try_from(id).unwrap() * RECEIVE_SIZE;
            self.srq.recv(id, &[self.inbox.slice(start..start + RECEIVE_SIZE)]).unwrap();
        }
    }

    fn events(&self) -> Vec<(AsyncKind, Option<Qpn>, Option<u32>)> {
        let device = &self.server.device;
        // Reading the counters waits until the thread that drives the engine is done.
        device.counters();
        let all = std::iter::from_fn(|| device.poll_async_event());
        all.filter(|e| e.kind != AsyncKind::CommEst).map(|e| (e.kind, e.qpn, e.srq)).collect()
    }
}

#[test]
fn any_queue_pair_takes_the_next_receive() {
    let shop = Shop::new(8, &[QpType::Rc, QpType::Uc, QpType::Rc]);
    shop.stock(0..6);
    for round in 0..2u64 {
        for (number, (ours, theirs)) in (0..).zip(&shop.pairs) {
            let text = format!("round {round}, client {number}");
            theirs.send_bytes(1, text.as_bytes()).post().unwrap();
            shop.client.ok();
            let done = shop.server.ok();
            assert_eq!((done.id, done.qpn), (round * 3 + number, ours.qpn()));
            let start = usize::try_from(done.id).unwrap() * RECEIVE_SIZE;
            let got = shop.inbox.to_vec(start..start + done.byte_len as usize).unwrap();
            assert_eq!(got, text.as_bytes());
        }
    }
    assert!(shop.srq.is_empty());
    let own = shop.pairs[0].0.recv(1, &[]).unwrap_err();
    assert!(own.to_string().contains("shared"), "{own}");
}

#[test]
fn the_limit_is_told_once_each_time_it_is_armed() {
    let shop = Shop::new(8, &[QpType::Rc]);
    shop.stock(0..8);
    shop.srq.set_limit(6).unwrap();
    let (_, theirs) = &shop.pairs[0];
    let mut told = Vec::new();
    for _ in 0..5 {
        theirs.send_bytes(1, b"x").post().unwrap();
        shop.client.ok();
        shop.server.ok();
        told.push(shop.events().len());
    }
    assert_eq!(told, [0, 0, 1, 0, 0]);
    assert_eq!(shop.srq.limit(), 0);
    shop.srq.set_limit(8).unwrap();
    theirs.send_bytes(1, b"x").post().unwrap();
    shop.client.ok();
    shop.server.ok();
    let expected = (AsyncKind::SrqLimitReached, None, Some(shop.srq.number()));
    assert_eq!(shop.events(), [expected]);
    assert_eq!(shop.srq.set_limit(9).unwrap_err().errno(), 22);
}

#[test]
fn an_empty_queue_makes_a_reliable_sender_wait() {
    let shop = Shop::new(2, &[QpType::Rc]);
    let (_, theirs) = &shop.pairs[0];
    theirs.send_bytes(1, b"later").post().unwrap();
    // Waits until the peer has been told that no receive is posted.
    while shop.server.device.counters().send_rnr_err == 0 {
        std::thread::yield_now();
    }
    shop.stock(0..1);
    assert_eq!(shop.server.ok().byte_len, 5);
    shop.client.ok();
}

#[test]
fn a_failed_queue_pair_leaves_the_shared_receives_to_the_others() {
    let shop = Shop::new(4, &[QpType::Rc, QpType::Rc]);
    shop.stock(0..2);
    let (first, second) = (&shop.pairs[0], &shop.pairs[1]);
    first.0.to_error().unwrap();
    let expected = (AsyncKind::QpLastWqeReached, Some(first.0.qpn()), None);
    assert_eq!(shop.events(), [expected]);
    assert_eq!(shop.server.cq.poll_one().unwrap(), None, "nothing is flushed");
    second.1.send_bytes(1, b"still here").post().unwrap();
    assert_eq!(shop.server.ok().id, 0);
}

#[test]
fn sizes_out_of_range_and_foreign_queues_are_refused() {
    let (a, b) = (Side::new(open(address())), Side::new(open(address())));
    for (max_wr, max_sge) in [(0, 1), (1 << 21, 1), (1, 33)] {
        assert_eq!(a.pd.create_srq(max_wr, max_sge).unwrap_err().errno(), 22);
    }
    let srq = a.pd.create_srq(1, 1).unwrap();
    srq.recv(1, &[]).unwrap();
    assert_eq!(srq.recv(2, &[]).unwrap_err().errno(), 12, "full");
    let mr = a.region(8);
    assert_eq!(srq.recv(2, &[mr.slice(..4), mr.slice(4..)]).unwrap_err().errno(), 22);
    assert!(b.pd.qp(&b.cq).srq(&srq).build().is_err());
    let qp = a.pd.qp(&a.cq).srq(&srq).build().unwrap();
    assert_eq!(srq.users(), 1);
    assert_eq!(qp.srq().unwrap().number(), srq.number());
    assert_eq!(srq.close().unwrap_err().errno(), 16, "in use");
}

#[test]
fn a_shared_queue_changes_size_while_it_is_used() {
    let shop = Shop::new(8, &[QpType::Rc]);
    shop.srq.resize(2).unwrap();
    shop.stock(0..2);
    assert_eq!(shop.srq.recv(2, &[]).unwrap_err().errno(), libc::ENOMEM);
    assert_eq!(shop.srq.resize(1).unwrap_err().errno(), libc::EINVAL, "two are posted");
    shop.srq.resize(6).unwrap();
    assert_eq!(shop.srq.depth(), 6);
    shop.stock(2..6);
    let (_, theirs) = &shop.pairs[0];
    for id in 0..6 {
        theirs.send_bytes(id, b"x").post().unwrap();
        shop.client.ok();
        assert_eq!(shop.server.ok().id, id);
    }
    shop.srq.set_limit(3).unwrap();
    assert_eq!(shop.srq.resize(2).unwrap_err().errno(), libc::EINVAL, "below its limit");
}
