mod dgram;
mod dhcp;
mod echo;
mod groups;
mod interface;
#[cfg(feature = "pnet")]
mod pnet;
mod tap;

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use proptest::prelude::*;
use rxe_core::wire::NetHeader;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet, Icmpv4Repr,
    IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket,
};

use super::discovery::{announcement, solicitation};
use super::*;
use crate::backends::loss::Loss;
use crate::backends::packet::headers::Headers;
use crate::testing::link::{COUNT, batch, check, ip};
use crate::testing::send_all;
use rxe_sys::NonBlocking;

const NEAR_MAC: &str = "02:00:00:00:00:01";
const FAR_MAC: &str = "02:00:00:00:00:02";

fn config(path: &Path, words: &str) -> L2Config {
    let text = format!("qemu:{} {words}", path.display());
    L2Config::from_words(text.split_whitespace()).unwrap()
}

fn socket(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("link")
}

/// Returns two endpoints at the two ends of a socket. The first one listens.
fn pair(dir: &tempfile::TempDir) -> (L2Backend, L2Backend) {
    let words = |n: u8, mac| format!("address 10.9.0.{n}/24 address fd09::{n}/64 mac {mac} nodad");
    let near = L2Backend::open(&config(&socket(dir), &words(1, NEAR_MAC))).unwrap();
    let far = L2Backend::open(&config(&socket(dir), &words(2, FAR_MAC))).unwrap();
    (near, far)
}

/// Returns what both receive, until one of them has `count` packets.
fn until(
    a: &mut (dyn Backend + 'static),
    b: &mut (dyn Backend + 'static),
    count: usize,
) -> [Vec<(NetHeader, Vec<u8>)>; 2] {
    let mut got = [Vec::new(), Vec::new()];
    while got.iter().all(|got| got.len() < count) {
        let mut fds = Vec::new();
        for end in [&*a, &*b] {
            end.for_each_fd(&mut |fd| fds.push(fd.clone()));
        }
        let mut polls: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert!(poll(&mut polls, Some(&limit)).unwrap() > 0, "nothing happened in 10 s");
        let _mark = NonBlocking::enter();
        for (end, got) in [&mut *a, &mut *b].into_iter().zip(&mut got) {
            let sink = &mut |f: &Frame<'_>| {
                got.extend(f.packets().map(|(net, bytes)| (net, bytes.to_vec())));
            };
            while end.receive(64, sink).unwrap() > 0 {}
        }
    }
    got
}

#[test]
fn neighbours_find_each_other_by_arp_and_by_nd() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = pair(&dir);
    for (a, b) in
        [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2"), ("fe80::ff:fe00:1", "fe80::ff:fe00:2")]
    {
        for _ in 0..2 {
            let mut packets = batch(&near, a, b);
            send_all(&mut near, &mut packets);
            check(&until(&mut near, &mut far, COUNT)[1], a, b);
            let mut packets = batch(&far, b, a);
            send_all(&mut far, &mut packets);
            check(&until(&mut near, &mut far, COUNT)[0], b, a);
        }
    }
    let counters = near.counters();
    assert_eq!((counters.tx_packets, counters.rx_packets), (6 * COUNT as u64, 6 * COUNT as u64));
    // Frames that waited for a neighbour count too.
    assert_eq!(counters.tx_bytes, far.counters().rx_bytes);
}

#[test]
fn packets_to_itself_arrive_and_strangers_addresses_are_not_sent_from() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = pair(&dir);
    let mut own = batch(&near, "10.9.0.1", "10.9.0.1");
    send_all(&mut near, &mut own);
    check(&until(&mut near, &mut far, COUNT)[0], "10.9.0.1", "10.9.0.1");
    let before = near.counters();
    for (src, dst) in [("10.9.0.7", "10.9.0.2"), ("10.9.0.1", "10.8.0.1"), ("fd09::1", "fd08::1")] {
        let mut lost = batch(&near, src, dst);
        send_all(&mut near, &mut lost);
    }
    let after = near.counters();
    assert_eq!(after.tx_packets, before.tx_packets);
    assert_eq!(after.tx_bad_address, COUNT as u64);
    assert_eq!(after.tx_unreachable, 2 * COUNT as u64);
}

/// Returns a link and the bare socket at its other end.
fn link_and_peer(dir: &tempfile::TempDir) -> (QemuLink, UnixStream) {
    let mut link = QemuLink::open(&socket(dir)).unwrap();
    let peer = UnixStream::connect(socket(dir)).unwrap();
    assert!(!link.next(&mut |_| ()).unwrap());
    (link, peer)
}

#[test]
fn what_waits_for_a_peer_that_does_not_read_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (mut link, _deaf) = link_and_peer(&dir);
    let frame = [7; 1514];
    let finds_room = |_: &i32| {
        let pushed = link.push(&[&frame]);
        link.flush().unwrap();
        pushed != Err(Loss::NoBuffer)
    };
    let taken = (0..10_000).take_while(finds_room).count();
    assert!(taken < 5_000, "{taken} frames were taken");
    assert!(!link.has_room());
}

#[test]
fn each_empty_frame_counts_for_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let (mut link, mut peer) = link_and_peer(&dir);
    peer.write_all(&[0; 4 * 10]).unwrap();
    for left in (0..10).rev() {
        assert!(link.next(&mut |arrival| assert!(arrival.bytes.is_empty())).unwrap(), "{left}");
    }
    assert!(!link.next(&mut |_| ()).unwrap());
}

#[test]
fn packets_to_other_networks_go_to_the_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("address 10.9.0.1/24 gateway 10.9.0.2 mac {NEAR_MAC} nodad");
    let mut near = L2Backend::open(&config(&socket(&dir), &words)).unwrap();
    // The far end has the gateway's address, and the address of the host beyond.
    let words = format!("address 10.9.0.2/24 address 10.8.0.9/32 mac {FAR_MAC} nodad");
    let mut far = L2Backend::open(&config(&socket(&dir), &words)).unwrap();
    let mut packets = batch(&near, "10.9.0.1", "10.8.0.9");
    send_all(&mut near, &mut packets);
    check(&until(&mut near, &mut far, COUNT)[1], "10.9.0.1", "10.8.0.9");
}

#[test]
fn an_address_that_another_host_has_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for address in ["10.9.0.2/24", "fd09::2/64"] {
        let words = format!("address {address} mac {FAR_MAC} nodad");
        let mut far = L2Backend::open(&config(&socket(&dir), &words)).unwrap();
        let near = config(&socket(&dir), &format!("address {address} mac {NEAR_MAC}"));
        let opened = thread::spawn(move || L2Backend::open(&near));
        while !opened.is_finished() {
            far.receive(64, &mut |_| {}).unwrap();
            thread::yield_now();
        }
        let error = opened.join().unwrap().err().unwrap().to_string();
        let (ip, _) = address.split_once('/').unwrap();
        let expected =
            format!("has the address {ip} (its Ethernet address is {FAR_MAC}): use anot");
        assert!(error.contains(&expected), "{error}");
    }
}

/// The endpoint's frames come back to it, as from a bridge or a mirroring port.
#[test]
fn its_own_questions_that_come_back_are_of_no_other_host() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(socket(&dir)).unwrap();
    let mirror = thread::spawn(move || {
        let (mut to, _) = listener.accept().unwrap();
        let mut from = to.try_clone().unwrap();
        let _ = std::io::copy(&mut from, &mut to);
    });
    let words = format!("address 10.9.0.1/24 address fd09::1/64 mac {NEAR_MAC}");
    let near = L2Backend::open(&config(&socket(&dir), &words)).map_err(|e| e.to_string());
    assert_eq!(near.map(drop), Ok(()));
    mirror.join().unwrap();
}

/// A link that always has one more frame.
struct Flood(Box<dyn Link>);

impl Link for Flood {
    fn next(&mut self, f: &mut dyn FnMut(&Arrival<'_>)) -> Result<bool, NetError> {
        f(&Arrival::single(&[]));
        Ok(true)
    }

    fn push(&mut self, _: &[&[u8]]) -> Result<(), Loss> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<(), NetError> {
        Ok(())
    }

    fn shared(&self) -> &SharedFd {
        self.0.shared()
    }
}

#[test]
fn a_flood_does_not_keep_an_endpoint_from_opening() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("address 10.9.0.1/24 mac {NEAR_MAC} nodad");
    let near = L2Backend::open(&config(&socket(&dir), &words)).unwrap();
    let addresses = near.addresses().to_vec();
    let mut near = L2Backend { link: Box::new(Flood(near.link)), ..near };
    let begun = Instant::now();
    let looks = thread::spawn(move || near.find_duplicates(&addresses).map_err(|e| e.to_string()));
    while !looks.is_finished() {
        assert!(begun.elapsed() < 10 * DAD_TIME, "it looks for duplicates without end");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(looks.join().unwrap(), Ok(()));
}

#[test]
fn a_second_process_is_refused_and_told_who_has_the_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&socket(&dir), "address 10.9.0.1/24 nodad");
    config.lock = Some(dir.path().join("lock"));
    let first = L2Backend::open(&config).unwrap();
    let error = L2Backend::open(&config).err().unwrap().to_string();
    assert!(error.contains(&format!("is in use by process {} (", std::process::id())), "{error}");
    drop(first);
    L2Backend::open(&config).unwrap();
}

#[test]
fn the_end_that_listens_takes_the_next_and_the_other_says_what_happened() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = pair(&dir);
    // A third peer is not accepted.
    let mut third = UnixStream::connect(socket(&dir)).unwrap();
    near.receive(64, &mut |_| {}).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap(), 0);
    drop(near);
    let error = far.receive(64, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("link has closed the connection: QEMU has ended"), "{error}");

    let (mut near, far) = pair(&dir);
    near.receive(64, &mut |_| {}).unwrap();
    drop(far);
    near.receive(64, &mut |_| {}).unwrap();
    let words = format!("address 10.9.0.2/24 mac {FAR_MAC} nodad");
    let mut far = L2Backend::open(&config(&socket(&dir), &words)).unwrap();
    let mut packets = batch(&near, "10.9.0.1", "10.9.0.2");
    near.receive(64, &mut |_| {}).unwrap();
    send_all(&mut near, &mut packets);
    check(&until(&mut near, &mut far, COUNT)[1], "10.9.0.1", "10.9.0.2");
    drop(near);
    assert!(!socket(&dir).exists());
}

#[test]
fn while_nobody_is_connected_packets_are_lost_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("address 10.9.0.1/24 mac {NEAR_MAC} nodad");
    let mut near = L2Backend::open(&config(&socket(&dir), &words)).unwrap();
    let mut packets = batch(&near, "10.9.0.1", "10.9.0.2");
    send_all(&mut near, &mut packets);
    assert_eq!(near.receive(64, &mut |_| {}).unwrap(), 0);
    near.endpoint.process_address_info(
        AddressInfo::Has(ip("10.9.0.2"), [2; 6]),
        &mut *near.link,
        Time::ZERO,
    );
    assert_eq!(near.counters().tx_down, COUNT as u64);
}

/// Returns an endpoint, and the other end of its socket.
fn with_stranger(dir: &tempfile::TempDir) -> (L2Backend, UnixStream) {
    let words = format!("address 10.9.0.1/24 address fd09::1/64 mac {NEAR_MAC} nodad");
    let mut near = L2Backend::open(&config(&socket(dir), &words)).unwrap();
    let far = UnixStream::connect(socket(dir)).unwrap();
    near.receive(64, &mut |_| {}).unwrap();
    (near, far)
}

fn write_frame(to: &mut UnixStream, frame: &[u8]) {
    let length = u32::try_from(frame.len()).unwrap();
    to.write_all(&length.to_be_bytes()).unwrap();
    to.write_all(frame).unwrap();
}

fn read_frame(from: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    from.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    from.read_exact(&mut frame).unwrap();
    frame
}

/// Returns a frame from 10.9.0.2 to 10.9.0.1 or to all, with a payload that `write` writes.
fn ipv4(protocol: IpProtocol, to_all: bool, len: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let (dst, mac) = match to_all {
        true => ([255; 4], [0xff; 6]),
        false => ([10, 9, 0, 1], [2, 0, 0, 0, 0, 1]),
    };
    let ip = Ipv4Repr {
        src_addr: [10, 9, 0, 2].into(),
        dst_addr: dst.into(),
        next_header: protocol,
        payload_len: len,
        hop_limit: 64,
    };
    let ethernet = EthernetRepr {
        src_addr: EthernetAddress([2, 0, 0, 0, 0, 2]),
        dst_addr: EthernetAddress(mac),
        ethertype: EthernetProtocol::Ipv4,
    };
    let mut bytes = vec![0; 14 + ip.buffer_len() + len];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    ethernet.emit(&mut frame);
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    write(packet.payload_mut());
    bytes
}

/// Returns a ping from 10.9.0.2 to 10.9.0.1.
fn ping() -> Vec<u8> {
    let icmp = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 1, data: b"payload" };
    ipv4(IpProtocol::Icmp, false, icmp.buffer_len(), |payload| {
        let sums = ChecksumCapabilities::default();
        icmp.emit(&mut Icmpv4Packet::new_unchecked(payload), &sums);
    })
}

#[test]
fn a_tag_that_only_carries_a_priority_does_not_keep_neighbours_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = with_stranger(&dir);
    let mut packets = batch(&near, "10.9.0.1", "10.9.0.2");
    send_all(&mut near, &mut packets);
    let tagged = |frame: &[u8], tag: [u8; 4]| [&frame[..12], &tag, &frame[12..]].concat();
    let other = [2, 0, 0, 0, 0, 2];
    let claimed = announcement(other, ip("10.9.0.2"));
    // A frame of VLAN 5 belongs to another network.
    write_frame(&mut far, &tagged(&claimed, [0x81, 0, 0xe0, 5]));
    near.receive(64, &mut |_| {}).unwrap();
    assert_eq!(near.counters().tx_packets, 0);
    write_frame(&mut far, &tagged(&claimed, [0x81, 0, 0xe0, 0]));
    near.receive(64, &mut |_| {}).unwrap();
    assert_eq!(near.counters().tx_packets, COUNT as u64);
}

#[test]
fn what_is_no_frame_ends_the_connection_and_not_the_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = with_stranger(&dir);
    far.write_all(&[0xff; 100]).unwrap();
    near.receive(64, &mut |_| {}).unwrap();
    assert!(matches!(far.read(&mut [0]), Ok(0) | Err(_)));
    let (mut near, far) = (near, UnixStream::connect(socket(&dir)).unwrap());
    near.receive(64, &mut |_| {}).unwrap();
    drop(far);
    // An end that has connected cannot continue.
    let listener = UnixListener::bind(dir.path().join("other")).unwrap();
    let words = format!("address 10.9.0.2/24 mac {FAR_MAC} nodad");
    let mut end = L2Backend::open(&config(&dir.path().join("other"), &words)).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(&[0xff; 100]).unwrap();
    let error = end.receive(64, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("announced a frame of 4294967295 bytes, which is none"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn frames_of_a_stranger_do_no_harm(
        frames in prop::collection::vec((0usize..6, any::<[u8; 8]>(), any::<u16>()), 1..64),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut near, mut far) = with_stranger(&dir);
        far.set_nonblocking(true).unwrap();
        let other = [2, 0, 0, 0, 0, 2];
        let net = NetHeader::outgoing(ip("10.9.0.2"), ip("10.9.0.1"), 4791);
        let headers = Headers::plain(&net, &[0; 40], other, [2, 0, 0, 0, 0, 1]);
        let [ethernet, ip_udp] = headers.parts();
        let models = [
            ping(),
            [ethernet, ip_udp, &[0; 40]].concat(),
            solicitation(other, ip("10.9.0.2"), ip("10.9.0.1")),
            solicitation(other, ip("fd09::2"), ip("fd09::1")),
            probe(other, ip("fd09::1")),
            announcement(other, ip("fd09::2")),
        ];
        for (model, bytes, cut) in frames {
            let mut frame = models[model].clone();
            for pair in bytes.chunks_exact(2) {
                let at = usize::from(pair[0]) % frame.len();
                frame[at] = pair[1];
            }
            frame.truncate(usize::from(cut).max(1));
            if far.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes()).is_err() {
                break;
            }
            if far.write_all(&frame).is_err() {
                break;
            }
            near.receive(64, &mut |_| {}).unwrap();
            let _ = far.read(&mut [0; 4096]);
        }
    }
}
