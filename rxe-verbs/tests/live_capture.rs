//! Live captures of a device's packets by another process. Here the process captures its own
//! devices.

mod common;

use std::process;
use std::time::Instant;

use common::*;
use parking_lot::Mutex;
use rxe_core::wire::frame::parse_ethernet;
use rxe_core::wire::{Packet, icrc};
use rxe_lab::capture::{Blocks, Direction};
use rxe_verbs::observe::{CapturePiece, DeviceCapture, Silence};
use rxe_verbs::*;

/// Serializes the tests, because a capture takes all devices of a process.
static ONE: Mutex<()> = Mutex::new(());

/// The captured packets of a device.
#[derive(Default)]
struct Taken {
    sent: u64,
    received: u64,
    dropped: u64,
    payload: Vec<u8>,
    comments: Vec<String>,
}

/// Waits until the capture has something to read.
fn wait(capture: &DeviceCapture) {
    assert!(readable(capture, TIMEOUT), "nothing comes");
}

/// Starts captures of all open devices, and waits until they have begun.
fn begin() -> Vec<DeviceCapture> {
    let mut all = DeviceCapture::begin(Some(process::id()), &[]);
    all.retain_mut(|capture| {
        wait(capture);
        // Further shards have sockets too, which belong to no device.
        let piece = capture.receive().unwrap();
        assert!(
            matches!(piece, CapturePiece::Begun | CapturePiece::Broken(Silence::HungUp)),
            "{piece:?}"
        );
        piece == CapturePiece::Begun
    });
    assert!(all.iter().all(|capture| capture.device("name") == Some("rxe_lo")));
    all
}

/// Ends a capture and returns all that it has captured.
fn end(capture: &mut DeviceCapture) -> Taken {
    capture.end();
    let mut taken = Taken::default();
    loop {
        wait(capture);
        match capture.receive() {
            None => {}
            Some(CapturePiece::Blocks(bytes)) => taken.add(bytes),
            Some(CapturePiece::Ended(dropped)) => {
                taken.dropped = dropped;
                return taken;
            }
            piece => panic!("{piece:?}"),
        }
    }
}

impl Taken {
    fn add(&mut self, bytes: &[u8]) {
        let mut blocks = Blocks::new(bytes);
        while let Some(record) = blocks.next(1).unwrap() {
            let (_, datagram) = parse_ethernet(record.bytes).unwrap();
            let frame = datagram.frame().unwrap();
            assert_eq!(icrc::check(&frame.net, frame.payload), Ok(()));
            let packet = Packet::parse(frame.payload).unwrap();
            self.payload.extend_from_slice(packet.payload());
            match record.direction.unwrap() {
                Direction::Outbound => self.sent += 1,
                Direction::Inbound => self.received += 1,
            }
            self.comments.extend(record.comments);
        }
    }

    fn all(&self) -> u64 {
        self.sent + self.received + self.dropped
    }
}

/// Returns two connected devices without retries. So a late response causes no retransmission that
/// would be captured twice.
fn pair_without_retries() -> (Side, Side) {
    let (a, b) = (Side::new(open(address())), Side::new(open(address())));
    connect_without_retries(&a.qp, &b.qp);
    (a, b)
}

fn counted(device: &Device) -> (u64, u64) {
    let counters = device.counters();
    (counters.sent_pkts, counters.rcvd_pkts)
}

/// Writes `len` bytes into the peer's memory, `times` times.
fn write(from: &Side, to: &Side, len: usize, times: u64) {
    let (source, target) = (from.region(len), to.region(len));
    source.write_at(0, &pattern(len, 7)).unwrap();
    for n in 0..times {
        from.qp.write(n, &[source.slice(..)], target.remote(0)).post().unwrap();
        from.ok();
    }
}

#[test]
fn from_the_middle_of_a_conversation_every_packet_is_captured_whole() {
    let _one = ONE.lock();
    let (a, b) = pair_without_retries();
    write(&a, &b, 10_000, 3);
    let mut captures = begin();
    let before = [counted(&a.device), counted(&b.device)];
    write(&a, &b, 100_000, 2);
    let after = [counted(&a.device), counted(&b.device)];
    let mut all: Vec<_> = captures.iter_mut().map(end).collect();
    // The writer's device, then the other.
    all.sort_by_key(|taken| taken.received);
    for (taken, (before, after)) in all.iter().zip(before.into_iter().zip(after)) {
        assert_eq!(taken.dropped, 0);
        assert_eq!(taken.sent, after.0 - before.0);
        assert_eq!(taken.received, after.1 - before.1);
        assert_eq!(taken.payload, pattern(100_000, 7).repeat(2));
    }
    assert_eq!(all.len(), 2);
    // The devices work without captures too.
    write(&a, &b, 10_000, 3);
}

#[test]
fn a_reader_that_does_not_read_loses_packets_and_the_program_none() {
    let _one = ONE.lock();
    let (a, b) = pair();
    let mut captures = begin();
    let before = [counted(&a.device), counted(&b.device)];
    write(&a, &b, 1 << 20, 40);
    let after = [counted(&a.device), counted(&b.device)];
    // On a busy machine, packets may be retransmitted because the receiver did not read them in
    // time.
    let (net, timeouts) = (a.device.net_counters(), a.device.counters().ack_timeout);
    let explained = a.device.explain();
    let late = net.tx_no_buffer > 0 || timeouts > 0;
    assert!(late || explained.is_empty(), "nothing is sent again: {explained:?} {net:?}");
    let mut passed: Vec<_> = before
        .into_iter()
        .zip(after)
        .map(|(before, after)| after.0 - before.0 + after.1 - before.1)
        .collect();
    let all: Vec<_> = captures.iter_mut().map(end).collect();
    assert!(all.iter().all(|taken| taken.dropped > 0 && taken.sent + taken.received > 0));
    let mut captured: Vec<_> = all.iter().map(Taken::all).collect();
    passed.sort_unstable();
    captured.sort_unstable();
    assert_eq!(captured, passed);
}

#[test]
fn a_reader_that_is_gone_is_let_go_and_another_one_may_come() {
    let _one = ONE.lock();
    let (a, b) = pair_without_retries();
    let captures = begin();
    for mut other in DeviceCapture::begin(Some(process::id()), &[]) {
        wait(&other);
        assert_eq!(other.receive(), Some(CapturePiece::Taken));
    }
    write(&a, &b, 50_000, 1);
    drop(captures);
    write(&a, &b, 50_000, 20);
    let began = Instant::now();
    let mut again = begin();
    assert_eq!(again.len(), 2, "after {:?}", began.elapsed());
    write(&a, &b, 50_000, 1);
    for taken in again.iter_mut().map(end) {
        assert_eq!((taken.payload.len(), taken.dropped), (50_000, 0));
    }
}

#[test]
fn a_shard_that_is_opened_meanwhile_is_captured_too() {
    let _one = ONE.lock();
    let a = Side::new(Device::options("lo").address(address()).shards(2).open().unwrap());
    let mut captures = begin();
    let cq = a.device.create_cq(16).unwrap();
    let b = a.pd.qp(&cq).build().unwrap();
    assert_eq!(a.device.shard_count(), 2);
    connect_without_retries(&a.qp, &b);
    let target = a.region(5000);
    b.write_bytes(1, &[7; 50], target.remote(0)).post().unwrap();
    assert_eq!(cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
    let counters = a.device.counters();
    let [capture] = &mut captures[..] else { panic!("one device") };
    let taken = end(capture);
    assert_eq!((taken.sent, taken.received), (counters.sent_pkts, counters.rcvd_pkts));
    assert_eq!(taken.payload.len(), 100, "sent and received");
}

#[test]
fn the_packet_that_a_comment_is_about_has_it() {
    let _one = ONE.lock();
    let (a, b) = pair_without_retries();
    let mut captures = begin();
    let small = b.region(8);
    a.qp.write_bytes(1, &[0; 64], small.remote(0)).post().unwrap();
    assert_eq!(a.done().status, Status::RemoteAccess);
    let all: Vec<_> = captures.iter_mut().map(end).collect();
    let comments: Vec<_> = all.iter().flat_map(|taken| &taken.comments).collect();
    assert!(comments.iter().any(|text| text.contains("NAKed")), "{comments:?}");
}
