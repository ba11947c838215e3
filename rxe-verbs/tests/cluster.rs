//! Many hosts in one process, in virtual time.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::in_namespace;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rxe_verbs::cluster::{Cluster, Host, HostOptions};
use rxe_verbs::cm::{CmEventKind, ConnParam, EventChannel, PortSpace};
use rxe_verbs::*;

/// One end of a connection.
struct End {
    host: Host,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

const MEMORY: usize = 1 << 20;

fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

fn end(host: Host) -> End {
    let (pd, cq) = (host.create_pd().unwrap(), host.create_cq(256).unwrap());
    let qp = pd.qp(&cq).build().unwrap();
    let memory = pd.register(MEMORY, access()).unwrap();
    End { host, pd, cq, qp, memory }
}

fn connect(a: &End, b: &End) {
    a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
    b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
}

fn pair(cluster: &mut Cluster) -> [End; 2] {
    let [a, b] = [(); 2].map(|()| end(cluster.add_host().unwrap()));
    connect(&a, &b);
    [a, b]
}

const LONG: Duration = Duration::from_secs(100);

/// Runs a connection with faults of all kinds. Returns the time, the fingerprint and the
/// completions.
fn wild(seed: u64) -> (Duration, u64, Vec<(u64, u64)>) {
    let mut cluster = Cluster::new(seed);
    let [a, b] = pair(&mut cluster);
    let faults = "drop 5%; dup 5%; reorder 5%; corrupt 5%; delay 3us±2us";
    cluster.network().set_faults(&faults.parse().unwrap()).unwrap();
    for id in 0..20 {
        b.qp.recv(id, &[b.memory.slice(..)]).unwrap();
        a.qp.send(id, &[a.memory.slice(..20_000)]).post().unwrap();
    }
    let mut done = Vec::new();
    for _ in 0..20 {
        for cq in [&a.cq, &b.cq] {
            let one = cq.wait_one(LONG).unwrap();
            assert_eq!(one.status, Status::Success);
            done.push((one.id, one.timestamp.as_nanos()));
        }
    }
    (cluster.now(), cluster.fingerprint(), done)
}

#[test]
fn a_run_follows_from_its_seed() {
    for seed in 0..10 {
        assert_eq!(wild(seed), wild(seed));
    }
    assert_ne!(wild(1), wild(2));
}

#[test]
fn time_is_virtual() {
    let mut cluster = Cluster::new(1);
    let [a, b] = pair(&mut cluster);
    let (one, other) = (a.host.id(), b.host.id());
    cluster.network().partition(&[one], &[other]);
    a.qp.send_bytes(1, b"lost").post().unwrap();
    // No completion comes within this time.
    let waited = a.cq.wait_one(Duration::from_millis(60));
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    assert_eq!(cluster.now(), Duration::from_millis(60));
    // The request times out 8 times after 67 ms each.
    let done = a.cq.wait_one(LONG).unwrap();
    assert_eq!(done.status, Status::RetryExceeded);
    let expected = Duration::from_millis(400)..Duration::from_secs(3);
    assert!(expected.contains(&cluster.now()), "{:?}", cluster.now());
    assert_eq!(a.host.now(), Time::ZERO + cluster.now());
    // No event is left, so even an endless wait returns.
    assert!(matches!(a.cq.wait_one(Duration::MAX), Err(Error::TimedOut { .. })));
}

#[test]
fn a_busy_wait_ends_too() {
    let mut cluster = Cluster::new(1);
    let [a, b] = pair(&mut cluster);
    assert!(a.cq.spin_one(Duration::from_secs(1)).is_err());
    // A ping-pong of WRITEs, without receives.
    for round in 1..100u64 {
        a.qp.write_bytes(round, &round.to_ne_bytes(), b.memory.remote(0)).post().unwrap();
        assert_eq!(a.cq.spin_one(LONG).unwrap().status, Status::Success);
        assert_eq!(b.memory.load_u64(0).unwrap(), round);
        b.qp.write_bytes(round, &round.to_ne_bytes(), a.memory.remote(8)).post().unwrap();
        assert_eq!(b.cq.spin_one(LONG).unwrap().status, Status::Success);
    }
    assert!(cluster.now() < Duration::from_millis(1002), "{:?}", cluster.now());
}

#[test]
fn a_long_message_takes_the_time_that_its_link_needs() {
    let mut cluster = Cluster::new(1);
    let [a, b] = pair(&mut cluster);
    a.memory.write_at(MEMORY - 1, &[7]).unwrap();
    a.qp.write(1, &[a.memory.slice(..)], b.memory.remote(0)).post().unwrap();
    assert_eq!(a.cq.wait_one(LONG).unwrap().status, Status::Success);
    assert_eq!(b.memory.to_vec(MEMORY - 1..).unwrap(), [7]);
    // The time to send 1 MiB at 10 Gbit/s, with up to a quarter more for headers.
    let least = Duration::from_nanos(MEMORY as u64 * 8 / 10);
    assert!((least..least * 5 / 4).contains(&cluster.now()), "{:?}", cluster.now());
    assert_eq!(cluster.network().counters().overflowed, 0);
}

#[test]
fn a_partition_ends_and_what_was_lost_is_sent_again() {
    let mut cluster = Cluster::new(1);
    let [a, b] = pair(&mut cluster);
    let (one, other) = (a.host.id(), b.host.id());
    // Only responses are lost: the WRITE is executed but does not complete.
    cluster.network().cut_one_way(&[other], &[one]);
    cluster.after(Duration::from_millis(50), |network| network.heal());
    a.qp.write_bytes(1, b"x", b.memory.remote(0)).post().unwrap();
    cluster.run_for(Duration::from_millis(1));
    assert_eq!((b.memory.to_vec(..1).unwrap(), a.cq.poll_one().unwrap()), (b"x".to_vec(), None));
    assert_eq!(a.cq.wait_one(LONG).unwrap().status, Status::Success);
    assert!(cluster.now() > Duration::from_millis(60));
}

#[test]
fn a_host_that_has_crashed_does_nothing_any_more() {
    let mut cluster = Cluster::new(1);
    let [a, b] = pair(&mut cluster);
    let victim = b.host.id();
    cluster.after(Duration::from_micros(100), move |network| network.crash(victim));
    let mut calls = Vec::new();
    assert!(!cluster.run_until(Duration::from_millis(1), |step| {
        calls.push((step.host(), step.now()));
        step.again_after(Duration::from_micros(90));
        false
    }));
    let of_victim: Vec<_> = calls.iter().filter(|(host, _)| *host == victim).collect();
    assert_eq!((of_victim.len(), calls.len() - of_victim.len()), (2, 12));
    a.qp.write_bytes(1, b"x", b.memory.remote(0)).post().unwrap();
    assert_eq!(a.cq.wait_one(LONG).unwrap().status, Status::RetryExceeded);
    assert_eq!(b.memory.to_vec(..1).unwrap(), [0]);
    // A host that starts again is a new host.
    let [client, again] = [(); 2].map(|()| end(cluster.add_host().unwrap()));
    connect(&client, &again);
    client.qp.write_bytes(1, b"x", again.memory.remote(0)).post().unwrap();
    assert_eq!(client.cq.wait_one(LONG).unwrap().status, Status::Success);
}

#[test]
fn the_program_of_a_host_that_has_crashed_is_not_called_even_if_it_was_to_be() {
    let mut cluster = Cluster::new(1);
    let (first, second) = (cluster.add_host().unwrap(), cluster.add_host().unwrap());
    let network = cluster.network();
    let mut calls = Vec::new();
    // The program of each host is due at the start.
    cluster.run_until(Duration::from_millis(1), |step| {
        calls.push(step.host());
        network.crash(second.id());
        false
    });
    assert_eq!(calls, [first.id()]);
}

#[test]
fn a_host_that_cannot_be_added_leaves_nothing_behind() {
    // In a process of its own, where the first host finds no free descriptor.
    in_namespace("", || {
        let mut cluster = Cluster::new(1);
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: before.maximum }).unwrap();
        let refused = cluster.add_host();
        setrlimit(Resource::Nofile, before).unwrap();
        assert!(refused.is_err());
        let [first, second] = [(); 2].map(|()| cluster.add_host().unwrap());
        assert_eq!(cluster.hosts(), [first.id(), second.id()]);
        assert_eq!([first.id().index(), second.id().index()], [0, 1]);
        assert_eq!(first.address().to_string(), "10.0.0.1");
        let mut calls = Vec::new();
        cluster.run_until(Duration::from_millis(1), |step| {
            calls.push(step.host());
            false
        });
        assert_eq!(calls, [first.id(), second.id()]);
        let [a, b] = [end(first), end(second)];
        connect(&a, &b);
        a.qp.write_bytes(1, b"x", b.memory.remote(0)).post().unwrap();
        assert_eq!(a.cq.wait_one(LONG).unwrap().status, Status::Success);
    });
}

#[test]
fn many_senders_to_one_are_marked_and_slow_down() {
    let lost = |congestion_control| {
        let mut cluster = Cluster::new(3);
        let options = HostOptions { congestion_control, ..HostOptions::default() };
        let mut add = || end(cluster.add_host_with(&options).unwrap());
        let receiver = add();
        let senders: Vec<_> = (0..10).map(|_| add()).collect();
        let theirs: Vec<_> =
            senders.iter().map(|_| receiver.pd.qp(&receiver.cq).build().unwrap()).collect();
        for (sender, their) in senders.iter().zip(&theirs) {
            sender.qp.connect(&their.endpoint(), &ConnectOptions::default()).unwrap();
            their.connect(&sender.qp.endpoint(), &ConnectOptions::default()).unwrap();
            for id in 0..16 {
                let message = sender.memory.slice(..65_536);
                sender.qp.write(id, &[message], receiver.memory.remote(0)).post().unwrap();
            }
        }
        for sender in &senders {
            for _ in 0..16 {
                assert_eq!(sender.cq.wait_one(LONG).unwrap().status, Status::Success);
            }
        }
        let counters = cluster.network().counters();
        assert_eq!(counters.marked > 0, congestion_control, "{counters:?}");
        counters.overflowed
    };
    let (with, without) = (lost(true), lost(false));
    assert!(with < without / 2, "{with} lost with congestion control, {without} without");
}

#[test]
fn connections_by_address_and_port() {
    let run = |seed| {
        let mut cluster = Cluster::new(seed);
        cluster.network().set_faults(&"drop 20%".parse().unwrap()).unwrap();
        let (server, client) = (cluster.add_host().unwrap(), cluster.add_host().unwrap());
        let expect = |channel: &EventChannel, kind| {
            let event = channel.wait_event(LONG).unwrap();
            assert_eq!((event.kind, event.status), (kind, 0));
            event
        };
        let (theirs, ours) = (server.event_channel().unwrap(), client.event_channel().unwrap());
        let listener = theirs.create_id(PortSpace::Tcp).unwrap();
        let address = SocketAddr::new(server.address(), 7471);
        // Both hosts may listen on all addresses, because each has its own.
        listener.bind_addr("0.0.0.0:7471".parse().unwrap()).unwrap();
        listener.listen(8).unwrap();
        let also = client.event_channel().unwrap();
        let other = also.create_id(PortSpace::Tcp).unwrap();
        other.bind_addr("0.0.0.0:7471".parse().unwrap()).unwrap();

        let id = ours.create_id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, address).unwrap();
        expect(&ours, CmEventKind::AddrResolved);
        id.resolve_route().unwrap();
        expect(&ours, CmEventKind::RouteResolved);
        let (pd, cq) = (client.create_pd().unwrap(), client.create_cq(16).unwrap());
        let qp = id.create_qp(pd.qp(&cq)).unwrap();
        id.connect(&ConnParam::default()).unwrap();

        let request = expect(&theirs, CmEventKind::ConnectRequest).id;
        let (their_pd, their_cq) = (server.create_pd().unwrap(), server.create_cq(16).unwrap());
        let their_qp = request.create_qp(their_pd.qp(&their_cq)).unwrap();
        let memory = their_pd.register(8, access()).unwrap();
        their_qp.recv(1, &[memory.slice(..)]).unwrap();
        request.accept(&ConnParam::default()).unwrap();
        expect(&ours, CmEventKind::Established);
        qp.send_bytes(1, b"hello").post().unwrap();
        assert_eq!(their_cq.wait_one(LONG).unwrap().status, Status::Success);
        assert_eq!(memory.to_vec(..5).unwrap(), b"hello");
        (cluster.fingerprint(), cluster.now())
    };
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
}

#[test]
fn datagrams_and_events_of_a_channel() {
    const QKEY: Qkey = Qkey::new(0x1234);
    let mut cluster = Cluster::new(1);
    let [a, b] = [(); 2].map(|()| cluster.add_host().unwrap());
    let ends = [&a, &b].map(|host| {
        let (pd, channel) = (host.create_pd().unwrap(), host.create_channel().unwrap());
        let cq = host.create_cq_on(16, &channel).unwrap();
        let qp = pd.qp(&cq).service(QpType::Ud).qkey(QKEY).build().unwrap();
        qp.activate().unwrap();
        let memory = pd.register(256, Access::LOCAL_WRITE).unwrap();
        (pd, channel, cq, qp, memory)
    });
    let [(pd, _, _, qp, _), (_, channel, their_cq, their_qp, memory)] = &ends;
    their_qp.recv(1, &[memory.slice(..)]).unwrap();
    their_cq.arm(false).unwrap();
    let ah = pd.create_ah_to(b.address().into()).unwrap();
    qp.send_bytes(1, b"datagram").to(&ah, their_qp.qpn(), QKEY).post().unwrap();
    let told = channel.get_event(Some(LONG)).unwrap().expect("an event");
    assert_eq!(told.poll_one().unwrap().expect("a completion").byte_len, 48);
    assert_eq!(memory.to_vec(40..48).unwrap(), b"datagram");
    assert!(channel.get_event(Some(Duration::from_secs(1))).unwrap().is_none());
    assert!(cluster.now() > Duration::from_secs(1));
}

#[test]
fn a_capture_shows_each_packet_with_its_virtual_time() {
    let path = std::env::temp_dir().join(format!("rxe-cluster-{}.pcapng", std::process::id()));
    let mut cluster = Cluster::new(1);
    cluster.capture(&path).unwrap();
    let [a, b] = pair(&mut cluster);
    cluster.run_for(Duration::from_secs(5));
    a.qp.write(1, &[a.memory.slice(..20_000)], b.memory.remote(0)).post().unwrap();
    a.cq.wait_one(LONG).unwrap();
    let sent = cluster.network().counters().fabric.path.sent;
    drop(cluster);
    let mut capture = rxe_lab::capture::Reader::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut frames = 0;
    while let Some(frame) = capture.next().unwrap() {
        frames += 1;
        let at = frame.at.expect("a time");
        assert!((Duration::from_secs(5)..Duration::from_millis(5001)).contains(&at), "{at:?}");
    }
    assert_eq!(frames, sent);
}

#[test]
fn what_does_not_exist_cannot_be_reached_and_nothing_keeps_a_cluster() {
    let mut cluster = Cluster::new(1);
    let a = end(cluster.add_host().unwrap());
    let mut peer = a.qp.endpoint();
    peer.gid = std::net::IpAddr::from([10, 9, 9, 9]).into();
    a.qp.connect(&peer, &ConnectOptions::default()).unwrap();
    a.qp.send_bytes(1, b"x").post().unwrap();
    assert_eq!(a.cq.wait_one(LONG).unwrap().status, Status::RetryExceeded);
    assert!(cluster.network().counters().unreachable > 0);
    // A host continues to work after its cluster is dropped.
    drop(cluster);
    a.qp.to_reset().unwrap();
    a.qp.connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
    a.qp.write_bytes(2, b"own", a.memory.remote(0)).post().unwrap();
    assert_eq!(a.cq.wait_one(LONG).unwrap().status, Status::Success);
}
