use std::net::IpAddr;
use std::time::Duration;

use rxe_core::types::Time;
use rxe_core::wire::{Frame, IpId, NetHeader, TxBatch, TxLimits, UDP_PORT};

use super::{Fabric, FabricCounters, FabricPort, Hub};
use crate::backend::{Backend, SendStatus};
use crate::host::sharing::Sharing;
use crate::testing::{receive_packets, wait_readable};
use crate::wrappers::fault::{FaultAction, FaultAmount, FaultRule, PathCounters};

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn net() -> NetHeader {
    NetHeader::outgoing(ip("10.0.0.1"), ip("10.0.0.2"), UDP_PORT)
}

/// Returns a batch of `count` packets, each with its number as payload.
fn batch(net: NetHeader, count: u32) -> TxBatch {
    let mut batch = TxBatch::new(TxLimits::default());
    for i in 0..count {
        batch.push(net, 32, |_, buf| {
            buf.extend_from_slice(&i.to_be_bytes());
            buf.resize(buf.len() + 28, 0);
        });
    }
    batch
}

type Arrivals = Vec<(NetHeader, Vec<u8>)>;

fn run(seed: u64, rules: &[FaultRule], count: u32) -> (Arrivals, FabricCounters) {
    let mut fabric = Fabric::new(seed, rules);
    let mut got = Vec::new();
    for step in 0..10 {
        let now = Time::from_nanos(step * 1000);
        fabric.send(now, &mut batch(net(), count / 10));
        fabric.deliver(now, |n, b| got.push((n, b.to_vec())));
    }
    while let Some(at) = fabric.next_delivery() {
        fabric.deliver(at, |n, b| got.push((n, b.to_vec())));
    }
    (got, fabric.counters())
}

/// Returns a rule that delays packets by up to twice `base`.
fn up_to_twice(base: Duration) -> FaultRule {
    FaultRule::new(FaultAction::Delay { base, jitter: base }, FaultAmount::ALL)
}

fn wild() -> Vec<FaultRule> {
    let actions = [
        FaultAction::Drop,
        FaultAction::Duplicate,
        FaultAction::Reorder { by: 3 },
        FaultAction::Corrupt,
    ];
    let tenth = actions.map(|action| FaultRule::new(action, FaultAmount::percent(10)));
    tenth.into_iter().chain([up_to_twice(Duration::from_micros(10))]).collect()
}

#[test]
fn a_perfect_network_keeps_order_ids_and_bytes() {
    let mut fabric = Fabric::new(1, &[]);
    let mut sent = batch(net(), 100);
    fabric.send(Time::ZERO, &mut sent);
    assert!(sent.is_empty());
    let mut got = Vec::new();
    fabric.deliver(Time::ZERO, |n, b| got.push((n.id, b[..4].to_vec())));
    let expected: Vec<_> = (0..100u32)
        .map(|i| {
            // A burst has 64 packets; IPv4 IDs count from 0 in each.
            let id = IpId::Known { id: (i % 64) as u16, flags: 0x4000 };
            (id, i.to_be_bytes().to_vec())
        })
        .collect();
    assert_eq!(got, expected);
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_does_not() {
    assert_eq!(run(7, &wild(), 1000), run(7, &wild(), 1000));
    assert_ne!(run(7, &wild(), 1000), run(8, &wild(), 1000));
}

#[test]
fn each_fault_happens_about_as_often_as_asked() {
    let (got, c) = run(3, &wild(), 10_000);
    assert_eq!(c.path.sent, 10_000);
    let PathCounters { lost, duplicated, reordered, corrupted, .. } = c.path;
    for n in [lost, duplicated, reordered, corrupted] {
        assert!((800..1200).contains(&n), "{c:?}");
    }
    assert_eq!(got.len() as u64, c.delivered);
    // A packet that was truncated to nothing does not arrive.
    let arrived = c.path.sent - lost + duplicated;
    assert!(c.delivered <= arrived && c.delivered + 50 > arrived, "{c:?}");
}

#[test]
fn delay_alone_does_not_reorder() {
    let mut fabric = Fabric::new(5, &[up_to_twice(Duration::from_micros(500))]);
    for i in 0..200u32 {
        let mut one = TxBatch::new(TxLimits::default());
        one.push(net(), 4, |_, buf| buf.extend_from_slice(&i.to_be_bytes()));
        fabric.send(Time::from_nanos(u64::from(i)), &mut one);
    }
    let mut got = Vec::new();
    let mut last = Time::ZERO;
    while let Some(at) = fabric.next_delivery() {
        assert!(at >= last);
        last = at;
        let delivery = fabric.pop(at).unwrap();
        got.extend(
            delivery.frame().packets().map(|(_, b)| u32::from_be_bytes(b.try_into().unwrap())),
        );
    }
    assert!(got.is_sorted() && got.len() == 200);
    assert!(last > Time::from_nanos(500_000), "some delay happened");
}

#[test]
fn untouched_packets_of_a_burst_stay_one_frame() {
    let mut fabric = Fabric::new(1, &[]);
    fabric.hide_ids(true);
    fabric.merge(true);
    fabric.send(Time::ZERO, &mut batch(net(), 10));
    let delivery = fabric.pop(Time::ZERO).unwrap();
    assert_eq!((delivery.frame().segment, delivery.frame().payload.len()), (32, 320));
    assert_eq!(delivery.frame().net.id, IpId::Hidden);
    let mut fabric = Fabric::new(1, &[]);
    fabric.send(Time::ZERO, &mut batch(net(), 10));
    assert_eq!(fabric.pop(Time::ZERO).unwrap().frame().payload.len(), 32);
}

#[test]
fn a_frame_with_holes_keeps_the_ids_of_the_rest() {
    let mut fabric = Fabric::new(2, &[FaultRule::new(FaultAction::Drop, FaultAmount::percent(30))]);
    fabric.merge(true);
    fabric.send(Time::ZERO, &mut batch(net(), 64));
    let mut lost = 64;
    fabric.deliver(Time::ZERO, |n, b| {
        let number = u32::from_be_bytes(b[..4].try_into().unwrap());
        assert_eq!(n.id, IpId::Known { id: u16::try_from(number).unwrap(), flags: 0x4000 });
        lost -= 1;
    });
    assert!((5..40).contains(&lost), "{lost}");
}

#[test]
fn a_cut_parts_two_addresses_until_it_heals() {
    let mut fabric = Fabric::new(1, &[]);
    fabric.cut(net().dst, net().src);
    fabric.send(Time::ZERO, &mut batch(net(), 3));
    assert_eq!(fabric.next_delivery(), None);
    fabric.heal(net().src, net().dst);
    fabric.send(Time::ZERO, &mut batch(net(), 3));
    assert_eq!(fabric.deliver(Time::ZERO, |_, _| {}), 3);
    assert_eq!(fabric.counters().cut, 3);
}

#[test]
fn ports_of_a_hub_are_backends() {
    let hub = Hub::new(1, &[up_to_twice(Duration::from_micros(500))]);
    let mut a = hub.port(&[net().src]).unwrap();
    let mut b = hub.port(&[net().dst, ip("fe80::2")]).unwrap();
    assert_eq!(a.send(&mut batch(net(), 100)).unwrap(), SendStatus::Done);
    assert_eq!(receive_packets(&mut b, 100).len(), 100);
    assert_eq!(b.receive(10, &mut |_| {}).unwrap(), 0);
    let back = NetHeader::outgoing(net().dst, net().src, UDP_PORT);
    b.send(&mut batch(back, 1)).unwrap();
    wait_readable(&a);
    drop(b);
    a.send(&mut batch(net(), 1)).unwrap();
    assert_eq!(a.counters().tx_unreachable, 1);
}

#[test]
fn a_group_reaches_its_members_the_sender_too() {
    let hub = Hub::new(1, &[]);
    let mut a = hub.port(&[net().src]).unwrap();
    let mut b = hub.port(&[ip("fe80::2"), net().dst]).unwrap();
    let group = ip("239.1.2.3");
    let send = |a: &mut FabricPort| {
        a.send(&mut batch(NetHeader { dst: group, ..net() }, 3)).unwrap();
    };
    send(&mut a);
    assert_eq!(b.receive(10, &mut |_| {}).unwrap(), 0, "not a member yet");
    a.join(group).unwrap();
    b.join(group).unwrap();
    b.join(group).unwrap();
    send(&mut a);
    for port in [&mut a, &mut b] {
        let got = receive_packets(port, 3);
        assert!(got.len() == 3 && got.iter().all(|(net, _)| net.dst == group));
    }
    b.leave(group);
    send(&mut a);
    assert_eq!(b.receive(10, &mut |_| {}).unwrap(), 0);
    assert_eq!(a.counters().tx_unreachable, 0);
    assert!(a.join(ip("ff02::5")).is_err(), "no address of that family");
}

#[test]
fn an_address_that_moves_to_another_port_takes_nothing_from_it_any_more() {
    let hub = Hub::new(1, &[]);
    let mut a = hub.port(&[net().src]).unwrap();
    let mut old = hub.port(&[net().dst]).unwrap();
    let mut new = hub.port(&[net().dst]).unwrap();
    let group = ip("239.1.2.3");
    new.join(group).unwrap();
    a.send(&mut batch(net(), 1)).unwrap();
    assert_eq!(old.receive(10, &mut |_| {}).unwrap(), 0, "it has lost the address");
    assert_eq!(receive_packets(&mut new, 1).len(), 1);
    assert!(old.join(group).is_err(), "it has no address");
    old.leave(group);
    drop(old);
    a.send(&mut batch(NetHeader { dst: group, ..net() }, 1)).unwrap();
    assert_eq!(new.receive(10, &mut |_| {}).unwrap(), 1, "it is still a member");
}

#[test]
fn what_is_corrupted_differs() {
    let mut fabric = Fabric::new(1, &[FaultRule::new(FaultAction::Corrupt, FaultAmount::ALL)]);
    let bytes = [0x5a; 2];
    for _ in 0..1000 {
        fabric.send_frame(Time::ZERO, &Frame::single(net(), &bytes));
    }
    fabric.deliver(Time::ZERO, |_, got| assert_ne!(got, bytes));
}
