use rxe_sys::SharedFd;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{FileType, Mode};
use rxe_core::engine::{Event, FailedRequest, ResponderError};
use rxe_core::types::{CompletionOp, Psn, Qpn, Status};
use rxe_core::wire::frame::parse_ethernet;
use rxe_core::wire::{
    Bth, DropReason, Ext, Frame, IpId, NakCode, NetHeader, Opcode, Packet, TxBatch, TxLimits, emit,
    icrc,
};
use rxe_lab::capture::{Capture, Direction as Seen};

use super::{Direction, PacketBlock, Pcap, PcapOptions, PcapStatus, PcapWriter, missing_before};
use crate::backend::{Backend, Capabilities, SendStatus};
use crate::counters::Counters;
use crate::error::NetError;
use crate::fabric::{FabricPort, Hub};
use crate::testing::{receive_packets, skipped};
use rxe_sys::NonBlocking;

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rxe-net-{name}-{}.pcapng", std::process::id()))
}

/// Returns two ports of one network that hides IPv4 IDs as a UDP socket does.
fn ports() -> (FabricPort, FabricPort) {
    let hub = Hub::new(1, &[]);
    hub.like_udp();
    let a = hub.port(&[ip("10.0.0.1"), ip("fe80::1")]).unwrap();
    (a, hub.port(&[ip("10.0.0.2"), ip("fe80::2")]).unwrap())
}

/// Returns a batch of acknowledgements and SENDs with these PSNs.
fn batch(src: &str, dst: &str, psns: std::ops::Range<u32>) -> TxBatch {
    let mut batch = TxBatch::new(TxLimits::default());
    let net = NetHeader::outgoing(ip(src), ip(dst), 4791);
    for psn in psns {
        let qpn = Qpn::new(0x11).unwrap();
        let bth = Bth::new(Opcode::RC_SEND_MIDDLE, qpn, Psn::new(psn));
        let len = emit::len(bth.opcode, 256);
        batch.push(net, len, |net, buf| {
            emit::packet_from(net, buf, &bth, &Ext::default(), &[0x5a; 256]);
        });
    }
    batch
}

#[test]
fn what_passes_is_captured_whole_with_remarks() {
    let path = scratch("whole");
    let (mut a, b) = ports();
    let mut b = Pcap::new(b, &PcapOptions::new(&path)).unwrap();
    let handle = b.handle();
    for (near, far) in [("10.0.0.2", "10.0.0.1"), ("fe80::2", "fe80::1")] {
        a.send(&mut batch(far, near, 0..10)).unwrap();
        let mut frames = 0;
        while frames == 0 {
            frames = b
                .receive(100, &mut |_| handle.comment_received(Some(Psn::new(3)), "inside"))
                .unwrap();
        }
        handle.comment_received(Some(Psn::new(4)), "after");
        handle.comment_received(None, "frame");
        handle.comment_sending(Psn::new(101), "NAK sent because");
        b.send(&mut batch(near, far, 100..103)).unwrap();
    }
    drop(b);
    assert_eq!(handle.status().packets, 26);

    let capture = Capture::open(&path).unwrap();
    assert_eq!(capture.frames.len(), 26);
    assert!(capture.error.is_none(), "{:?}", capture.error);
    let mut last = Duration::ZERO;
    for (i, packet) in capture.frames.iter().enumerate() {
        let at = packet.at.unwrap();
        assert!(at >= last);
        last = at;
        let (_, datagram) = parse_ethernet(&packet.frame).unwrap();
        icrc::check(&datagram.net, datagram.payload).unwrap();
        assert_ne!(datagram.net.id, IpId::Hidden);
        let psn = Packet::parse(datagram.payload).unwrap().psn().value();
        let (i, inbound) = (u32::try_from(i).unwrap() % 13, i % 13 < 10);
        assert_eq!(psn, if inbound { i } else { 90 + i });
        let expected = if inbound { Seen::Inbound } else { Seen::Outbound };
        assert_eq!(packet.direction, Some(expected));
        let remarks: &[&str] = match psn {
            0 => &["frame"],
            3 => &["inside"],
            4 => &["after"],
            101 => &["NAK sent because"],
            _ => &[],
        };
        assert_eq!(packet.comments, remarks);
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn events_stand_beside_the_packets_they_are_about() {
    let path = scratch("events");
    let (mut a, b) = ports();
    let mut b = Pcap::new(b, &PcapOptions::new(&path)).unwrap();
    let handle = b.handle();
    a.send(&mut batch("10.0.0.1", "10.0.0.2", 5..9)).unwrap();
    let qpn = Qpn::new(0x11).unwrap();
    let mut got = 0;
    while got == 0 {
        got = b
            .receive(100, &mut |_| {
                let (reason, psn) = (DropReason::IcrcMismatch, Some(Psn::new(7)));
                handle.event(&Event::Dropped { reason, qpn: Some(qpn), psn });
                let (psn, error) = (Psn::new(21), ResponderError::ReceiverNotReady);
                handle.event(&Event::NakSent { qpn, psn, error });
                let (status, code) = (Status::RemoteAccess, NakCode::RemoteAccessError);
                let request = FailedRequest {
                    op: CompletionOp::RdmaWrite,
                    range: None,
                    peer: IpAddr::from([10, 0, 0, 2]),
                    peer_qp: qpn,
                    answered: true,
                    una: Psn::new(6),
                };
                handle.event(&Event::NakReceived { qpn, psn: Psn::new(6), code });
                handle.event(&Event::RequestFailed { qpn, status, detail: None, request });
                // A timeout: no NAK caused this failure.
                let status = Status::RetryExceeded;
                handle.event(&Event::RequestFailed { qpn, status, detail: None, request });
            })
            .unwrap();
    }
    b.send(&mut batch("10.0.0.2", "10.0.0.1", 20..23)).unwrap();
    drop(b);
    let capture = Capture::open(&path).unwrap();
    let remarks: Vec<_> = capture
        .frames
        .iter()
        .enumerate()
        .flat_map(|(i, p)| p.comments.iter().map(move |c| (i, c.as_str())))
        .collect();
    let [(1, refused), (1, failed), (2, dropped), (5, nak)] = remarks[..] else {
        panic!("{remarks:?}")
    };
    assert!(refused.starts_with("peer NAKed PSN") && failed.ends_with("remote access error"));
    assert!(dropped.starts_with("dropped (QP ") && nak.contains("no receive was posted"));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn tshark_dissects_the_capture() {
    if Command::new("tshark").arg("-v").output().is_err() {
        skipped("tshark_dissects_the_capture", "tshark is not installed");
        return;
    }
    let path = scratch("tshark");
    let (mut a, b) = ports();
    let mut b = Pcap::new(b, &PcapOptions::new(&path)).unwrap();
    a.send(&mut batch("10.0.0.1", "10.0.0.2", 5..8)).unwrap();
    receive_packets(&mut b, 3);
    b.handle().comment_received(Some(Psn::new(6)), "dropped because: a reason");
    b.handle().flush();
    let fields =
        ["ip.id", "infiniband.bth.opcode", "infiniband.bth.psn", "frame.comment", "_ws.malformed"];
    let output = Command::new("tshark")
        .arg("-r")
        .arg(&path)
        .args(["-T", "fields", "-E", "separator=|"])
        .args(fields.iter().flat_map(|f| ["-e", f]))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = "0x0000|1|5||\n0x0001|1|6|dropped because: a reason|\n0x0002|1|7||\n";
    assert_eq!(text, expected, "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_file_ends_before_its_limit_and_traffic_goes_on() {
    let path = scratch("limit");
    let (mut a, b) = ports();
    let options = PcapOptions { max_bytes: 2000, ..PcapOptions::new(&path) };
    let mut b = Pcap::new(b, &options).unwrap();
    a.send(&mut batch("10.0.0.1", "10.0.0.2", 0..30)).unwrap();
    assert_eq!(receive_packets(&mut b, 30).len(), 30);
    b.handle().flush();
    let status = b.handle().status();
    assert_eq!(status.stopped.as_deref(), Some("it has reached its limit of 2000 bytes"));
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size <= 2000 && size == status.bytes, "{size} {status:?}");
    let capture = Capture::open(&path).unwrap();
    assert_eq!(capture.frames.len() as u64, status.packets);
    assert!(capture.error.is_none() && status.packets > 2);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_capture_that_reaches_its_limit_says_what_it_lacks_within_it() {
    // Two batches of four packets; two packets of each find room.
    let file = |max_bytes| {
        let (mut a, b) = ports();
        let disk = StuckDisk::default();
        disk.0.0.lock().goes_on = true;
        let options = PcapOptions { max_bytes, ..PcapOptions::new("limit") };
        let mut b = Pcap::to_writer(b, Box::new(disk.clone()), &options, 1000, false).unwrap();
        let handle = b.handle();
        for _ in 0..2 {
            handle.flush();
            a.send(&mut batch("10.0.0.1", "10.0.0.2", 0..4)).unwrap();
            let mut got = 0;
            while got < 4 {
                got += b.receive(100, &mut |_| {}).unwrap();
            }
        }
        drop(b);
        let dropped = handle.status().dropped;
        assert!(dropped > 0, "{:?}", handle.status());
        let file = std::mem::take(&mut disk.0.0.lock().file);
        assert_eq!(file.len() as u64, handle.status().bytes);
        assert_eq!(file[file.len() - 16..][..8], dropped.to_ne_bytes(), "limit {max_bytes}");
        file.len() as u64
    };
    let whole = file(u64::MAX);
    for limit in (whole - 400..=whole).step_by(100) {
        assert!(file(limit) <= limit, "limit {limit} of {whole}");
    }
}

/// A writer that fails after some bytes, like a full disk.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_traffic() {
    let (mut a, b) = ports();
    let options = PcapOptions::new("full");
    let mut b = Pcap::to_writer(b, Box::new(FullDisk(1000)), &options, 1 << 20, false).unwrap();
    for _ in 0..3 {
        a.send(&mut batch("10.0.0.1", "10.0.0.2", 0..5)).unwrap();
        assert_eq!(receive_packets(&mut b, 5).len(), 5);
        assert_eq!(b.send(&mut batch("10.0.0.2", "10.0.0.1", 0..5)).unwrap(), SendStatus::Done);
    }
    b.handle().flush();
    assert!(b.handle().status().stopped.is_some());
    assert_eq!(b.counters().tx_packets, 15);
}

/// A writer that blocks until the test releases it.
#[derive(Clone, Default)]
struct StuckDisk(Arc<(Mutex<StuckState>, Condvar)>);

#[derive(Default)]
struct StuckState {
    goes_on: bool,
    file: Vec<u8>,
}

impl Write for StuckDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (state, changed) = &*self.0;
        let mut state = state.lock();
        changed.wait_while(&mut state, |s| !s.goes_on);
        state.file.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn traffic_does_not_wait_for_the_disk_and_the_capture_says_what_it_lacks() {
    let (mut a, b) = ports();
    let disk = StuckDisk::default();
    let options = PcapOptions::new("stuck");
    let mut b = Pcap::to_writer(b, Box::new(disk.clone()), &options, 100_000, false).unwrap();
    let handle = b.handle();
    let mut pass = |b: &mut Pcap<FabricPort>| {
        // As under a shard's lock.
        let _mark = NonBlocking::enter();
        a.send(&mut batch("10.0.0.1", "10.0.0.2", 0..100)).unwrap();
        let mut got = 0;
        while got < 100 {
            got += b.receive(100, &mut |_| {}).unwrap();
        }
        while b.receive(1, &mut |_| {}).unwrap() > 0 {}
    };
    for _ in 0..10 {
        pass(&mut b);
    }
    let dropped = handle.status().dropped;
    assert!((1..1000).contains(&dropped), "{dropped}");
    disk.0.0.lock().goes_on = true;
    disk.0.1.notify_all();
    handle.flush();
    pass(&mut b);
    drop(b);
    assert_eq!(handle.status(), PcapStatus { dropped, packets: 1100 - dropped, ..handle.status() });
    assert_eq!(handle.status().stopped, None);
    let file = &disk.0.0.lock().file;
    let capture = Capture::read(&file[..]).unwrap();
    assert!(capture.error.is_none(), "{:?}", capture.error);
    assert_eq!(capture.frames.len() as u64, 1100 - dropped);
    let remarks: Vec<_> = capture.frames.iter().flat_map(|p| &p.comments).collect();
    let expected = format!("{dropped} packets before this one are missing");
    assert!(matches!(remarks[..], [one] if one.starts_with(&expected)), "{remarks:?}");
    assert_eq!(missing_before(remarks[0]), Some(dropped));
    for other in [
        "7 packets",
        "packets before this one are missing:",
        "x packets before this one are missing:",
    ] {
        assert_eq!(missing_before(other), None, "{other}");
    }
    // The interface statistics at the end of the file contain the number too.
    let block = [&5u32.to_ne_bytes()[..], &40u32.to_ne_bytes(), &[0; 4]].concat();
    let at = file.windows(block.len()).rposition(|bytes| bytes == block).unwrap();
    assert_eq!(file.len() - at, 40);
    assert_eq!(file[at + 24..at + 32], dropped.to_ne_bytes());
}

#[test]
fn a_file_that_can_not_be_made_is_an_error() {
    let (a, _) = ports();
    let error = Pcap::new(a, &PcapOptions::new("/nonexistent/x.pcapng")).err().unwrap();
    let said = "the capture /nonexistent/x.pcapng: No such file";
    assert!(error.to_string().starts_with(said), "{error}");
}

#[test]
fn a_capture_is_the_user_s_alone() {
    use std::os::unix::fs::MetadataExt;
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("new.pcapng");
    std::fs::write(&path, vec![b'x'; 100_000]).unwrap();
    let (mut a, b) = ports();
    for _ in 0..2 {
        let mut unused = Pcap::new(a, &PcapOptions::new(&path)).unwrap();
        assert_eq!(unused.receive(64, &mut |_| {}).unwrap(), 0);
        unused.handle().flush();
        a = ports().0;
    }
    assert_eq!(std::fs::read(&path).unwrap(), vec![b'x'; 100_000], "nothing has passed");
    let mut used = Pcap::new(a, &PcapOptions::new(&path)).unwrap();
    used.send(&mut batch("10.0.0.1", "10.0.0.2", 0..1)).unwrap();
    drop(used);
    assert_eq!(Capture::open(&path).unwrap().frames.len(), 1);
    assert!(std::fs::metadata(&path).unwrap().len() < 1000, "what was there before is gone");
    let path = scratch.path().join("other.pcapng");
    drop(Pcap::new(b, &PcapOptions::new(&path)).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_capture_goes_through_no_link_and_into_no_file_of_another_user() {
    let scratch = tempfile::tempdir().unwrap();
    let [link, other] = ["link", "other"].map(|name| scratch.path().join(name));
    let target = scratch.path().join("precious");
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let (a, b) = ports();
    let error = Pcap::new(a, &PcapOptions::new(&link)).err().unwrap().to_string();
    assert!(error.contains("is a symbolic link"), "{error}");
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    std::fs::write(&other, "other").unwrap();
    if std::os::unix::fs::chown(&other, Some(65534), None).is_err() {
        skipped("a_capture_goes_through_no_link_and_into_no_file_of_another_user", "not root");
        return;
    }
    let error = Pcap::new(b, &PcapOptions::new(&other)).err().unwrap().to_string();
    assert!(error.contains("belongs to another user"), "{error}");
    assert_eq!(std::fs::read(&other).unwrap(), b"other");
}

#[test]
fn a_capture_goes_into_no_pipe_of_another_user() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from(0o666), 0).unwrap();
    // A reader of the FIFO. Opened for reading and writing, it does not wait for a writer.
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (a, b) = ports();
    drop(Pcap::new(a, &PcapOptions::new(&path)).unwrap());
    if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
        skipped("a_capture_goes_into_no_pipe_of_another_user", "not root");
        return;
    }
    let error = Pcap::new(b, &PcapOptions::new(&path)).err().unwrap().to_string();
    assert!(error.contains("belongs to another user"), "{error}");
    drop(reader);
}

/// A backend that sends one burst per call.
struct Slow(Capabilities);

impl Backend for Slow {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(&Frame<'_>)) -> Result<usize, NetError> {
        Ok(0)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        batch.mark_sent(1);
        Ok(if batch.is_empty() { SendStatus::Done } else { SendStatus::Blocked })
    }

    fn for_each_fd(&self, _: &mut dyn FnMut(&SharedFd)) {}

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[test]
fn what_is_sent_in_several_calls_is_captured_once() {
    let path = scratch("slow");
    let (a, _) = ports();
    let mut slow = Pcap::new(Slow(a.capabilities().clone()), &PcapOptions::new(&path)).unwrap();
    slow.handle().comment_sending(Psn::new(150), "late");
    let mut batch = batch("10.0.0.1", "10.0.0.2", 0..200);
    while slow.send(&mut batch).unwrap() == SendStatus::Blocked {}
    slow.handle().flush();
    let capture = Capture::open(&path).unwrap();
    assert_eq!(capture.frames.len(), 200);
    assert_eq!(capture.frames[150].comments, ["late"]);
    std::fs::remove_file(path).unwrap();
}

fn two_packets() -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), "test").unwrap();
    for (seconds, comments) in [(1, vec![]), (1 << 33, vec!["one".to_owned(), "two\nlines".into()])]
    {
        let at = Duration::new(seconds, 123_456_789);
        let direction = Direction::Outbound;
        writer
            .write(&PacketBlock {
                at,
                interface: 0,
                direction,
                frame: &[7; 61],
                comments: &comments,
            })
            .unwrap();
    }
    let written = writer.written();
    let bytes = writer.into_inner();
    assert_eq!(bytes.len() as u64, written);
    bytes
}

#[test]
fn what_is_written_reads_back() {
    let capture = Capture::read(&two_packets()[..]).unwrap();
    let [first, second] = &capture.frames[..] else { panic!("two packets") };
    assert_eq!(first.at, Some(Duration::new(1, 123_456_789)));
    assert_eq!(first.frame, [7; 61]);
    assert_eq!(second.at, Some(Duration::new(1 << 33, 123_456_789)));
    assert_eq!(second.comments, ["one", "two\nlines"]);
    assert_eq!((second.direction, second.original_len), (Some(Seen::Outbound), 61));
}

#[test]
fn a_file_that_breaks_off_gives_what_is_whole() {
    let bytes = two_packets();
    let mut most = 0;
    for len in 12..bytes.len() {
        let Ok(capture) = Capture::read(&bytes[..len]) else { continue };
        let packets = capture.frames.len();
        assert!(packets >= most && packets < 2);
        most = packets;
    }
    assert_eq!(most, 1);
}
