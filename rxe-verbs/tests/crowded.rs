//! More queue pairs on a device than one QPN block has numbers. The device takes a further block,
//! and all queue pairs work on every data path, while other devices share the address.

mod common;

use common::*;
use rxe_net::BackendKind;
use rxe_verbs::*;

/// Creates queue pairs until one, which is the last returned, has a number of another block.
fn fill_a_block(side: &Side) -> Vec<QueuePair> {
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
    let block = side.device.qpn_block();
    let mut all = Vec::new();
    loop {
        let qp = side.pd.qp(&side.cq).cap(cap).build().unwrap();
        let beyond = Some(qp.qpn().block()) != block;
        all.push(qp);
        if beyond {
            return all;
        }
    }
}

/// Sends WRITEs and SENDs in both directions.
fn talk(a: &Side, ours: &QueuePair, b: &Side) {
    let theirs = b.pd.qp(&b.cq).build().unwrap();
    // Without retries: a duplicate could arrive after its queue pair is gone, and be counted as
    // dropped.
    connect_without_retries(ours, &theirs);
    let (here, there) = (a.region(10_000), b.region(10_000));
    for (from, to, sender, receiver, own, other) in
        [(a, b, ours, &theirs, &here, &there), (b, a, &theirs, ours, &there, &here)]
    {
        let bytes = pattern(10_000, 9);
        own.write_at(0, &bytes).unwrap();
        other.write_at(0, &[0; 10_000]).unwrap();
        sender.write(1, &[own.slice(..)], other.remote(0)).post().unwrap();
        from.ok();
        assert_eq!(other.to_vec(..).unwrap(), bytes);
        receiver.recv(2, &[other.slice(..5)]).unwrap();
        sender.send(3, &[own.slice(..5)]).post().unwrap();
        assert_eq!((from.ok().id, to.ok().byte_len), (3, 5));
    }
}

fn queue_pairs_of_all_blocks_work(kind: BackendKind, shared_memory: bool) {
    let ip = "127.0.0.1".parse().unwrap();
    let open = || {
        let options = Device::options("lo").address(ip).backend(kind);
        Side::new(options.shared_memory(shared_memory).open().unwrap())
    };
    let (a, b) = (open(), open());
    assert_eq!([&a, &b].map(|side| side.device.qpn_block()), [Some(1), Some(2)]);
    let mut crowd = fill_a_block(&a);
    let of = |qp: &QueuePair| qp.qpn().block();
    assert!(crowd.len() >= 65_000 && a.device.attr().max_qp as usize > crowd.len());
    assert_eq!(of(crowd.last().unwrap()), 3, "the second is taken");
    // A device that is opened later shares the address with both.
    let c = open();
    assert_eq!(c.device.qpn_block(), Some(4));
    for other in [&b, &c] {
        talk(&a, &a.pd.qp(&a.cq).build().unwrap(), other);
        let of_first = crowd.remove(7);
        assert_eq!(of(&of_first), 1);
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..of_first.cap() };
        drop(of_first);
        let again = a.pd.qp(&a.cq).cap(cap).build().unwrap();
        assert_eq!(of(&again), 1, "there is room in the first block again");
        talk(&a, &again, other);
        let beyond = a.pd.qp(&a.cq).cap(cap).build().unwrap();
        assert_eq!(of(&beyond), 3);
        talk(&a, &beyond, other);
        crowd.extend([again, beyond]);
    }
    // The device also reaches its own queue pairs.
    talk(&a, &a.pd.qp(&a.cq).build().unwrap(), &Side::new(a.device.clone()));
    drop(b);
    talk(&c, &c.pd.qp(&c.cq).build().unwrap(), &a);
    let drops = |side: &Side| side.device.counters().drops().map(|(_, n)| n).sum::<u64>();
    assert_eq!((drops(&a), drops(&c)), (0, 0));
}

#[test]
fn queue_pairs_of_all_blocks_work_over_udp() {
    in_namespace("", || queue_pairs_of_all_blocks_work(BackendKind::Udp, false));
}

#[test]
fn queue_pairs_of_all_blocks_work_over_packet() {
    in_namespace("", || queue_pairs_of_all_blocks_work(BackendKind::Packet, false));
}

#[test]
fn queue_pairs_of_all_blocks_work_over_shared_memory() {
    in_namespace("", || queue_pairs_of_all_blocks_work(BackendKind::Udp, true));
}
