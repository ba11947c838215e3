//! Shared memory in front of UDP sockets: who gets what, and what becomes of it when somebody goes.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::mem::Source;
use rxe_core::types::Qpn;
use rxe_core::wire::{Frame, IpId, NetHeader, Placed, TxBatch, UDP_PORT, icrc};

use super::Shm;
use super::link::{FRAME, OFFER};
use super::ring::{LAYOUT, Producer};
use super::wake::WakeUp;
use crate::lease::directory::{Directory, ScopedAddr};
use crate::lease::message;
use crate::sys::unix::UnixSocket;
use crate::testing::{in_namespace, move_to, send_all};
use crate::{Backend, SendStatus, UdpBackend, UdpConfig};

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn open(address: &str) -> Shm<UdpBackend> {
    let udp = UdpBackend::open(&UdpConfig::new("lo", [ip(address)])).unwrap();
    Shm::new(udp, &[ip(address)]).unwrap()
}

fn block(backend: &impl Backend) -> u8 {
    backend.capabilities().qpn_block.unwrap()
}

/// Sends `count` packets with numbers from 0 to a QP of this block.
fn send(from: &mut impl Backend, src: &str, dst: &str, block: u8, count: u32) {
    send_all(from, &mut packets(from, src, dst, block, count));
}

fn packets(from: &impl Backend, src: &str, dst: &str, block: u8, count: u32) -> TxBatch {
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
    batch
}

fn readable(backend: &impl Backend, seconds: i64) -> bool {
    let mut fds = Vec::new();
    backend.for_each_fd(&mut |fd| fds.push(fd.clone()));
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

/// More packets than fit into a ring, as bursts of the same size: where one does not fit, none after it
/// does.
const OVERFLOW: u32 = 48 * (65_507 / 1040);

#[test]
fn a_receiver_that_is_stopped_loses_packets_and_holds_nobody_up() {
    in_namespace("", || {
        let (mut from, mut slow, mut other) =
            (open("127.0.0.1"), open("127.0.0.2"), open("127.0.0.3"));
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW);
        assert!(from.counters().tx_no_buffer > 0);
        // It was waited for once, and is no more.
        from.receiver_timeout = FOREVER;
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 50);
        send(&mut from, "127.0.0.1", "127.0.0.3", 1, 50);
        receive(&mut other, 50);
        let went = u32::try_from(from.counters().tx_packets - 50).unwrap();
        receive(&mut slow, went);
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 50);
        receive(&mut slow, 50);
    });
}

/// Longer than any test waits.
const FOREVER: Duration = Duration::from_secs(3600);

#[test]
fn a_full_ring_is_waited_for_by_the_caller_and_not_in_send() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        from.receiver_timeout = FOREVER;
        let mut batches: Vec<_> =
            (0..5).map(|_| packets(&from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW / 5)).collect();
        let status = batches.iter_mut().map(|batch| from.send(batch).unwrap());
        let status: Vec<_> = status.take_while(|status| *status == SendStatus::Done).collect();
        assert!(status.len() < 5, "a ring of two MiB has taken all");
        assert_eq!(from.counters().tx_no_buffer, 0);
        assert!(readable(&from, 10), "it is to be tried again");
        assert_eq!(from.send(&mut batches[status.len()]).unwrap(), SendStatus::Congested);
        // Once there is room it goes on.
        let mut got = 0;
        while got < from.counters().tx_packets {
            got += to.receive(4096, &mut |_| {}).unwrap() as u64;
        }
        for batch in &mut batches[status.len()..] {
            assert_eq!(from.send(batch).unwrap(), SendStatus::Done);
        }
        assert!(!readable(&from, 0), "there is nothing to try again");
        assert_eq!(from.counters().tx_no_buffer, 0);
    });
}

#[test]
fn a_receiver_that_takes_a_record_now_and_then_counts_as_stopped() {
    in_namespace("", || {
        let (mut from, mut slow) = (open("127.0.0.1"), open("127.0.0.2"));
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW);
        from.receiver_timeout = FOREVER;
        // A little less than what counts as progress; of less than that the sender is not told.
        for _ in 0..3 {
            while slow.receive(1, &mut |_| {}).unwrap() == 0 {}
        }
        let went = from.counters().tx_packets;
        let mut batch = packets(&from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW / 10);
        assert_eq!(from.send(&mut batch).unwrap(), SendStatus::Done, "nothing is waited for");
        assert!(from.counters().tx_packets > went, "the room that it made is used");
        // Until half of the ring is empty.
        while slow.receive(4096, &mut |_| {}).unwrap() > 0 {}
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW / 10);
        let lost = from.counters().tx_no_buffer;
        assert!(lost > 0);
        let mut batch = packets(&from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW);
        assert_eq!(from.send(&mut batch).unwrap(), SendStatus::Congested);
        assert_eq!(from.counters().tx_no_buffer, lost);
    });
}

#[test]
fn a_receiver_is_given_time_to_make_room() {
    const COUNT: u32 = 4 * OVERFLOW;
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        // A machine may be that busy.
        from.receiver_timeout = FOREVER;
        std::thread::scope(|scope| {
            scope.spawn(|| receive(&mut to, COUNT));
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, COUNT);
        });
        assert_eq!(from.counters().tx_no_buffer, 0);
    });
}

/// Where the first process on an address is offered shared memory.
fn memory(address: &str) -> PathBuf {
    Directory::open().memory(&ScopedAddr::new(ip(address), 0), 1).unwrap()
}

#[test]
fn callers_that_talk_nonsense_do_no_harm() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let name = memory("127.0.0.2");
        // A right offer, but for its version.
        let other = UnixSocket::connect(&name).unwrap();
        let (_ring, memory) = Producer::create().unwrap();
        let wake = WakeUp::new().unwrap();
        other.send(b"rxm\x01", &[memory.as_fd(), wake.as_fd()]).unwrap();
        to.look_around();
        assert!(to.incoming.is_empty() && to.callers.is_empty());
        let callers: Vec<_> = (0..20).map(|_| UnixSocket::connect(&name).unwrap()).collect();
        for (i, caller) in callers.iter().enumerate() {
            let null = std::fs::File::open("/dev/null").unwrap();
            let fds = [std::os::fd::AsFd::as_fd(&null); 2];
            let words: [&[u8]; 4] = [b"", &OFFER, b"rxm\x01", b"nonsense that is long enough"];
            caller.send(words[i % 4], &fds[..i % 3]).unwrap();
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
fn offers_of_rings_without_number_are_refused_and_others_use_the_network() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let name = memory("127.0.0.2");
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
        let offer = || {
            let line = UnixSocket::connect(&name).ok()?;
            let (_ring, memory) = Producer::create().unwrap();
            let wake = WakeUp::new().unwrap();
            line.send(&OFFER, &[memory.as_fd(), wake.as_fd()]).unwrap();
            Some(line)
        };
        let mut lines = Vec::new();
        for _ in 0..super::MAX_INCOMING + 20 {
            lines.extend(offer());
            to.look_around();
        }
        assert_eq!((lines.len(), to.incoming.len()), (super::MAX_INCOMING, super::MAX_INCOMING));
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
        receive(&mut to, 20);
        // The others have gone, and in time there is room for new ones.
        drop(lines);
        for _ in 0..super::DEAF {
            to.look_around();
        }
        assert!(to.incoming.is_empty() && offer().is_some());
    });
}

#[test]
fn who_connects_and_says_nothing_is_not_waited_for_without_end() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = memory("127.0.0.2");
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
fn a_wake_up_that_others_hold_open_is_watched_no_longer_than_its_ring() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = memory("127.0.0.2");
        let line = UnixSocket::connect(&name).unwrap();
        let (_ring, memory) = Producer::create().unwrap();
        let wake = WakeUp::new().unwrap();
        line.send(&OFFER, &[memory.as_fd(), wake.as_fd()]).unwrap();
        to.look_around();
        assert_eq!(to.incoming.len(), 1);
        drop(line);
        to.look_around();
        assert!(to.incoming.is_empty());
        wake.signal().unwrap();
        assert!(!readable(&to, 0));
    });
}

#[test]
fn a_wake_up_that_could_block_is_refused() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = memory("127.0.0.2");
        let blocking = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (pipe, _other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        for wake in [blocking, pipe] {
            let line = UnixSocket::connect(&name).unwrap();
            let (_ring, memory) = Producer::create().unwrap();
            line.send(&OFFER, &[memory.as_fd(), wake.as_fd()]).unwrap();
            to.look_around();
            assert!(to.incoming.is_empty() && to.callers.is_empty());
        }
    });
}

#[test]
fn a_wake_up_that_the_other_end_makes_blocking_blocks_nobody() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = memory("127.0.0.2");
        let line = UnixSocket::connect(&name).unwrap();
        let (mut ring, memory) = Producer::create().unwrap();
        let wake = WakeUp::new().unwrap();
        line.send(&OFFER, &[memory.as_fd(), wake.as_fd()]).unwrap();
        to.look_around();
        // The flag belongs to the open file description, which both ends have.
        rustix::fs::fcntl_setfl(&wake, rustix::fs::OFlags::empty()).unwrap();
        to.watch(true);
        // It claims to have signalled, and has not.
        assert!(ring.must_wake());
        for _ in 0..10 {
            to.receive(64, &mut |_| {}).unwrap();
        }
        ring.push(1, [&[0; 8], &[]]).unwrap();
        to.receive(64, &mut |_| {}).unwrap();
        assert!(to.incoming.is_empty(), "what it put in is no frame");
    });
}

#[test]
fn a_sender_gives_up_a_ring_whose_wake_up_could_block_it() {
    in_namespace("", || {
        let mut from = open("127.0.0.1");
        let mut to = open("127.0.0.2");
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 10);
        receive(&mut to, 10);
        to.watch(true);
        to.incoming[0].spoil_wake();
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 10);
        assert!(matches!(from.routes.values().next(), Some(super::Route::Wire(_))));
        // What was in the ring is not lost, and all else goes another way.
        to.watch(false);
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 10);
        let mut got = 0;
        while got < 20 {
            assert!(readable(&to, 10) || got < 20);
            got += to.receive(64, &mut |_| {}).unwrap();
        }
        assert_eq!(over_the_wire(&to), 10);
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
        move_to(&mut a, &[ip("127.0.0.1"), ip("127.0.0.2")]).unwrap_err();
        let mut from = open("127.0.0.9");
        send(&mut from, "127.0.0.9", "127.0.0.2", 1, 3);
        receive(&mut holder, 3);
        send(&mut a, "127.0.0.1", "127.0.0.2", 1, 3);
        receive(&mut holder, 3);
    });
}

#[test]
fn looks_are_rarer_while_they_find_nothing_and_count_packets_too() {
    let mut interval = super::Interval::new([4, 16]);
    let mut calls_to_look = |packets, found| {
        let calls = (1..100).find(|_| interval.is_over(packets));
        interval.begin(found);
        calls
    };
    let lengths = [0; 5].map(|packets| calls_to_look(packets, false));
    assert_eq!(lengths, [4, 8, 16, 16, 16].map(Some));
    assert_eq!((calls_to_look(7, true), calls_to_look(0, true)), (Some(2), Some(4)));
}

/// A ring that always has something keeps nobody on the wire waiting.
#[test]
fn a_busy_ring_does_not_starve_the_wire() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let mut elsewhere = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.3")])).unwrap();
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
        receive(&mut to, 1);
        for _ in 0..10 {
            // Long enough for the interval to grow.
            for _ in 0..200 {
                send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
                to.receive(64, &mut |_| {}).unwrap();
            }
            let before = over_the_wire(&to);
            send(&mut elsewhere, "127.0.0.3", "127.0.0.2", 1, 1);
            let mut calls = 0;
            while over_the_wire(&to) == before {
                send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
                to.receive(64, &mut |_| {}).unwrap();
                calls += 1;
                assert!(calls <= 256, "it waits");
            }
        }
    });
}

/// Once a sender is gone its ring ends, even if it has left one that goes around for ever.
#[test]
fn what_a_sender_leaves_behind_ends() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let line = UnixSocket::connect(&memory("127.0.0.2")).unwrap();
        let (mut ring, memory) = Producer::create().unwrap();
        let wake = WakeUp::new().unwrap();
        line.send(&OFFER, &[memory.as_fd(), wake.as_fd()]).unwrap();
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        let frame = message::emit(&Frame::single(net, &[0]));
        let mut count = 0;
        while ring.push(FRAME, [&frame, &[0]]).unwrap() {
            count += 1;
        }
        // In the place behind the last one, where nothing is yet, one more.
        let [.., records] = LAYOUT;
        let mut record = [0; 128];
        rustix::io::pread(&memory, &mut record, records as u64).unwrap();
        rustix::io::pwrite(&memory, &record, (records + count * record.len()) as u64).unwrap();
        to.look_around();
        drop(line);
        let mut taken = 0;
        while !to.incoming.is_empty() {
            taken += to.receive(64, &mut |_| {}).unwrap();
            assert!(taken < 3 * count, "it goes on for ever");
        }
        assert!(taken > count, "all that it held was taken");
    });
}

/// Sends a packet by itself, with this payload; BTH and addresses as those of [`packets`].
fn send_direct(from: &mut Shm<UdpBackend>, net: &NetHeader, payload: &[u8]) -> Placed {
    let mut bth = [0; 12];
    bth[5] = 1;
    bth[1] = u8::try_from(payload.len().wrapping_neg() & 3).unwrap() << 4;
    let direct = Backend::direct(from).unwrap();
    direct.send(net, &bth, &Source::Bytes(payload)).unwrap()
}

#[test]
fn packets_sent_at_once_arrive_in_order_with_those_of_batches() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        let other = NetHeader { tos: 0x68, src_port: 7, ..net };
        let mut expected = Vec::new();
        for round in 0..2000_usize {
            let payload: Vec<u8> =
                (0..round * 7 % 4097).map(|i| (i + round).to_le_bytes()[0]).collect();
            let net = if round % 50 < 30 { net } else { other };
            if round % 9 == 8 {
                let mut batch = TxBatch::new(from.capabilities().tx);
                batch.push_to(net, Qpn::from_wire(0x01_0000), payload.len() + 20, |_, buf| {
                    buf.extend([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
                    buf.extend(&payload);
                    buf.extend([9; 8]);
                });
                assert_eq!(from.send(&mut batch).unwrap(), SendStatus::Done);
            } else {
                assert_eq!(send_direct(&mut from, &net, &payload), Placed::Sent);
            }
            expected.push((net.src_port, net.tos, payload));
            if round % 100 == 99 {
                let mut nothing = TxBatch::new(from.capabilities().tx);
                assert_eq!(from.send(&mut nothing).unwrap(), SendStatus::Done);
                let mut got = Vec::new();
                to.watch(true);
                while got.len() < expected.len() {
                    assert!(readable(&to, 10), "{} packets", got.len());
                    let mut buf = Vec::new();
                    to.receive(64, &mut |frame| {
                        let apart = !frame.apart.is_empty();
                        frame.for_each_whole(&mut buf, &mut |whole| {
                            let bytes = whole.payload;
                            let end = bytes.len()
                                - if apart { 4 + usize::from(bytes[1] >> 4) } else { 8 };
                            let right = icrc::check(&whole.net, bytes).is_ok();
                            assert_eq!(right, apart, "what was on no wire gets an ICRC");
                            got.push((whole.net.src_port, whole.net.tos, bytes[12..end].to_vec()));
                        });
                    })
                    .unwrap();
                }
                to.watch(false);
                assert!(got == expected);
                expected.clear();
            }
        }
        assert_eq!((over_the_wire(&to), from.counters().tx_packets), (0, 2000));
        assert_eq!(to.counters().rx_packets, 2000);
    });
}

#[test]
fn who_is_not_reached_through_memory_gets_nothing_at_once() {
    in_namespace("", || {
        let mut from = open("127.0.0.1");
        let to = |from: &str, to: &str| NetHeader::outgoing(ip(from), ip(to), UDP_PORT);
        for net in [
            to("127.0.0.1", "127.0.0.9"),
            to("127.0.0.1", "127.0.0.1"),
            to("127.0.0.3", "127.0.0.1"),
        ] {
            assert_eq!(send_direct(&mut from, &net, &[1]), Placed::Elsewhere, "{net:?}");
        }
        let _to = open("127.0.0.2");
        let net = to("127.0.0.1", "127.0.0.2");
        while send_direct(&mut from, &net, &[0; 4096]) == Placed::Sent {}
        assert_eq!(send_direct(&mut from, &net, &[0; 4096]), Placed::NoRoom);
    });
}

/// What another process may write in place of a packet: each is refused, and its ring given up.
#[test]
fn records_that_lie_about_their_packets_are_refused() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        let header = message::emit_header(&net, 1);
        let whole = [&header[..], &[0; 12 + 8]].concat();
        // Kind, flags (a header, aligned), bytes of the packet's headers.
        let tag = |kind: u32, flags: u32, head: u32| kind | flags << 8 | head << 16;
        let lies: [(u32, &[u8]); 9] = [
            (tag(2, 0, 12), &whole[60..]), // no header came before
            (tag(2, 1, 12), &whole[..59]), // a part of a header
            (tag(2, 1, 12), &whole[1..]),  // no header
            (tag(2, 1, 12), &whole[..71]), // a part of a BTH
            (tag(2, 3, 12), &whole),       // the payload would begin behind the end
            (tag(2, 1, 45), &[0; 200]),    // longer than any headers
            (tag(2, 4, 12), &whole),       // an unknown flag
            (tag(2, 1, 12) | 1 << 24, &whole),
            (tag(3, 1, 12), &whole),
        ];
        for (tag, bytes) in lies {
            let line = UnixSocket::connect(&memory("127.0.0.2")).unwrap();
            let (mut ring, memory) = Producer::create().unwrap();
            let wake = WakeUp::new().unwrap();
            line.send(&OFFER, &[memory.as_fd(), wake.as_fd()]).unwrap();
            to.look_around();
            assert_eq!(to.incoming.len(), 1);
            ring.push(tag, [bytes, &[]]).unwrap();
            let mut frames = 0;
            to.receive(64, &mut |_| frames += 1).unwrap();
            assert_eq!((frames, to.incoming.len()), (0, 0), "{tag:#x}");
        }
    });
}

/// Two ends that poll, and at times sleep: no packet stays in a ring unseen.
#[test]
fn a_ping_pong_of_packets_sent_at_once_never_stops() {
    const ROUNDS: u32 = 50_000;
    in_namespace("", || {
        let play = |own: &str, peer: &str, first: bool| {
            let mut backend = open(own);
            let net = NetHeader::outgoing(ip(own), ip(peer), UDP_PORT);
            let mut nothing = TxBatch::new(backend.capabilities().tx);
            while send_direct(&mut backend, &net, b"begin") != Placed::Sent {
                backend.send(&mut nothing).unwrap();
            }
            backend.send(&mut nothing).unwrap();
            let mut next = 0_u32;
            let mut begun = false;
            let mut idle = 0_u32;
            let mut turn = first;
            while next < ROUNDS {
                if turn && begun {
                    assert_eq!(send_direct(&mut backend, &net, &next.to_be_bytes()), Placed::Sent);
                    backend.send(&mut nothing).unwrap();
                    next += 1;
                    turn = false;
                    idle = 0;
                }
                if next.is_multiple_of(100) && idle == 0 {
                    backend.watch(true);
                } else if next % 100 == 1 {
                    backend.watch(false);
                }
                let mut got = 0;
                backend
                    .receive(64, &mut |frame| {
                        for packet in frame.apart {
                            let mut bytes = [0; 4];
                            got += 1;
                            if packet.payload.len() == 5 {
                                begun = true;
                                continue;
                            }
                            packet.payload.read(&mut bytes).unwrap();
                            let expected = if first { next - 1 } else { next };
                            assert_eq!(u32::from_be_bytes(bytes), expected, "{own}");
                            next += u32::from(!first);
                            turn = true;
                        }
                    })
                    .unwrap();
                idle = if got > 0 { 0 } else { idle + 1 };
                if !first && turn {
                    let answer = (next - 1).to_be_bytes();
                    assert_eq!(send_direct(&mut backend, &net, &answer), Placed::Sent);
                    backend.send(&mut nothing).unwrap();
                    turn = false;
                }
                assert!(idle < 20_000_000, "{own} waits for ever at {next}");
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| play("127.0.0.1", "127.0.0.2", true));
            scope.spawn(|| play("127.0.0.2", "127.0.0.1", false));
        });
    });
}

/// A skip to the start of the ring without a record behind it keeps nobody awake.
#[test]
fn a_skip_alone_is_nothing_to_receive() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let line = UnixSocket::connect(&memory("127.0.0.2")).unwrap();
        let (mut ring, memory) = Producer::create().unwrap();
        let wake = WakeUp::new().unwrap();
        line.send(&OFFER, &[memory.as_fd(), wake.as_fd()]).unwrap();
        to.look_around();
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        let header = message::emit(&Frame { segment: 60_000, ..Frame::single(net, &[0]) });
        // Far enough for an empty ring to begin anew, which a record that is given up leaves half done.
        for _ in 0..5 {
            assert!(ring.push(FRAME, [&header, &[0; 60_000]]).unwrap());
            to.receive(64, &mut |_| {}).unwrap();
        }
        assert!(ring.reserve(100).unwrap().is_some());
        to.watch(true);
        for _ in 0..10 {
            assert_eq!(to.receive(64, &mut |_| {}).unwrap(), 0);
        }
        assert!(!readable(&to, 0));
    });
}
