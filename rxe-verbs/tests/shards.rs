//! A device with several shards behaves like one with a single shard. Its objects work with queue
//! pairs of all shards.

mod common;

use std::collections::HashSet;
use std::fs::File;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rxe_verbs::*;

/// Opens a device with `count` shards. Returns it with one side on each shard.
fn spread(count: u32) -> (Device, Vec<Side>) {
    let device = Device::options("lo").address(address()).shards(count).open().unwrap();
    let sides: Vec<_> = (0..count).map(|_| Side::new(device.clone())).collect();
    assert_eq!((device.shard_count(), blocks(&sides)), (count as usize, count as usize));
    (device, sides)
}

/// Returns the number of QPN blocks of the queue pairs, one per shard.
fn blocks(sides: &[Side]) -> usize {
    sides.iter().map(|side| side.qp.qpn().block()).collect::<HashSet<_>>().len()
}

/// Sends a message from each side to each, including itself, on new queue pairs. No packet is
/// retransmitted.
fn talk_all(sides: &[Side]) {
    talk_all_with(sides, &without_retries());
}

fn talk_all_with(sides: &[Side], options: &ConnectOptions) {
    for from in sides {
        for to in sides {
            let [sender, receiver] = [from, to].map(|side| side.pd.qp(&side.cq).build().unwrap());
            connect_with(&sender, &receiver, options);
            let inbox = to.region(16);
            receiver.recv(1, &[inbox.slice(..)]).unwrap();
            sender.send_bytes(2, b"hello").post().unwrap();
            let mut done = [from.ok().id, to.ok().id];
            done.sort_unstable();
            assert_eq!(done, [1, 2]);
        }
    }
}

#[test]
fn queue_pairs_are_dealt_out_in_turn_and_reach_each_other() {
    let (device, sides) = spread(3);
    talk_all(&sides);
    assert_eq!(device.shard_count(), 3);
    // Further queue pairs on a completion queue belong to the shard of its first one.
    for side in &sides {
        let further = side.pd.qp(&side.cq).build().unwrap();
        assert_eq!(further.qpn().block(), side.qp.qpn().block());
    }
    let counters = device.counters();
    assert_eq!(counters.sent_pkts, counters.rcvd_pkts);
    assert!(counters.sent_pkts >= 2 * 9, "{counters:?}");
}

#[test]
fn each_thread_has_a_shard_while_it_lives() {
    let device = open(address());
    // Threads that follow one another share a shard.
    for _ in 0..4 {
        let device = device.clone();
        thread::spawn(move || drop(Side::new(device))).join().unwrap();
    }
    assert_eq!(device.shard_count(), 1);
    // Threads that live simultaneously have a shard each, up to the number of CPUs.
    let cpus = thread::available_parallelism().unwrap().get();
    let ready = Barrier::new(3);
    let sides: Vec<_> = thread::scope(|scope| {
        let side = || {
            let sides = [(); 2].map(|()| Side::new(device.clone()));
            assert_eq!(sides[0].qp.qpn().block(), sides[1].qp.qpn().block());
            ready.wait();
            sides
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(side)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((device.shard_count(), blocks(&sides)), (cpus.min(3), cpus.min(3)));
    talk_all(&sides);
}

/// Opens a device, and creates a completion queue and a queue pair for each of these vectors, all
/// on this thread.
fn by_vector(options: OpenOptions, vectors: &[u32]) -> (Device, Vec<Side>) {
    let device = options.open().unwrap();
    let sides = vectors.iter().map(|&vector| side_of(&device, vector)).collect();
    (device, sides)
}

fn side_of(device: &Device, vector: u32) -> Side {
    let (pd, cq) = (device.create_pd().unwrap(), device.create_cq(1024).unwrap());
    cq.set_comp_vector(vector);
    assert_eq!(cq.comp_vector(), vector);
    let qp = pd.qp(&cq).build().unwrap();
    Side { device: device.clone(), pd, cq, qp }
}

/// Returns, for each queue pair, the index of the first one on the same shard.
fn groups(sides: &[Side]) -> Vec<usize> {
    let block = |side: &Side| side.qp.qpn().block();
    let first = |side| sides.iter().position(|other| block(other) == block(side)).unwrap();
    sides.iter().map(first).collect()
}

#[test]
fn one_thread_has_a_shard_for_each_completion_vector_that_it_names() {
    let options = || Device::options("lo").address(address());
    let cpus = open(address()).attr().num_comp_vectors;
    assert_eq!(cpus as usize, thread::available_parallelism().unwrap().get());
    // A single vector, whichever it is, has the same shard as no vector.
    for vector in [0, 1, cpus - 1] {
        let (device, _sides) = by_vector(options(), &[vector; 3]);
        assert_eq!(device.shard_count(), 1);
    }
    let (device, sides) = by_vector(options(), &[0, 1, 0, 1, cpus]);
    let two = cpus.min(2) as usize;
    assert_eq!(device.shard_count(), two);
    // A vector beyond the last wraps to the first.
    assert_eq!(groups(&sides), [0, two - 1, 0, two - 1, 0]);
    talk_all(&sides);
    // A queue pair with two completion queues belongs to the shard of its receives.
    let receives = device.create_cq(16).unwrap();
    receives.set_comp_vector(1);
    let sends = device.create_cq(16).unwrap();
    let qp = sides[0].pd.qp_with(&sends, &receives).build().unwrap();
    assert_eq!(qp.qpn().block(), sides[1].qp.qpn().block());
    // Other threads name the same vector, and get shards as if they named none.
    let ready = Barrier::new(2);
    let of_threads: Vec<_> = thread::scope(|scope| {
        let make = || {
            let side = side_of(&device, 1);
            ready.wait();
            side
        };
        let threads = [(); 2].map(|()| scope.spawn(make));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(groups(&of_threads), [0, two - 1]);
}

#[test]
fn of_a_number_of_shards_each_vector_but_0_has_one() {
    if thread::available_parallelism().unwrap().get() == 1 {
        skipped("of_a_number_of_shards_each_vector_but_0_has_one", "there is one CPU");
        return;
    }
    let options = Device::options("lo").address(address()).shards(3);
    let (device, sides) = by_vector(options, &[0, 1, 1, 0, 0, 1]);
    assert_eq!(device.shard_count(), 3);
    // The shards are assigned in turn. Vector 1 keeps the second shard. Vector 0 counts as none, so
    // its queues get the first, the third, and the first again.
    assert_eq!(groups(&sides), [0, 1, 1, 3, 0, 1]);
    talk_all(&sides);
}

#[test]
fn a_completion_queue_may_be_of_two_shards() {
    let (device, sides) = spread(2);
    let channel = device.create_channel().unwrap();
    let shared = device.create_cq_on(64, &channel).unwrap();
    // The queue belongs to the shard of the first queue pair, and then to that of the second too.
    let qps: Vec<_> = sides
        .iter()
        .map(|side| {
            let qp = side.pd.qp_with(&shared, &side.cq).build().unwrap();
            assert_eq!(qp.qpn().block(), side.qp.qpn().block());
            let peer = side.pd.qp(&side.cq).build().unwrap();
            connect(&qp, &peer);
            (qp, peer)
        })
        .collect();
    let inbox = sides[0].region(64);
    for (side, (qp, _)) in sides.iter().zip(&qps) {
        let inbox = side.region(64);
        // By polling,
        qp.write_bytes(1, &[1; 8], inbox.remote(0)).post().unwrap();
        assert_eq!(shared.spin_one(TIMEOUT).unwrap().id, 1);
        // asleep,
        qp.write_bytes(2, &[2; 8], inbox.remote(8)).post().unwrap();
        assert_eq!(shared.wait_one(TIMEOUT).unwrap().id, 2);
        // and by an event.
        shared.arm(false).unwrap();
        assert!(shared.poll_one().unwrap().is_none());
        qp.write_bytes(3, &[3; 8], inbox.remote(16)).post().unwrap();
        let event = channel.get_event(Some(TIMEOUT)).unwrap().expect("an event");
        assert_eq!((event.id(), event.wait_one(TIMEOUT).unwrap().id), (shared.id(), 3));
    }
    // A completion on the other shard wakes a sleeping thread.
    thread::scope(|scope| {
        let waiter = scope.spawn(|| shared.wait_one(TIMEOUT).unwrap().id);
        thread::sleep(Duration::from_millis(20));
        let outsider = &qps[1].0;
        let remote = sides[1].region(64);
        outsider.write_bytes(4, &[4; 8], remote.remote(0)).post().unwrap();
        assert_eq!(waiter.join().unwrap(), 4);
    });
    drop(inbox);
}

#[test]
fn an_overflow_stops_the_queue_pairs_of_all_shards() {
    let (device, sides) = spread(2);
    let small = device.create_cq(1).unwrap();
    let [idle, busy] = [&sides[0], &sides[1]].map(|side| {
        let qp = side.pd.qp_with(&small, &side.cq).build().unwrap();
        let peer = side.pd.qp(&side.cq).build().unwrap();
        connect(&qp, &peer);
        (qp, peer, side.region(8))
    });
    for id in 0..2 {
        busy.0.write_bytes(id, b"overflow", busy.2.remote(0)).post().unwrap();
    }
    let event = async_event(&device, AsyncKind::CqErr);
    assert_eq!(event.cq, Some(small.id()));
    // No call drives the first shard.
    let began = Instant::now();
    while idle.0.state() != QpState::Err {
        assert!(began.elapsed() < TIMEOUT, "{}", idle.0.state().name());
        thread::yield_now();
    }
    assert_eq!(busy.0.state(), QpState::Err);
    assert_eq!([&idle.1, &busy.1].map(|peer| peer.state()), [QpState::Rts; 2]);
}

#[test]
fn a_shared_receive_queue_serves_all_shards() {
    let (_device, sides) = spread(3);
    let client = Side::new(open(address()));
    let srq = sides[0].pd.create_srq(64, 1).unwrap();
    let inbox = sides[0].region(8);
    const EACH: u32 = 500;
    let connections: Vec<_> = sides
        .iter()
        .map(|side| {
            let ours = side.pd.qp(&side.cq).srq(&srq).build().unwrap();
            let theirs = client.pd.qp(&client.cq).build().unwrap();
            connect(&ours, &theirs);
            (ours, theirs)
        })
        .collect();
    thread::scope(|scope| {
        for side in &sides {
            let (srq, inbox) = (&srq, &inbox);
            scope.spawn(move || {
                for i in 0..EACH {
                    let done = side.ok();
                    assert_eq!(done.imm, Some(Immediate::Data(i)));
                    srq.recv(done.id, &[inbox.slice(..)]).unwrap();
                }
            });
        }
        (0..32).for_each(|id| srq.recv(id, &[inbox.slice(..)]).unwrap());
        for i in 0..EACH {
            for (_, theirs) in &connections {
                theirs.send_bytes(0, b"").imm(i).post().unwrap();
            }
            for _ in &connections {
                client.ok();
            }
        }
    });
    assert_eq!(srq.len(), 32);
}

#[test]
fn atomics_of_all_shards_on_one_word_are_atomic() {
    let (_device, sides) = spread(3);
    let word = sides[0].region(8);
    const EACH: u64 = 3_000;
    let client = open(address());
    let connections: Vec<_> = sides
        .iter()
        .map(|side| {
            let theirs = Side::new(client.clone());
            let ours = sides[0].pd.qp(&side.cq).build().unwrap();
            connect(&ours, &theirs.qp);
            (ours, theirs)
        })
        .collect();
    thread::scope(|scope| {
        for (_, theirs) in &connections {
            let word = word.remote(0);
            scope.spawn(move || {
                let result = theirs.region(8);
                for i in 0..EACH {
                    theirs.qp.fetch_add(i, result.slice(..), word, 1).post().unwrap();
                    theirs.ok();
                }
            });
        }
    });
    assert_eq!(word.load_u64(0).unwrap(), 3 * EACH);
}

/// Each thread sends messages to the queue pair of the next thread.
#[test]
fn of_the_messages_of_64_threads_none_is_lost() {
    const THREADS: usize = 64;
    const EACH: u64 = 100;
    const LEN: usize = 3_000;
    let device = open(address());
    // All threads live simultaneously, so they spread over the shards.
    let ready = Barrier::new(THREADS);
    let sides: Vec<_> = thread::scope(|scope| {
        let side = || {
            let side = Side::new(device.clone());
            let outgoing = side.pd.qp(&side.cq).build().unwrap();
            ready.wait();
            (side, outgoing)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(side)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let cpus = thread::available_parallelism().unwrap().get();
    assert_eq!(device.shard_count(), cpus.min(8));
    for (i, (_, outgoing)) in sides.iter().enumerate() {
        connect(outgoing, &sides[(i + 1) % THREADS].0.qp);
    }
    let message = |thread: usize, id: u64| pattern(LEN, (thread as u64 + id).to_le_bytes()[0]);
    thread::scope(|scope| {
        for (i, (side, outgoing)) in sides.iter().enumerate() {
            scope.spawn(move || {
                let inbox = side.region(LEN * 16);
                let place = |id: u64| usize::try_from(id % 16).unwrap() * LEN;
                let receive = |id| {
                    let at = place(id);
                    side.qp.recv(id, &[inbox.slice(at..at + LEN)]).unwrap();
                };
                (0..16).for_each(receive);
                let outbox = side.region(LEN);
                let send = |id| {
                    outbox.write_at(0, &message(i, id)).unwrap();
                    outgoing.send(id, &[outbox.slice(..)]).post().unwrap();
                };
                let before = (i + THREADS - 1) % THREADS;
                let (mut sent, mut received) = (0, 0);
                send(0);
                while sent < EACH || received < EACH {
                    let done = side.ok();
                    if done.op == CompletionOp::Send {
                        assert_eq!(done.id, sent);
                        sent += 1;
                        if sent < EACH {
                            send(sent);
                        }
                    } else {
                        assert_eq!(done.id, received);
                        let at = place(received);
                        let bytes = inbox.to_vec(at..at + LEN).unwrap();
                        assert!(bytes == message(before, received), "{before}, {received}");
                        received += 1;
                        if received + 15 < EACH {
                            receive(received + 15);
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn all_shards_follow_the_addresses_of_the_interface() {
    // Without a link-local address, which the kernel would add at an arbitrary time.
    let setup = "ip link add veth0 type veth peer name veth1
        ip address add 10.9.0.1/24 dev veth0
        ip link set veth0 addrgenmode none up
        ip link set veth1 up";
    in_namespace(setup, || {
        let device = Device::options("veth0").shards(2).open().unwrap();
        let sides = [(); 2].map(|()| Side::new(device.clone()));
        sh("ip address add 10.9.2.2/24 dev veth0");
        async_event(&device, AsyncKind::GidChange);
        let gids = device.gids();
        let new = gids.iter().position(|gid| gid.to_ip().to_string() == "10.9.2.2").unwrap();
        let index = u16::try_from(new).unwrap();
        for side in &sides {
            let [sender, receiver] =
                [(); 2].map(|()| side.pd.qp(&side.cq).gid_index(index).build().unwrap());
            connect(&sender, &receiver);
            let inbox = side.region(8);
            sender.write_bytes(5, b"8 bytes.", inbox.remote(0)).post().unwrap();
            assert_eq!(side.ok().id, 5);
        }
        talk_all(&sides);
    });
}

#[test]
fn without_descriptors_for_more_there_are_as_many_shards_as_can_be() {
    // With each limit another object finds no descriptor: a shard, a ring offered to another shard,
    // or the ring's wake-up. The final number of shards depends on how many descriptors the rings
    // take.
    in_namespace("ulimit -n 62", || {
        for limit in 46..=62 {
            let limits = Rlimit { current: Some(limit), maximum: Some(62) };
            setrlimit(Resource::Nofile, limits).unwrap();
            let device = Device::options("lo").address(address()).shards(8).open().unwrap();
            let sides: Vec<_> = (0..8).map(|_| Side::new(device.clone())).collect();
            let count = device.shard_count();
            assert!((1..8).contains(&count), "{count} shards with {limit} descriptors");
            // Packets in a refused ring are lost, so the timeout must be short, but not so short
            // that retries run out.
            let timeout = AckTimeout::new(16).unwrap();
            talk_all_with(&sides, &ConnectOptions { timeout, ..ConnectOptions::default() });
            assert_eq!(device.shard_count(), count);
        }
    });
}

/// The last descriptor may belong to a caller whose offer of a ring is refused shortly after.
#[test]
fn a_thread_that_waits_also_waits_for_a_descriptor() {
    in_namespace("", || {
        // The number of descriptors that `poll` may watch with this limit. These files take the low
        // numbers, so that the device's threads cannot open and close files there.
        const LIMIT: usize = 16;
        let _below = [(); LIMIT].map(|()| File::open("/dev/null").unwrap());
        let side = Side::new(Device::options("lo").address(address()).open().unwrap());
        let wait = || side.cq.wait_one(Duration::from_millis(1));
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT as u64), ..before }).unwrap();
        let refused = wait().unwrap_err().to_string();
        assert!(refused.contains("Too many open files"), "{refused}");
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                setrlimit(Resource::Nofile, before).unwrap();
            });
            let waited = wait().unwrap_err();
            assert!(matches!(waited, Error::TimedOut { .. }), "{waited}");
        });
    });
}

#[test]
fn a_group_has_members_in_all_shards() {
    let setup = "ip link add veth0 type veth peer name peer0
        ip link set veth0 up
        ip link set peer0 up
        ip address add 10.9.0.1/24 dev veth0
        ip address add 10.9.0.2/24 dev veth0";
    in_namespace(setup, || {
        let open = |last: u8| Device::options("veth0").address([10, 9, 0, last].into());
        let outside = Side::new(open(2).open().unwrap());
        let device = open(1).shards(2).open().unwrap();
        let sides = [(); 2].map(|()| Side::new(device.clone()));
        assert_eq!(blocks(&sides), 2);
        let group = Gid::from(std::net::IpAddr::from([239, 7, 7, 8]));
        let talker = |side: &Side| {
            let qp = side.pd.qp(&side.cq).service(QpType::Ud).build().unwrap();
            qp.activate().unwrap();
            let ah = side.pd.create_ah_to(group).unwrap();
            (qp, ah, side.region(64 * 8))
        };
        let talkers = sides.each_ref().map(talker);
        let (caller, way, _) = talker(&outside);
        let receive = |(qp, _, inbox): &(QueuePair, AddressHandle, MemoryRegion), id: u64| {
            let at = 64 * usize::try_from(id).unwrap();
            qp.recv(id, &[inbox.slice(at..at + 64)]).unwrap();
        };
        for member in &talkers {
            (0..4).for_each(|id| receive(member, id));
            member.0.attach_multicast(group).unwrap();
        }
        let hears = |at: usize, id: u64, text: &[u8]| {
            let done = sides[at].ok();
            assert_eq!((done.id, done.op, done.byte_len), (id, CompletionOp::Recv, 40 + 5));
            let from = 64 * usize::try_from(id).unwrap() + 40;
            assert_eq!(talkers[at].2.to_vec(from..from + 5).unwrap(), text);
        };
        let say = |qp: &QueuePair, ah: &AddressHandle, text: &[u8]| {
            let request = qp.send_bytes(99, text).to(ah, Qpn::MULTICAST, qp.qkey());
            request.unsignaled().post().unwrap();
        };
        // Sent by another device, and by a member on each shard.
        say(&caller, &way, b"outer");
        (0..2).for_each(|at| hears(at, 0, b"outer"));
        say(&talkers[0].0, &talkers[0].1, b"first");
        (0..2).for_each(|at| hears(at, 1, b"first"));
        say(&talkers[1].0, &talkers[1].1, b"other");
        (0..2).for_each(|at| hears(at, 2, b"other"));
        // A shard leaves the group with its last member; the other shard stays.
        talkers[0].0.detach_multicast(group).unwrap();
        say(&caller, &way, b"again");
        hears(1, 3, b"again");
        assert_eq!(sides[0].cq.poll_one().unwrap(), None);
    });
}

/// The connection manager belongs to the first shard.
#[test]
fn a_connection_by_address_may_have_its_queue_pair_in_any_shard() {
    use rxe_verbs::cm::{CmEventKind, ConnParam, EventChannel, PortSpace};

    let (server_ip, client_ip) = (address(), address());
    let [server, client] = [server_ip, client_ip].map(|ip| {
        let device = Device::options("lo").address(ip).shards(3).open().unwrap();
        let sides = [(); 3].map(|()| Side::new(device.clone()));
        let channel = EventChannel::on(std::slice::from_ref(&device)).unwrap();
        (device, sides, channel)
    });
    let expect = |channel: &EventChannel, kind| {
        let event = channel.wait_event(TIMEOUT).unwrap();
        assert_eq!((event.kind, event.status), (kind, 0));
        event
    };
    let listener = server.2.create_id(PortSpace::Tcp).unwrap();
    listener.bind_addr((server_ip, 0).into()).unwrap();
    listener.listen(8).unwrap();
    let mut ends = Vec::new();
    for (here, there) in [(1, 2), (2, 0), (0, 1)] {
        let (ours, theirs) = (&client.1[here], &server.1[there]);
        let a = client.2.create_id(PortSpace::Tcp).unwrap();
        a.resolve_addr(None, listener.local_addr().unwrap()).unwrap();
        expect(&client.2, CmEventKind::AddrResolved);
        a.resolve_route().unwrap();
        expect(&client.2, CmEventKind::RouteResolved);
        let x = a.create_qp(ours.pd.qp(&ours.cq)).unwrap();
        a.connect(&ConnParam::default()).unwrap();
        let b = expect(&server.2, CmEventKind::ConnectRequest).id;
        let y = b.create_qp(theirs.pd.qp(&theirs.cq)).unwrap();
        b.accept(&ConnParam::default()).unwrap();
        expect(&client.2, CmEventKind::Established);
        expect(&server.2, CmEventKind::Established);
        for (qp, side) in [(&x, ours), (&y, theirs)] {
            assert_eq!(qp.qpn().block(), side.qp.qpn().block());
        }
        let inbox = theirs.region(8);
        y.recv(1, &[inbox.slice(..)]).unwrap();
        x.send_bytes(2, b"by name.").post().unwrap();
        assert_eq!((ours.ok().id, theirs.ok().id), (2, 1));
        assert_eq!(inbox.to_vec(..).unwrap(), b"by name.");
        ends.push((a, b, x, y));
    }
    for (a, b, x, y) in ends {
        a.disconnect().unwrap();
        expect(&server.2, CmEventKind::Disconnected);
        b.disconnect().unwrap();
        expect(&client.2, CmEventKind::Disconnected);
        assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Err));
        expect(&client.2, CmEventKind::TimewaitExit);
        expect(&server.2, CmEventKind::TimewaitExit);
    }
}

#[test]
fn packet_sockets_have_shards_too() {
    let options = Device::options("lo").address(address()).backend(BackendKind::Packet);
    let device = match options.shared_memory(false).shards(2).open() {
        Ok(device) => device,
        Err(Error::Net(e @ NetError::NoPrivilege { .. })) => {
            skipped("packet_sockets_have_shards_too", e);
            return;
        }
        Err(e) => panic!("{e}"),
    };
    let sides = [(); 2].map(|()| Side::new(device.clone()));
    assert_eq!((device.backend_name(), blocks(&sides)), ("packet", 2));
    let far = Side::new(open(address()));
    for side in &sides {
        let [ours, theirs] = [side, &far].map(|side| side.pd.qp(&side.cq).build().unwrap());
        connect_without_retries(&ours, &theirs);
        let (mine, remote) = (side.region(300_000), far.region(300_000));
        remote.write_at(0, &pattern(300_000, 7)).unwrap();
        ours.read(1, &[mine.slice(..)], remote.remote(0)).post().unwrap();
        side.ok();
        assert!(mine.to_vec(..).unwrap() == pattern(300_000, 7));
    }
    talk_all(&sides);
    // A packet that reached the wrong shard would be counted as dropped.
    assert_eq!(device.counters().drops().map(|(_, count)| count).sum::<u64>(), 0);
}

#[test]
fn a_target_of_xrc_is_served_whatever_shard_its_initiator_has() {
    let (device, sides) = spread(2);
    let domain = device.create_xrc_domain().unwrap();
    let cq = device.create_cq(16).unwrap();
    let srq = sides[0].pd.create_xrc_srq(&domain, &cq, 8, 1).unwrap();
    let inbox = sides[0].region(16);
    for side in &sides {
        let target = domain.qp().build().unwrap();
        let initiator = side.pd.qp(&side.cq).service(QpType::XrcSend).build().unwrap();
        connect(&initiator, &target);
        srq.recv(1, &[inbox.slice(..)]).unwrap();
        initiator.send_bytes(2, b"xrc").to_srq(srq.number()).post().unwrap();
        assert_eq!(side.ok().id, 2);
        assert_eq!(cq.wait_one(TIMEOUT).unwrap().byte_len, 3);
    }
}
