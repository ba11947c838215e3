//! Devices with faults: two runs with the same seed lose the same packets, over shared memory and
//! over sockets.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use common::*;
use rxe_core::types::Psn;
use rxe_core::wire::Packet;
use rxe_core::wire::frame::parse_ethernet;
use rxe_lab::capture::{Capture, Direction};
use rxe_verbs::*;

/// The identity of a packet: the name of its opcode, and its distance from the first PSN.
type Name = (String, u32);

/// Counts how often a capture has each packet of a direction. Only packets with payload count, all
/// of which come from the sender.
fn packets(path: &PathBuf, direction: Direction) -> BTreeMap<Name, u32> {
    let capture = Capture::open(path).unwrap();
    let mut first = None;
    let mut seen = BTreeMap::new();
    for captured in capture.frames.iter().filter(|packet| packet.direction == Some(direction)) {
        let (_, datagram) = parse_ethernet(&captured.frame).unwrap();
        let packet = Packet::parse(datagram.payload).unwrap();
        if packet.payload().is_empty() {
            continue;
        }
        let first: Psn = *first.get_or_insert(packet.psn());
        let name = (packet.opcode().name().into(), packet.psn().diff(first).cast_unsigned());
        *seen.entry(name).or_insert(0) += 1;
    }
    seen
}

/// The number of messages, which have two packets each.
const MESSAGES: u32 = 200;

/// Sends messages from a device with this fault to one without. Returns how often each packet was
/// sent and how often it arrived.
fn run(ty: QpType, fault: &str, memory: bool, seed: u64) -> BTreeMap<Name, (u32, u32)> {
    let capture = |side| std::env::temp_dir().join(format!("rxe-faults-{}-{side}", address()));
    let paths = [capture("a"), capture("b")];
    let options =
        |path: &PathBuf| Device::options("lo").address(address()).shared_memory(memory).pcap(path);
    let plan = format!("out: {fault} 5% after 1").parse().unwrap();
    let devices = [options(&paths[0]).faults(seed, plan), options(&paths[1])];
    let [a, b] = devices.map(|options| {
        let device = options.open().unwrap();
        let (pd, cq) = (device.create_pd().unwrap(), device.create_cq(1024).unwrap());
        let cap = QpCap { max_recv_wr: MESSAGES, ..QpCap::default() };
        let qp = pd.qp(&cq).service(ty).cap(cap).build().unwrap();
        Side { device, pd, cq, qp }
    });
    // Without retries: RC loses nothing here, and must not retransmit when a response is late.
    connect_with(&a.qp, &b.qp, &ConnectOptions { mtu: Some(Mtu::M256), ..without_retries() });
    let expected = |device: &Device| {
        let (_, [_, out]) = device.faults().unwrap().report().tallies().next().unwrap();
        if fault == "drop" { out.seen - out.hit } else { out.seen + out.hit }
    };
    let (from, to) = (a.region(512), b.region(512));
    for _ in 0..MESSAGES {
        // With UC, the receive of a lost message serves the next one.
        b.qp.recv(0, &[to.slice(..)]).unwrap();
        a.qp.send(0, &[from.slice(..)]).post().unwrap();
        a.ok();
        if ty == QpType::Rc {
            b.ok();
        }
        // Paced, because a receiver that falls behind would lose packets by itself.
        wait_until("all that was not lost arrives", || {
            b.device.net_counters().rx_packets >= expected(&a.device)
        });
    }
    let expected = expected(&a.device);
    let (rule, [_, out]) = a.device.faults().unwrap().report().tallies().next().unwrap();
    assert_eq!(rule.after, 1);
    assert!(a.device.net_counters().injected >= out.hit);
    drop((a, b, from, to));
    let left = packets(&paths[0], Direction::Outbound);
    let arrived = packets(&paths[1], Direction::Inbound);
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let packets = left.into_iter().map(|(name, sent)| {
        let arrived = arrived.get(&name).copied().unwrap_or(0);
        (name, (sent, arrived))
    });
    let packets: BTreeMap<_, _> = packets.collect();
    assert_eq!(packets.values().map(|(_, arrived)| u64::from(*arrived)).sum::<u64>(), expected);
    packets
}

/// Returns the packets that arrived more often in one of two runs. Only packets sent equally often
/// in both count, because RC's retransmissions depend on time.
fn differences(
    first: &BTreeMap<Name, (u32, u32)>,
    other: &BTreeMap<Name, (u32, u32)>,
) -> Vec<Name> {
    let both = || first.iter().filter_map(|(name, a)| Some((name, a, other.get(name)?)));
    let as_often = both().filter(|(_, a, b)| a.0 == b.0);
    assert!(as_often.clone().count() > 300, "{first:?} {other:?}");
    as_often.filter(|(_, a, b)| a.1 != b.1).map(|(name, ..)| name.clone()).collect()
}

#[test]
fn two_runs_with_one_seed_do_the_same_to_the_same_packets() {
    // RC is not tested with `drop`: it would retransmit, and packets would be sent more often.
    for (ty, fault) in [(QpType::Uc, "drop"), (QpType::Rc, "dup")] {
        let first = run(ty, fault, true, 1);
        let hit: Vec<_> = first.iter().filter(|(_, (sent, came))| sent != came).collect();
        assert!((8..60).contains(&hit.len()), "5 % of 400: {hit:?}");
        for kind in ["SEND_FIRST", "SEND_LAST"] {
            assert!(hit.iter().any(|((name, _), _)| name.ends_with(kind)), "{hit:?}");
        }
        assert_eq!(differences(&first, &run(ty, fault, true, 1)), [], "{ty:?}, again");
        assert_eq!(differences(&first, &run(ty, fault, false, 1)), [], "{ty:?}, over sockets");
        assert_ne!(differences(&first, &run(ty, fault, true, 2)), [], "{ty:?}, another seed");
    }
}

#[test]
fn what_is_marked_over_shared_memory_is_answered_with_a_notification() {
    let plan = "in: ecn".parse().unwrap();
    let b = Device::options("lo").address(address()).faults(1, plan).open().unwrap();
    let (a, b) = (Side::new(open(address())), Side::new(b));
    connect(&a.qp, &b.qp);
    let (from, to) = (a.region(100_000), b.region(100_000));
    a.qp.write(1, &[from.slice(..)], to.remote(0)).post().unwrap();
    a.ok();
    let (_, [inbound, outbound]) = b.device.faults().unwrap().report().tallies().next().unwrap();
    assert!(inbound.hit > 0 && inbound.hit == inbound.seen && outbound.seen == 0);
    assert!(b.device.counters().cnp_sent > 0, "{:?}", b.device.counters());
}

#[test]
fn the_request_that_is_asked_for_fails_and_the_others_are_flushed() {
    for (service, status) in [
        (QpType::Rc, Status::RetryExceeded),
        (QpType::Uc, Status::LocalQpOperation),
        (QpType::Ud, Status::LocalProtection),
    ] {
        let name = match status {
            Status::RetryExceeded => "RETRY_EXC",
            Status::LocalQpOperation => "LOC_QP_OP",
            _ => "LOC_PROT",
        };
        let plan = format!("wc={name}@msg 3").parse().unwrap();
        let device = Device::options("lo").address(address()).faults(1, plan).open().unwrap();
        let side = |device: Device| {
            let (pd, cq) = (device.create_pd().unwrap(), device.create_cq(64).unwrap());
            let qp = pd.qp(&cq).service(service).build().unwrap();
            Side { device, pd, cq, qp }
        };
        let (a, b) = (side(device), side(open(address())));
        let post = |id| match service {
            QpType::Ud => {
                let to = a.pd.create_ah_to(b.device.gids()[0]).unwrap();
                a.qp.send_bytes(id, b"x").unsignaled().to(&to, b.qp.qpn(), Qkey::new(1)).post()
            }
            _ => a.qp.send_bytes(id, b"x").unsignaled().post(),
        };
        match service {
            QpType::Ud => a.qp.activate().unwrap(),
            _ => connect(&a.qp, &b.qp),
        }
        let into = b.region(64);
        for id in 1..=2 {
            if service != QpType::Ud {
                b.qp.recv(id, &[into.slice(..)]).unwrap();
            }
            post(id).unwrap();
        }
        post(3).unwrap();
        // This is the first completion: the requests before are unsignaled and succeed.
        let done = a.done();
        assert_eq!((done.id, done.status), (3, status), "{service:?}");
        let failed = if service == QpType::Rc { QpState::Err } else { QpState::Sqe };
        assert_eq!(a.qp.state(), failed);
        post(4).unwrap();
        let done = a.done();
        assert_eq!((done.id, done.status), (4, Status::WorkRequestFlushed), "{service:?}");
        let lines = a.device.faults().unwrap().lines();
        assert_eq!(lines, [format!("wc={name}@msg 3 hit 1 request")]);
        assert_eq!(a.device.net_counters().injected, 0);
    }
}

#[test]
fn completions_are_held_back_and_the_events_come() {
    let plan = "slow cq 20ms; async=port_up@1ms".parse().unwrap();
    let device = Device::options("lo").address(address()).faults(1, plan).open().unwrap();
    let (a, b) = (Side::new(device), Side::new(open(address())));
    connect(&a.qp, &b.qp);
    let into = b.region(64);
    for id in 0..3 {
        b.qp.recv(id, &[into.slice(..)]).unwrap();
        a.qp.send_bytes(id, b"x").post().unwrap();
    }
    for id in 0..3 {
        // Sleeps for the first two, then polls.
        let done = if id < 2 { a.ok() } else { a.cq.spin_one(TIMEOUT).unwrap() };
        assert_eq!(done.id, id);
        assert!(a.device.now() >= done.timestamp + Duration::from_millis(20));
    }
    async_event(&a.device, AsyncKind::PortActive);
    let lines = a.device.faults().unwrap().lines();
    assert_eq!(
        lines,
        ["slow cq 20ms held back 3 completions", "async=PORT_ACTIVE@1ms came 1 time"]
    );
}

/// This must hold even on a host that is late for all events.
#[test]
fn events_come_in_the_order_of_their_times() {
    const KINDS: [(&str, AsyncKind); 3] = [
        ("PORT_ERR", AsyncKind::PortErr),
        ("PORT_ACTIVE", AsyncKind::PortActive),
        ("GID_CHANGE", AsyncKind::GidChange),
    ];
    for round in 0..24 {
        // Events of the same time come in the order in which they are written. The last event of
        // all is written first.
        let mut rest = KINDS;
        rest.swap(round % 3, 2);
        rest.swap(round % 2, 1);
        let faults = rest.iter().map(|(name, _)| format!("async={name}@1us"));
        let plan: Vec<_> =
            ["async=DEVICE_FATAL@2us".to_owned()].into_iter().chain(faults).collect();
        let plan = plan.join("; ").parse().unwrap();
        let device = Device::options("lo").address(address()).faults(1, plan).open().unwrap();
        let mut came = Vec::new();
        while came.last() != Some(&AsyncKind::DeviceFatal) {
            assert!(readable(&device.async_fd(), TIMEOUT), "only {came:?} came");
            came.extend(std::iter::from_fn(|| device.poll_async_event()).map(|event| event.kind));
        }
        came.pop();
        assert_eq!(came, rest.map(|(_, kind)| kind));
    }
}

/// Ends a queue pair with `end` while its completion is held back. The next completion must belong
/// to another queue pair.
#[track_caller]
fn goes_with_its_queue_pair(end: fn(&mut Option<QueuePair>)) {
    let plan = "slow cq 2s".parse().unwrap();
    let device = Device::options("lo").address(address()).faults(1, plan).open().unwrap();
    let (a, b) = (Side::new(device), Side::new(open(address())));
    let into = b.region(64);
    let send = |id, from: &QueuePair, to: &QueuePair| {
        to.recv(id, &[into.slice(..)]).unwrap();
        from.send_bytes(id, b"x").post().unwrap();
    };
    let (mut from, to) = (Some(a.pd.qp(&a.cq).build().unwrap()), b.pd.qp(&b.cq).build().unwrap());
    let ended = from.as_ref().unwrap();
    connect(ended, &to);
    send(1, ended, &to);
    let ended = ended.qpn();
    while a.device.faults().unwrap().lines() != ["slow cq 2s held back 1 completion"] {
        assert!(a.cq.poll_one().unwrap().is_none(), "it is not held back");
    }
    end(&mut from);
    connect(&a.qp, &b.qp);
    send(2, &a.qp, &b.qp);
    let done = a.cq.spin_one(TIMEOUT).unwrap();
    assert_eq!((done.id, done.qpn), (2, a.qp.qpn()), "{ended:?} has ended");
}

#[test]
fn a_completion_that_is_held_back_goes_with_a_destroyed_queue_pair() {
    goes_with_its_queue_pair(|qp| drop(qp.take()));
}

#[test]
fn a_completion_that_is_held_back_goes_with_a_reset() {
    goes_with_its_queue_pair(|qp| qp.as_ref().unwrap().to_reset().unwrap());
}
