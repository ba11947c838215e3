use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rxe_core::types::{Qpn, Time};
use rxe_core::wire::{Frame, NetHeader, OpKind, Opcode, Packet, TxBatch, TxLimits};

use super::decide::Decider;
use super::report::FaultCounts;
use super::wrapper::MAX_PACKETS;
use super::*;
use crate::backend::Backend;
use crate::fabric::{FabricPort, Hub};
use crate::testing::{receive_packets, send_all, wait_readable};
use crate::wrappers::pcap::Direction;

const ALL: FaultAmount = FaultAmount::ALL;
const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

fn net() -> NetHeader {
    let [a, b]: [IpAddr; 2] = [A, B].map(|a| a.parse().unwrap());
    NetHeader::outgoing(a, b, 4791)
}

fn ports() -> (FabricPort, FabricPort) {
    let hub = Hub::new(1, &[]);
    let port = |ip: &str| hub.port(&[ip.parse().unwrap()]).unwrap();
    (port(A), port(B))
}

/// Returns a packet with this opcode: a BTH, and zeros for the other headers and the ICRC.
fn packet(opcode: Opcode, dest_qp: u32, psn: u32) -> Vec<u8> {
    let mut bytes = vec![0; opcode.info().unwrap().header_len + 4];
    bytes[0] = opcode.0;
    bytes[4..8].copy_from_slice(&dest_qp.to_be_bytes());
    bytes[8..12].copy_from_slice(&(psn & 0xff_ffff).to_be_bytes());
    bytes
}

fn send(dest_qp: u32, psn: u32) -> Vec<u8> {
    packet(Opcode::RC_SEND_ONLY, dest_qp, psn)
}

/// Passes the packets to a decider in order, and returns the indices of those that the rules hit.
fn hits(seed: u64, rules: &[FaultRule], packets: impl IntoIterator<Item = Vec<u8>>) -> Vec<usize> {
    let counts = Arc::new(FaultCounts::new(rules.len()));
    let mut decider = Decider::new(seed, rules.into(), Direction::Outbound, counts);
    let mut net = net();
    net.tos = 2;
    let hit = |bytes: Vec<u8>| !decider.decide(&net, &bytes).hits.is_empty();
    let all: Vec<bool> = packets.into_iter().map(hit).collect();
    (0..).zip(all).filter(|(_, hit)| *hit).map(|(i, _)| i).collect()
}

fn rule(amount: FaultAmount) -> FaultRule {
    FaultRule::new(FaultAction::Drop, amount)
}

fn percent(percent: u32) -> FaultRule {
    rule(FaultAmount::percent(percent))
}

#[test]
fn a_share_is_hit() {
    for (share, expected) in
        [(0, 0..=0), (1, 430..=570), (50, 24_600..=25_400), (100, 50_000..=50_000)]
    {
        let count = hits(7, &[percent(share)], (0..50_000).map(|psn| send(9, psn))).len();
        assert!(expected.contains(&count), "{share} %: {count}");
    }
}

#[test]
fn a_seed_repeats_its_decisions_whatever_the_numbers_are_and_another_makes_others() {
    let run = |seed, qpn: u32, first: u32| {
        hits(seed, &[percent(10)], (0..1000).map(|i| send(qpn, first.wrapping_add(i))))
    };
    let first = run(1, 0x11, 5);
    assert_eq!(first, run(1, 0xabcdef, 0xff_ff00), "another QP, and PSNs that wrap");
    assert_ne!(first, run(2, 0x11, 5));
}

#[test]
fn other_flows_and_repetitions_change_nothing() {
    let alone = hits(1, &[percent(10)], (0..500).map(|psn| send(0x11, psn)));
    // The same packets, mixed with those of another queue pair and with responses.
    let mixed = (0..500).flat_map(|psn| {
        [send(0x11, psn), send(0x22, psn), packet(Opcode::RC_ACKNOWLEDGE, 0x11, psn)]
    });
    let mixed: Vec<_> = hits(1, &[percent(10)], mixed);
    let of = |which| mixed.iter().filter(move |i| *i % 3 == which).map(|i| i / 3);
    assert_eq!(of(0).collect::<Vec<_>>(), alone);
    let others = [of(1).collect::<Vec<_>>(), of(2).collect()];
    assert!(others.iter().all(|other| *other != alone) && others[0] != others[1]);
    // The sender retransmits from 50: packets that are sent for the first time meet the same fate.
    let back = (0..100).chain(50..500).map(|psn| send(0x11, psn));
    let back = hits(1, &[percent(10)], back);
    let anew: Vec<_> = back.iter().filter(|i| **i >= 150).map(|i| i - 50).collect();
    assert_eq!(anew, alone.iter().copied().filter(|i| *i >= 100).collect::<Vec<_>>());
    let again: Vec<_> = back.iter().filter(|i| (100..150).contains(*i)).map(|i| i - 50).collect();
    let then: Vec<_> = alone.iter().copied().filter(|i| (50..100).contains(i)).collect();
    assert_ne!(again, then, "a repetition is another packet");
}

#[test]
fn a_packet_that_is_lost_is_not_lost_for_ever() {
    let hit = hits(3, &[percent(50)], (0..64).map(|_| send(0x11, 77)));
    assert!((16..48).contains(&hit.len()), "{hit:?}");
}

#[test]
fn counts_begin_after_a_number_of_packets_of_each_flow() {
    let rules = [FaultRule { after: 3, ..rule(FaultAmount::First(2)) }];
    let two = (0..20).map(|i| send(if i % 2 == 0 { 0x11 } else { 0x22 }, i / 2));
    assert_eq!(hits(1, &rules, two), [6, 7, 8, 9]);
}

#[test]
fn bursts_keep_the_share() {
    let rules = [FaultRule { burst: 5, ..percent(10) }];
    let hit = hits(1, &rules, (0..50_000).map(|psn| send(9, psn)));
    assert!((4500..5500).contains(&hit.len()), "{}", hit.len());
    let begins = hit.iter().zip([&usize::MAX].into_iter().chain(&hit));
    let runs = begins.filter(|(at, before)| before.wrapping_add(1) != **at).count();
    assert!(hit.len() >= 5 * runs && runs > 500, "{runs} bursts, {}", hit.len());
}

#[test]
fn only_what_the_filter_fits_is_hit() {
    let only = |only: PacketFilter| {
        let packets = (0..4).flat_map(|i| {
            [
                send(0x11, 10 + i),
                packet(Opcode::UC_SEND_ONLY, 0x22, 20 + i),
                packet(Opcode::RC_ACKNOWLEDGE, 0x11, 10 + i),
            ]
        });
        // QP1 does not count as a queue pair, and garbage is no packet.
        let all = [send(1, 0), b"garbage".to_vec()].into_iter().chain(packets);
        hits(1, &[FaultRule { only, ..rule(ALL) }], all)
    };
    let filter = PacketFilter::default;
    assert_eq!(only(filter()).len(), 14);
    let qps = |qp| PacketFilter { qps: vec![qp], ..filter() };
    assert_eq!(only(qps(QpFilter::Number(Qpn::from_wire(0x22)))), [3, 6, 9, 12]);
    assert_eq!(only(qps(QpFilter::Nth(2))), [3, 6, 9, 12]);
    assert_eq!(only(qps(QpFilter::Nth(3))), [0usize; 0]);
    assert_eq!(only(qps(QpFilter::Number(Qpn::from_wire(1)))), [0]);
    let opcodes = |opcodes| PacketFilter { opcodes, ..filter() };
    let acks = OpcodeFilter::Kind(OpKind::Acknowledge);
    assert_eq!(only(opcodes(vec![acks])), [4, 7, 10, 13]);
    let sends = OpcodeFilter::Is(Opcode::RC_SEND_ONLY);
    assert_eq!(only(opcodes(vec![acks, sends])).len(), 9);
    let psns = |relative, first, last| PacketFilter {
        psns: vec![PsnFilter { relative, first, last }],
        ..filter()
    };
    assert_eq!(only(psns(false, 12, 20)), [3, 8, 10, 11, 13]);
    assert_eq!(only(psns(true, 3, 3)), [11, 12, 13]);
    let destinations =
        |ip: &str| PacketFilter { destinations: vec![ip.parse().unwrap()], ..filter() };
    assert_eq!((only(destinations(B)).len(), only(destinations(A)).len()), (14, 0));
    // Both filters must match.
    let both = PacketFilter { psns: psns(true, 3, 3).psns, ..opcodes(vec![acks]) };
    assert_eq!(only(both), [13]);
}

#[test]
fn only_ecn_capable_packets_are_marked() {
    let rules = [FaultRule::new(FaultAction::MarkEcn, ALL)];
    assert_eq!(hits(1, &rules, [send(9, 0)]).len(), 1);
    let counts = Arc::new(FaultCounts::new(1));
    let mut decider = Decider::new(1, rules.into(), Direction::Outbound, Arc::clone(&counts));
    assert_eq!(decider.decide(&net(), &send(9, 0)).hits, []);
}

/// Sends `count` packets over a link with these rules at the sender. Returns the PSNs that arrive
/// and the number of packets hit.
fn through(rules: &[FaultRule], count: u32) -> (Vec<u32>, u64) {
    let (a, mut b) = ports();
    let mut a = Fault::new(a, 7, rules).unwrap();
    assert_eq!(a.capabilities().tx.burst_segments, 1);
    let mut batch = TxBatch::new(a.capabilities().tx);
    let mut net = net();
    net.tos = 2;
    for psn in 0..count {
        let bytes = send(9, psn);
        batch.push(net, bytes.len(), |_, buf| buf.extend(bytes));
    }
    send_all(&mut a, &mut batch);
    let report = a.report();
    let tally = |action| {
        let found = report.tallies().find(|(rule, _)| rule.action == action);
        found.map_or(0, |(_, [_, out])| usize::try_from(out.hit).unwrap())
    };
    let left = count as usize - tally(FaultAction::Drop) + tally(FaultAction::Duplicate);
    while usize::try_from(a.inner.counters().tx_packets).unwrap() < left {
        wait_readable(&a);
        a.receive(1, &mut |_| {}).unwrap();
    }
    let packets = receive_packets(&mut b, left);
    let psn = |(_, bytes): &(NetHeader, Vec<u8>)| Packet::parse(bytes).unwrap().psn().value();
    (packets.iter().map(psn).collect(), a.counters().injected)
}

#[test]
fn what_leaves_is_lost_doubled_and_overtaken() {
    assert_eq!(through(&[rule(FaultAmount::First(2))], 4), (vec![2, 3], 2));
    let double = FaultRule::new(FaultAction::Duplicate, FaultAmount::First(1));
    assert_eq!(through(&[double], 3), (vec![0, 0, 1, 2], 1));
    let late = FaultRule::new(FaultAction::Reorder { by: 2 }, FaultAmount::First(1));
    assert_eq!(through(&[late], 5), (vec![1, 2, 0, 3, 4], 1));
    let last = FaultRule { after: 2, ..FaultRule::new(FaultAction::Reorder { by: 2 }, ALL) };
    assert_eq!(through(&[last], 3), (vec![0, 1, 2], 1), "nothing overtakes the last packet");
}

#[test]
fn what_arrives_is_late_and_in_order() {
    let (mut a, b) = ports();
    let (base, jitter) = (Duration::from_millis(2), Duration::from_millis(1));
    let rules = [
        FaultRule::new(FaultAction::Delay { base, jitter }, ALL),
        FaultRule::new(FaultAction::MarkEcn, ALL),
        FaultRule { direction: Some(Direction::Outbound), ..rule(ALL) },
    ];
    let mut b = Fault::new(b, 7, &rules).unwrap();
    let mut batch = TxBatch::new(TxLimits::default());
    for psn in 0..100 {
        let bytes = send(9, psn);
        let net = NetHeader { tos: 1, ..net() };
        batch.push(net, bytes.len(), |_, buf| buf.extend(bytes));
    }
    let start = Instant::now();
    send_all(&mut a, &mut batch);
    let got = receive_packets(&mut b, 100);
    assert!(start.elapsed() >= base - jitter);
    let psns = got.iter().map(|(_, bytes)| Packet::parse(bytes).unwrap().psn().value());
    assert!(psns.eq(0..100));
    assert!(got.iter().all(|(net, _)| net.congestion_experienced()));
    let hit: Vec<_> = b.report().tallies().map(|(_, [inbound, out])| (inbound.hit, out)).collect();
    let none = FaultTally::default();
    assert_eq!(hit, [(100, none), (100, none), (0, none)]);
    assert_eq!(b.counters().rx_packets, 100);
}

#[test]
fn what_is_damaged_fails_its_check() {
    let (mut a, b) = ports();
    let mut b = Fault::new(b, 7, &[FaultRule::new(FaultAction::Corrupt, ALL)]).unwrap();
    let mut batch = TxBatch::new(TxLimits::default());
    for psn in 0..100 {
        let bytes = send(9, psn);
        batch.push(net(), bytes.len(), |_, buf| buf.extend(bytes));
    }
    send_all(&mut a, &mut batch);
    let mut intact = 0;
    while b.report().tallies().next().unwrap().1[0].hit < 100 {
        b.receive(100, &mut |frame| {
            let whole = |bytes| (0..100).any(|psn| send(9, psn) == bytes);
            intact += frame.payloads().filter(|bytes| whole(*bytes)).count();
        })
        .unwrap();
    }
    // Corruption may by chance leave a packet that equals another one.
    assert!(intact < 10, "{intact}");
}

#[test]
fn a_dropped_packet_is_counted_as_lost_alone() {
    let actions = [FaultAction::Duplicate, FaultAction::Corrupt, FaultAction::Drop];
    let rules = actions.map(|action| FaultRule::new(action, ALL));
    let mut path = FaultPath::new(1, &rules, Direction::Outbound);
    path.take(Time::ZERO, &Frame::single(net(), &send(9, 0)));
    assert_eq!(path.counters(), PathCounters { sent: 1, lost: 1, ..PathCounters::default() });
    assert_eq!(path.next_delivery(), None);
}

#[test]
fn packets_beyond_a_bound_are_lost() {
    let delay = FaultAction::Delay { base: Duration::from_secs(9), jitter: Duration::ZERO };
    let rules: Arc<[FaultRule]> = [FaultRule::new(delay, ALL)].into();
    let counts = Arc::new(FaultCounts::new(1));
    let mut path =
        FaultPath::with_counts(1, rules, Direction::Outbound, Arc::clone(&counts), MAX_PACKETS);
    let bytes = send(9, 0);
    for _ in 0..70_000 {
        path.take(Time::ZERO, &Frame::single(net(), &bytes));
    }
    assert_eq!(FaultReport::new([].into(), counts).overflowed(), 70_000 - 65_536);
}
