use std::sync::Arc;

use parking_lot::Mutex;
use rxe_core::wire::TxLimits;

use super::*;
use crate::wrappers::fault::{FaultAction, FaultAmount};

const GIGABITS: u64 = 10;

fn address(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, u8::try_from(host).unwrap() + 1])
}

fn switched(hosts: usize, rules: &[FaultRule]) -> SwitchedNetwork {
    let mut switched = SwitchedNetwork::new(1);
    switched.set_rules(rules);
    for host in 0..hosts {
        assert_eq!(switched.attach(&[address(host)], &LinkConfig::default()), host);
    }
    switched
}

/// Returns a batch of `count` ECN-capable packets of `size` bytes on the link, each with its
/// number.
fn batch(from: usize, to: usize, count: u32, size: usize) -> TxBatch {
    let net = NetHeader { tos: 2, ..NetHeader::outgoing(address(from), address(to), UDP_PORT) };
    let mut batch = TxBatch::new(TxLimits { burst_segments: 1, ..TxLimits::default() });
    for number in 0..count {
        let len = size - 66;
        batch.push(net, len, |_, buf| {
            buf.extend_from_slice(&number.to_be_bytes());
            buf.resize(buf.len() + len - 4, 0);
        });
    }
    batch
}

/// Runs the network to its end. Returns each packet's arrival time in nanoseconds, host and number.
fn run(switched: &mut SwitchedNetwork) -> Vec<(u64, usize, u32)> {
    let mut arrived = Vec::new();
    while let Some(now) = switched.next_event() {
        while let Some(host) = switched.advance(now) {
            while let Some(delivery) = switched.receive(now, host) {
                let number = delivery.frame().payload.first_chunk().unwrap();
                arrived.push((delivery.at().as_nanos(), host, u32::from_be_bytes(*number)));
            }
        }
    }
    arrived
}

#[test]
fn packets_take_the_time_of_both_links() {
    let mut switched = switched(2, &[]);
    assert_eq!(switched.send(Time::ZERO, 0, &mut batch(0, 1, 3, 1000)), SendStatus::Done);
    let arrived = run(&mut switched);
    // Each link takes 800 ns to send 1,000 bytes, and 1 µs of delay. A host's packets start up to
    // 51 ns late.
    for (number, &(at, host, which)) in (0..).zip(&arrived) {
        let earliest = 2 * 1800 + 800 * u64::from(which);
        assert_eq!((host, which), (1, number));
        assert!((earliest..earliest + 52 * 4).contains(&at), "packet {number} at {at}");
    }
    assert_eq!(arrived.len(), 3);
}

#[test]
fn a_host_gives_its_link_no_more_than_some_packets_ahead() {
    let mut switched = switched(2, &[]);
    let mut batch = batch(0, 1, 100, 1000);
    let mut now = Time::ZERO;
    let mut rounds = 0;
    while switched.send(now, 0, &mut batch) == SendStatus::Blocked {
        assert!(!batch.is_empty());
        now = switched.idle_at(0);
        rounds += 1;
    }
    // 17 or 18 packets of 1,000 bytes are more than 16 KiB.
    assert!((5..=6).contains(&rounds), "{rounds}");
    let arrived = run(&mut switched);
    assert_eq!(arrived.len(), 100);
    assert!(arrived.iter().map(|(.., number)| *number).eq(0..100), "in order");
    assert!(arrived.last().unwrap().0 >= 100_000 * 8 / GIGABITS, "at the rate of the link");
}

#[test]
fn the_queue_of_the_switch_marks_and_drops() {
    // 30 hosts send 20 packets each to one: 600 kB into a queue of 300 kB.
    let mut switched = switched(31, &[]);
    for host in 1..31 {
        let mut batch = batch(host, 0, 20, 1000);
        while switched.send(switched.idle_at(host), host, &mut batch) == SendStatus::Blocked {}
    }
    let arrived = run(&mut switched).len() as u64;
    let counters = switched.counters();
    assert_eq!(arrived + counters.overflowed, 600);
    assert!(counters.overflowed > 200 && counters.marked > 100, "{counters:?}");
}

#[test]
fn faults_may_be_those_of_one_path() {
    let mut switched = switched(3, &[]);
    let mut drop = FaultRule::new(FaultAction::Drop, FaultAmount::ALL);
    drop.only.destinations.push(address(1));
    switched.set_rules(&[drop]);
    for (from, to) in [(0, 1), (1, 0), (0, 2)] {
        switched.send(Time::ZERO, from, &mut batch(from, to, 1, 100));
    }
    let hosts: Vec<_> = run(&mut switched).into_iter().map(|(_, host, _)| host).collect();
    assert_eq!(hosts, [0, 2]);
    switched.fabric().cut_one_way(address(1), address(0));
    for (from, to) in [(1, 0), (2, 0)] {
        switched.send(Time::ZERO, from, &mut batch(from, to, 1, 100));
    }
    assert_eq!((run(&mut switched).len(), switched.counters().fabric.cut), (1, 1));
    switched.fabric().heal_all();
    switched.set_rules(&[]);
    for (from, to) in [(0, 1), (1, 0)] {
        switched.send(Time::ZERO, from, &mut batch(from, to, 1, 100));
    }
    assert_eq!(run(&mut switched).len(), 2, "all is as it was");
}

#[test]
fn who_is_detached_sends_and_receives_nothing() {
    let mut switched = switched(2, &[]);
    switched.send(Time::ZERO, 0, &mut batch(0, 1, 1, 100));
    switched.detach(1);
    switched.send(Time::ZERO, 1, &mut batch(1, 0, 1, 100));
    assert_eq!((run(&mut switched).len(), switched.counters().unreachable), (0, 2));
}

#[test]
fn the_fingerprint_tells_runs_apart() {
    let fingerprint = |size, at| {
        let mut switched = switched(2, &[]);
        switched.send(Time::from_nanos(at), 0, &mut batch(0, 1, 2, size));
        run(&mut switched);
        switched.fingerprint()
    };
    assert_eq!(fingerprint(100, 0), fingerprint(100, 0));
    assert_ne!(fingerprint(100, 0), fingerprint(101, 0));
    assert_ne!(fingerprint(100, 0), fingerprint(100, 1));
}

/// A file whose contents the test can read, or a full disk.
#[derive(Clone, Default)]
struct Disk {
    written: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = self.written.lock();
        if written.len() + bytes.len() > self.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_capture_has_each_packet_and_tells_when_the_disk_is_full() {
    let capture = |room| {
        let mut switched = switched(2, &[FaultRule::new(FaultAction::Drop, FaultAmount::ALL)]);
        let disk = Disk { room, ..Disk::default() };
        switched.capture(Box::new(disk.clone())).unwrap();
        switched.send(Time::ZERO, 0, &mut batch(0, 1, 3, 500));
        let ended = switched.end_capture();
        (ended.map_err(|e| e.kind()), disk.written.lock().len())
    };
    let (ended, len) = capture(10_000);
    assert!(ended.is_ok() && len > 3 * 434, "{len}");
    assert_eq!(capture(600).0, Err(io::ErrorKind::StorageFull));
}
