//! Shared memory in front of UDP sockets: who gets what, and what becomes of it when somebody goes.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::types::Qpn;
use rxe_core::wire::{IpId, NetHeader, TxBatch, UDP_PORT};

use super::Shm;
use super::link::Bell;
use super::ring::Producer;
use crate::lease::name::Place;
use crate::sys::unix::UnixSocket;
use crate::testing::{in_namespace, send_all};
use crate::{Backend, Sharing, UdpBackend, UdpConfig};

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn open(address: &str) -> Shm<UdpBackend> {
    let udp = UdpBackend::open(&UdpConfig::new("lo", [ip(address)])).unwrap();
    Shm::new(udp, "lo", &[ip(address)]).unwrap()
}

fn block(backend: &impl Backend) -> u8 {
    backend.capabilities().qpn_block.unwrap()
}

/// Sends `count` packets with numbers from 0 to a QP of this block.
fn send(from: &mut impl Backend, src: &str, dst: &str, block: u8, count: u32) {
    let net = NetHeader { tos: 0x68, ..NetHeader::outgoing(ip(src), ip(dst), UDP_PORT) };
    let mut batch = TxBatch::new(from.capabilities().tx);
    let qpn = Qpn::from_wire(u32::from(block) << 16 | 0x1234);
    for number in 0..count {
        batch.push_to(net, qpn, 1040, |_, buf| {
            buf.extend([0; 4]);
            buf.extend(qpn.value().to_be_bytes());
            buf.extend(number.to_be_bytes());
            buf.resize(buf.len() + 1028, 7);
        });
    }
    send_all(from, &mut batch);
}

fn readable(backend: &impl Backend, seconds: i64) -> bool {
    let mut fds = Vec::new();
    backend.for_each_fd(&mut |fd| fds.push(fd.try_clone_to_owned().unwrap()));
    let mut polls: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut polls, Some(&limit)).unwrap() > 0
}

/// Receives `count` packets: all with known headers, in order, from number 0 on.
fn receive(backend: &mut impl Backend, count: u32) -> Vec<NetHeader> {
    backend.watch(true);
    let mut got = Vec::new();
    while got.len() < count as usize {
        assert!(readable(backend, 10), "{} packets came", got.len());
        backend
            .receive(64, &mut |f| {
                for (net, bytes) in f.packets() {
                    let number = u32::try_from(got.len()).unwrap();
                    assert_eq!(bytes[8..12], number.to_be_bytes());
                    got.push(net);
                }
            })
            .unwrap();
    }
    while backend.receive(64, &mut |_| panic!("one more")).unwrap() > 0 {}
    backend.watch(false);
    got
}

/// What has arrived in another way than through rings.
fn over_the_wire(backend: &Shm<UdpBackend>) -> u64 {
    backend.inner.counters().rx_packets
}

#[test]
fn frames_stay_on_the_host_and_are_whole() {
    in_namespace("", || {
        for (a, b) in [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.2"), ("::1", "::1")] {
            let (mut from, mut to) = (open(a), open(b));
            for round in 0..3u16 {
                send(&mut from, a, b, block(&to), 100);
                let got = receive(&mut to, 100);
                let net = NetHeader::outgoing(ip(a), ip(b), UDP_PORT);
                let ids = got.iter().all(|n| match n.id {
                    IpId::Known { flags, .. } => flags == 0x4000,
                    IpId::Absent => a == "::1",
                    IpId::Hidden => false,
                });
                assert!(ids, "{round}");
                let same = |n: &NetHeader| (n.src, n.dst, n.tos) == (net.src, net.dst, 0x68);
                assert!(got.iter().all(same));
            }
            assert_eq!((over_the_wire(&to), to.counters().rx_packets), (0, 300));
            assert_eq!(from.counters().tx_packets, 300);
            // And back, over a ring of its own.
            send(&mut to, b, a, block(&from), 10);
            receive(&mut from, 10);
            assert_eq!(over_the_wire(&from), 0);
        }
    });
}

#[test]
fn a_device_reaches_itself() {
    in_namespace("", || {
        let mut own = open("127.0.0.1");
        let block = block(&own);
        send(&mut own, "127.0.0.1", "127.0.0.1", block, 70);
        receive(&mut own, 70);
        own.watch(true);
        send(&mut own, "127.0.0.1", "127.0.0.1", block, 5);
        assert!(readable(&own, 0), "also who sleeps learns of it");
        receive(&mut own, 5);
        assert!(!readable(&own, 0));
    });
}

#[test]
fn who_sleeps_is_woken_and_who_polls_costs_no_call() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
        receive(&mut to, 1);
        for _ in 0..100 {
            to.watch(true);
            assert!(!readable(&to, 0));
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
            assert!(readable(&to, 0));
            // Taking only a part leaves it readable.
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
            assert_eq!(to.receive(1, &mut |_| {}).unwrap(), 1);
            assert!(readable(&to, 0));
            assert_eq!(to.receive(1, &mut |_| {}).unwrap(), 1);
            assert!(!readable(&to, 0));
            to.watch(false);
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
            assert!(!readable(&to, 0), "nobody asked to be woken");
            to.watch(true);
            assert!(readable(&to, 0), "but now somebody does");
            assert_eq!(to.receive(9, &mut |_| {}).unwrap(), 1);
        }
    });
}

#[test]
fn who_is_gone_is_forgotten_and_whoever_comes_instead_is_found() {
    in_namespace("", || {
        let mut from = open("127.0.0.1");
        for _ in 0..3 {
            let mut to = open("127.0.0.2");
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
            receive(&mut to, 20);
            send(&mut to, "127.0.0.2", "127.0.0.1", 1, 20);
            receive(&mut from, 20);
            drop(to);
            // What is on the way then is lost, and nothing worse.
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
            while from.routes.values().any(|r| matches!(r, super::Route::Ring(_))) {
                from.receive(1, &mut |_| panic!("from nobody")).unwrap();
            }
            assert!(from.incoming.is_empty());
            assert!(!readable(&from, 0));
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(!maps.contains("rxe-ring"), "no memory is left: {maps}");
        }
    });
}

#[test]
fn a_ring_that_is_full_loses_packets_and_holds_nobody_up() {
    in_namespace("", || {
        let (mut from, mut slow, mut other) =
            (open("127.0.0.1"), open("127.0.0.2"), open("127.0.0.3"));
        // In runs of the same size: where one does not fit, none after it does.
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 48 * (65_507 / 1040));
        assert!(from.counters().tx_no_buffer > 0);
        send(&mut from, "127.0.0.1", "127.0.0.3", 1, 50);
        receive(&mut other, 50);
        let went = u32::try_from(from.counters().tx_packets - 50).unwrap();
        receive(&mut slow, went);
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 50);
        receive(&mut slow, 50);
    });
}

#[test]
fn who_takes_is_given_time_to_make_room() {
    const COUNT: u32 = 4 * 48 * (65_507 / 1040);
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        // A machine may be that busy.
        from.patience = Duration::from_secs(30);
        std::thread::scope(|scope| {
            scope.spawn(|| receive(&mut to, COUNT));
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, COUNT);
        });
        assert_eq!(from.counters().tx_no_buffer, 0);
    });
}

#[test]
fn strangers_at_the_door_do_no_harm() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let name = Place::new(ip("127.0.0.2"), 0).memory(1);
        let callers: Vec<_> = (0..20).map(|_| UnixSocket::connect(&name).unwrap()).collect();
        for (i, caller) in callers.iter().enumerate() {
            let null = std::fs::File::open("/dev/null").unwrap();
            let fds = [std::os::fd::AsFd::as_fd(&null); 2];
            let words: [&[u8]; 4] = [b"", b"rxm\x01", b"rxm\x02", b"nonsense that is long enough"];
            caller.send_connected(words[i % 4], &fds[..i % 3]).unwrap();
        }
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
        receive(&mut to, 20);
        drop(callers);
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
        receive(&mut to, 20);
        assert!(to.callers.is_empty() && to.incoming.len() == 1);
        assert!(!readable(&to, 0));
    });
}

#[test]
fn who_connects_and_says_nothing_is_not_waited_for_without_end() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = Place::new(ip("127.0.0.2"), 0).memory(1);
        let mut callers = Vec::new();
        for _ in 0..super::CALLERS + 20 {
            callers.push(UnixSocket::connect(&name).unwrap());
            to.look_around();
        }
        assert_eq!(to.callers.len(), super::CALLERS);
        assert!(callers[0].receive(&mut [0]).unwrap().is_some_and(|l| l.len == 0), "hung up");
        assert!(callers[20].receive(&mut [0]).unwrap().is_none(), "still waited for");
    });
}

#[test]
fn a_bell_that_others_hold_open_is_watched_no_longer_than_its_ring() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = Place::new(ip("127.0.0.2"), 0).memory(1);
        let line = UnixSocket::connect(&name).unwrap();
        let (_ring, memory) = Producer::create().unwrap();
        let bell = Bell::new().unwrap();
        line.send_connected(b"rxm\x01", &[memory.as_fd(), bell.as_fd()]).unwrap();
        to.look_around();
        assert_eq!(to.incoming.len(), 1);
        drop(line);
        to.look_around();
        assert!(to.incoming.is_empty());
        bell.ring();
        assert!(!readable(&to, 0));
    });
}

#[test]
fn a_bell_that_could_block_is_refused() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = Place::new(ip("127.0.0.2"), 0).memory(1);
        let blocking = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (pipe, _other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        for bell in [blocking, pipe] {
            let line = UnixSocket::connect(&name).unwrap();
            let (_ring, memory) = Producer::create().unwrap();
            line.send_connected(b"rxm\x01", &[memory.as_fd(), bell.as_fd()]).unwrap();
            to.look_around();
            assert!(to.incoming.is_empty() && to.callers.is_empty());
        }
    });
}

#[test]
fn without_shared_memory_there_it_goes_over_the_wire() {
    in_namespace("", || {
        let mut from = open("127.0.0.1");
        let mut to = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.2")])).unwrap();
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 10);
        receive(&mut to, 10);
        // An address that is not ours is nobody's here either.
        send(&mut from, "127.0.0.9", "127.0.0.2", 1, 10);
        assert_eq!(from.counters().tx_bad_address, 10);
    });
}

#[test]
fn no_rings_are_taken_for_what_is_another_s() {
    in_namespace("", || {
        let mut a = open("127.0.0.1");
        // It has the same block on the address to come, and no shared memory.
        let mut holder = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.2")])).unwrap();
        assert_eq!((block(&a), block(&holder)), (1, 1));
        a.set_addresses(&[ip("127.0.0.1"), ip("127.0.0.2")]).unwrap_err();
        let mut from = open("127.0.0.9");
        send(&mut from, "127.0.0.9", "127.0.0.2", 1, 3);
        receive(&mut holder, 3);
        send(&mut a, "127.0.0.1", "127.0.0.2", 1, 3);
        receive(&mut holder, 3);
    });
}
