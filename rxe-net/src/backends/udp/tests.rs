use std::net::IpAddr;
use std::os::fd::AsFd;

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::{Bth, Ext, IpId, NetHeader, Opcode, TxBatch, UDP_PORT, emit, icrc};

use super::{UdpBackend, UdpConfig};
use crate::backend::{Backend, SendStatus, SrcPort};
use crate::error::{NetError, PortOwner};
use crate::host::sharing::Sharing;
use crate::testing::{in_namespace, move_to, receive_packets, send_all, wait_readable};
use rxe_sys::sockopt;

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn open(addresses: &[&str]) -> UdpBackend {
    let addresses: Vec<_> = addresses.iter().map(|a| ip(a)).collect();
    UdpBackend::open(&UdpConfig::new("lo", addresses)).unwrap()
}

/// Appends a packet of `len` bytes, which begins with the IP ID that it is built for. It goes to
/// the first process that opened the address.
fn push(batch: &mut TxBatch, net: NetHeader, len: usize) {
    push_to(batch, net, len, 1);
}

/// Appends a packet to a QP of this block.
fn push_to(batch: &mut TxBatch, net: NetHeader, len: usize, block: u8) {
    let qpn = Qpn::from_wire(u32::from(block) << 16 | 0x5a5a);
    batch.push_to(net, qpn, len, |net, buf| {
        let id = net.id().unwrap_or(0);
        buf.extend_from_slice(&id.to_be_bytes());
        buf.extend([0x5a, 0x5a, 0x5a, block]);
        buf.resize(buf.len() + len - 6, 0x5a);
    });
}

#[test]
fn a_burst_arrives_as_one_frame_with_its_segment_size_and_headers() {
    in_namespace("", || {
        for (src, dst) in [("127.0.0.1", "127.0.0.2"), ("::1", "::1")] {
            let mut a = open(&[src]);
            let mut b = if src == dst { None } else { Some(open(&[dst])) };
            let mut batch = TxBatch::new(a.capabilities().tx);
            let flow_label = if src == dst { 0xabcde } else { 0 };
            let net = NetHeader {
                tos: 0x68,
                ttl: 9,
                flow_label,
                ..NetHeader::outgoing(ip(src), ip(dst), UDP_PORT)
            };
            for _ in 0..20 {
                push(&mut batch, net, 1040);
            }
            push(&mut batch, net, 20);
            assert_eq!(a.send(&mut batch).unwrap(), SendStatus::Done);
            assert!(batch.is_empty());

            let receiver = b.as_mut().unwrap_or(&mut a);
            wait_readable(receiver);
            let mut frames = Vec::new();
            let n = receiver
                .receive(1000, &mut |f| frames.push((f.net, f.segment, f.payload.len())))
                .unwrap();
            assert_eq!(n, 21);
            let id = if src == dst { IpId::Absent } else { IpId::Hidden };
            let expected = NetHeader { id, ..net };
            assert_eq!(frames, [(expected, 1040, 20 * 1040 + 20)]);
            assert_eq!(receiver.counters().rx_packets, 21);
        }
    });
}

#[test]
fn datagrams_of_no_use_count_too_for_how_much_is_read_at_once() {
    in_namespace("", || {
        const SENT: u64 = 300;
        let mut b = open(&["127.0.0.2"]);
        b.set_gsi(true).unwrap();
        let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..SENT {
            // A datagram without a QPN goes to the socket of QP1.
            stranger.send_to(&[], ("127.0.0.2", UDP_PORT)).unwrap();
        }
        let mut read = 0;
        while read < SENT {
            wait_readable(&b);
            let counted =
                b.receive(64, &mut |_| unreachable!("there is nothing in it")).unwrap() as u64;
            assert!(counted < SENT, "{counted} were read at once");
            read += counted;
            assert_eq!(b.counters().rx_unusable, read, "each is counted");
        }
    });
}

#[test]
fn without_segmentation_every_packet_is_a_burst() {
    in_namespace("", || {
        let mut config = UdpConfig::new("lo", [ip("127.0.0.1")]);
        config.segment = false;
        let mut a = UdpBackend::open(&config).unwrap();
        let mut b = open(&["127.0.0.2"]);
        assert_eq!(a.capabilities().tx.burst_segments, 1);
        let mut batch = TxBatch::new(a.capabilities().tx);
        for _ in 0..50 {
            push(&mut batch, NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT), 256);
        }
        assert_eq!(batch.pending().len(), 50);
        a.send(&mut batch).unwrap();
        let got = receive_packets(&mut b, 50);
        assert!(got.iter().all(|(_, bytes)| bytes.len() == 256 && bytes[..2] == [0, 0]));
    });
}

#[test]
fn several_addresses_each_have_their_socket() {
    in_namespace("", || {
        let mut a = open(&["127.0.0.1", "::1"]);
        let mut b = open(&["127.0.0.2", "127.0.0.3"]);
        let mut batch = TxBatch::new(a.capabilities().tx);
        for (src, dst) in [("127.0.0.1", "127.0.0.2"), ("::1", "::1"), ("127.0.0.1", "127.0.0.3")] {
            push(&mut batch, NetHeader::outgoing(ip(src), ip(dst), UDP_PORT), 64);
        }
        a.send(&mut batch).unwrap();
        let mut to: Vec<_> = receive_packets(&mut b, 2).iter().map(|(n, _)| n.dst).collect();
        to.sort();
        assert_eq!(to, [ip("127.0.0.2"), ip("127.0.0.3")]);
        assert_eq!(receive_packets(&mut a, 1)[0].0.dst, ip("::1"));
    });
}

#[test]
fn packets_that_can_not_go_are_counted_and_hold_nothing_up() {
    in_namespace("", || {
        let mut a = open(&["127.0.0.1"]);
        let mut b = open(&["127.0.0.2"]);
        let mut batch = TxBatch::new(a.capabilities().tx);
        let net = |src: &str, dst: &str| NetHeader::outgoing(ip(src), ip(dst), UDP_PORT);
        push(&mut batch, net("127.0.0.9", "127.0.0.2"), 64); // not our address
        push(&mut batch, net("127.0.0.1", "::1"), 64); // another family
        push(&mut batch, net("127.0.0.1", "255.255.255.255"), 64); // broadcast: EACCES
        push(&mut batch, net("127.0.0.1", "127.0.0.2"), 64);
        assert_eq!(a.send(&mut batch).unwrap(), SendStatus::Done);
        let counters = a.counters();
        assert_eq!((counters.tx_bad_address, counters.tx_denied + counters.tx_unreachable), (2, 1));
        assert_eq!(counters.tx_packets, 1);
        assert_eq!(receive_packets(&mut b, 1).len(), 1);
    });
}

#[test]
fn what_it_says_of_itself() {
    in_namespace("", || {
        let a = open(&["127.0.0.1"]);
        let c = a.capabilities();
        assert_eq!(c.src_port, SrcPort::Range { first: 0xfc04, count: 4 }, "of block 1");
        assert!(c.recv_buffer > 100_000, "{}", c.recv_buffer);
        let mut fds = 0;
        a.for_each_fd(&mut |_| fds += 1);
        assert_eq!(fds, 2, "its own, and one for those that come later");
    });
}

#[test]
fn errors_say_what_to_do() {
    in_namespace("", || {
        let _other = std::net::UdpSocket::bind("127.0.0.1:4791").unwrap();
        let open = |dev: &str, a: &[&str]| {
            let addresses: Vec<_> = a.iter().map(|a| ip(a)).collect();
            UdpBackend::open(&UdpConfig::new(dev, addresses)).err().unwrap()
        };
        let e = open("lo", &["127.0.0.1"]);
        match &e {
            NetError::PortInUse { owner: Some(PortOwner::Process { pid, .. }), .. } => {
                assert_eq!(*pid, std::process::id());
            }
            other => panic!("{other:?}"),
        }
        assert!(
            e.to_string().starts_with("UDP port 4791 on 127.0.0.1 is in use by process "),
            "{e}"
        );
        assert!(matches!(open("lo", &["192.0.2.1"]), NetError::NoSuchAddress { .. }));
        assert!(matches!(open("nosuch0", &["127.0.0.1"]), NetError::NoSuchDevice { .. }));
        assert!(matches!(open("lo", &[]), NetError::NoAddress { .. }));
    });
}

#[test]
fn an_address_that_is_not_ready_is_left_out() {
    in_namespace("", || {
        let a = open(&["192.0.2.1", "127.0.0.1", "127.0.0.1"]);
        assert_eq!(a.addresses().collect::<Vec<_>>(), [ip("127.0.0.1")]);
    });
}

/// Two interfaces, each with an IPv4 and an IPv6 address.
const INTERFACES: &str = "
    for i in 0 1; do
        ip link add veth$i type veth peer name peer$i
        ip link set veth$i up
        ip link set peer$i up
        ip address add 10.9.$i.1/24 dev veth$i
        ip address add fd09:$i::1/64 dev veth$i nodad
    done";

#[test]
fn who_has_joined_a_group_hears_it_the_sender_too() {
    in_namespace(INTERFACES, || {
        for (groups, src) in
            [(["239.1.2.3", "239.1.2.4"], "10.9.0.1"), (["ff0e::7", "ff02::7"], "fd09:0::1")]
        {
            let on = |netdev: &str, address: &str| {
                UdpBackend::open(&UdpConfig::new(netdev, [ip(address)])).unwrap()
            };
            let mut a = on("veth0", src);
            let other = if ip(src).is_ipv4() { "10.9.1.1" } else { "fd09:1::1" };
            let mut elsewhere = on("veth1", other);
            for group in groups.map(ip) {
                a.join(group).unwrap();
                a.join(group).unwrap();
                elsewhere.join(group).unwrap();
                let mut fds = 0;
                a.for_each_fd(&mut |_| fds += 1);
                assert_eq!(fds, 2, "the same descriptors for ever");
                let net = NetHeader::outgoing(ip(src), group, UDP_PORT);
                let mut batch = TxBatch::new(a.capabilities().tx);
                push(&mut batch, net, 64);
                a.send(&mut batch).unwrap();
                let got = receive_packets(&mut a, 1);
                assert_eq!((got[0].0.src, got[0].0.dst, got.len()), (ip(src), group, 1));
                assert_eq!(got[0].0.ttl, 64);
                assert_eq!(elsewhere.receive(1, &mut |_| {}).unwrap(), 0, "another interface's");
                a.leave(group);
                push(&mut batch, net, 64);
                a.send(&mut batch).unwrap();
                assert_eq!(a.receive(1, &mut |_| {}).unwrap(), 0, "left");
            }
        }
    });
}

#[test]
fn a_group_on_loopback_reaches_all_who_have_joined() {
    in_namespace("", || {
        let group = ip("239.1.2.3");
        let mut all = ["127.0.0.1", "127.0.0.2", "127.0.0.3"].map(|a| open(&[a]));
        all[0].join(group).unwrap();
        all[1].join(group).unwrap();
        let mut batch = TxBatch::new(all[2].capabilities().tx);
        let net = NetHeader { ttl: 3, ..NetHeader::outgoing(ip("127.0.0.3"), group, UDP_PORT) };
        push(&mut batch, net, 64);
        all[2].send(&mut batch).unwrap();
        let [a, b, c] = &mut all;
        for member in [a, b] {
            let (got, _) = receive_packets(member, 1).remove(0);
            assert_eq!((got.src, got.dst, got.ttl), (net.src, group, 3));
        }
        assert_eq!(c.receive(1, &mut |_| {}).unwrap(), 0);
        let error = c.join(ip("ff02::1:2:3:4")).err();
        assert!(error.is_none(), "{error:?}");
        let error = c.join(ip("10.0.0.1")).unwrap_err();
        assert!(error.to_string().starts_with("cannot join group 10.0.0.1: "), "{error}");
    });
}

#[test]
fn addresses_come_and_go() {
    in_namespace("", || {
        let mut a = open(&["127.0.0.1"]);
        let mut b = open(&["127.0.0.9"]);
        let (one, two) = (ip("127.0.0.1"), ip("127.0.0.2"));
        let ping = |a: &mut UdpBackend, b: &mut UdpBackend, own: IpAddr| {
            let mut batch = TxBatch::new(b.capabilities().tx);
            push(&mut batch, NetHeader::outgoing(ip("127.0.0.9"), own, UDP_PORT), 64);
            b.send(&mut batch).unwrap();
            assert_eq!(receive_packets(a, 1)[0].0.dst, own);
            push(&mut batch, NetHeader::outgoing(own, ip("127.0.0.9"), UDP_PORT), 64);
            a.send(&mut batch).unwrap();
            assert_eq!(receive_packets(b, 1)[0].0.src, own);
        };
        move_to(&mut a, &[one, two]).unwrap();
        assert_eq!(a.addresses().collect::<Vec<_>>(), [one, two]);
        ping(&mut a, &mut b, two);
        ping(&mut a, &mut b, one);
        move_to(&mut a, &[one]).unwrap();
        assert_eq!(a.addresses().collect::<Vec<_>>(), [one]);
        let error = move_to(&mut a, &[ip("127.0.0.9"), two, one]).unwrap_err();
        assert!(matches!(error, NetError::BlockTaken { block: 1, .. }), "{error}");
        ping(&mut a, &mut b, two);
    });
}

#[test]
fn an_address_that_is_lost_loses_packets_and_nothing_else() {
    in_namespace(INTERFACES, || {
        let mut a = UdpBackend::open(&UdpConfig::new("veth0", [ip("10.9.0.1")])).unwrap();
        let mut b = open(&["127.0.0.2"]);
        let mut batch = TxBatch::new(a.capabilities().tx);
        let net = NetHeader::outgoing(ip("10.9.0.1"), ip("127.0.0.2"), UDP_PORT);
        let sh = |command: &str| {
            assert!(
                std::process::Command::new("sh").args(["-c", command]).status().unwrap().success()
            );
        };
        let mut send = |a: &mut UdpBackend| {
            (0..3).for_each(|_| push(&mut batch, net, 256));
            assert_eq!(a.send(&mut batch).unwrap(), SendStatus::Done);
        };
        send(&mut a);
        assert_eq!(receive_packets(&mut b, 3).len(), 3);
        sh("ip address del 10.9.0.1/24 dev veth0");
        send(&mut a);
        assert_eq!(a.counters().tx_unreachable, 3);
        assert_ne!(a.capabilities().tx.burst_segments, 1, "that is not what was wrong");
        sh("ip address add 10.9.0.1/24 dev veth0; ip link set veth0 down");
        send(&mut a);
        sh("ip link set veth0 up");
        let before = a.counters().tx_packets;
        send(&mut a);
        assert_eq!(a.counters().tx_packets, before + 3);
        assert!(receive_packets(&mut b, 3).len() >= 3);
    });
}

/// Returns complete packets: their ICRCs are right for the IDs that they leave with.
fn whole_packets(backend: &UdpBackend, src: &str, dst: &str, count: u32) -> TxBatch {
    whole_packets_with(backend, NetHeader::outgoing(ip(src), ip(dst), UDP_PORT), count)
}

/// Like [`whole_packets`], with this header.
pub(super) fn whole_packets_with(backend: &UdpBackend, net: NetHeader, count: u32) -> TxBatch {
    let mut batch = TxBatch::new(backend.capabilities().tx);
    let qpn = Qpn::from_wire(1 << 16 | 0x11);
    for psn in 0..count {
        let bth = Bth::new(Opcode::RC_SEND_ONLY, qpn, Psn::new(psn));
        batch.push_to(net, qpn, emit::len(bth.opcode, 1024), |net, buf| {
            emit::packet_from(net, buf, &bth, &Ext::default(), &[7; 1024]);
        });
    }
    batch
}

/// Returns the IDs that match the ICRCs of the next `count` packets, and the number of frames they
/// came in.
fn ids_received(backend: &mut UdpBackend, count: usize) -> (Vec<u16>, usize) {
    let (mut ids, mut frames) = (Vec::new(), 0);
    while ids.len() < count {
        wait_readable(backend);
        backend
            .receive(count, &mut |frame| {
                frames += 1;
                for (net, packet) in frame.packets() {
                    ids.push(icrc::recover_id(&net, packet).expect("the ICRC is right").0);
                }
            })
            .unwrap();
    }
    (ids, frames)
}

#[test]
fn where_the_system_does_not_segment_for_one_it_does_for_others() {
    in_namespace("", || {
        let mut from = open(&["127.0.0.1"]);
        let (mut one, mut other) = (open(&["127.0.0.2"]), open(&["127.0.0.3"]));
        let no_checksum = |from: &UdpBackend, on| {
            // While the option is set, the kernel refuses to segment, with EINVAL.
            let socket = from.sockets.of(ip("127.0.0.1")).unwrap();
            sockopt::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, on).unwrap();
        };
        no_checksum(&from, 1);
        let send = |from: &mut UdpBackend, dst| {
            assert!(from.capabilities().tx.burst_segments > 1);
            let mut batch = whole_packets(from, "127.0.0.1", dst, 40);
            send_all(from, &mut batch);
        };
        send(&mut from, "127.0.0.2");
        no_checksum(&from, 0);
        // Each packet leaves alone, with ID 0 and an ICRC that matches. None is lost.
        assert_eq!(ids_received(&mut one, 40), (vec![0; 40], 40));
        send(&mut from, "127.0.0.2");
        assert_eq!(ids_received(&mut one, 40), (vec![0; 40], 40));
        send(&mut from, "127.0.0.3");
        let counted: Vec<u16> = (0..40).collect();
        assert_eq!(ids_received(&mut other, 40), (counted.clone(), 1));
        // Segmentation is tried again after the entry has expired.
        from.unsegmented.expire();
        send(&mut from, "127.0.0.2");
        assert_eq!(ids_received(&mut one, 40), (counted, 1));
        let counters = from.counters();
        assert_eq!((counters.tx_packets, counters.tx_other), (160, 0));
        assert_eq!(counters.tx_bytes, 160 * 1040);
    });
}

#[test]
fn without_segmentation_packets_arrive_one_by_one_too() {
    in_namespace("", || {
        let mut from = open(&["127.0.0.1"]);
        let config = UdpConfig { segment: false, ..UdpConfig::new("lo", [ip("127.0.0.2")]) };
        let mut to = UdpBackend::open(&config).unwrap();
        let mut batch = whole_packets(&from, "127.0.0.1", "127.0.0.2", 40);
        send_all(&mut from, &mut batch);
        assert_eq!(ids_received(&mut to, 40).1, 40);
    });
}

#[test]
fn what_is_too_large_for_the_path_to_one_is_lost_and_counted() {
    let route = "ip route add local 127.0.0.2 dev lo table local mtu lock 600";
    in_namespace(route, || {
        let mut from = open(&["127.0.0.1"]);
        let mut other = open(&["127.0.0.3"]);
        for _ in 0..2 {
            let mut batch = whole_packets(&from, "127.0.0.1", "127.0.0.2", 40);
            send_all(&mut from, &mut batch);
        }
        assert_eq!((from.counters().tx_too_big, from.counters().tx_packets), (80, 0));
        let mut batch = whole_packets(&from, "127.0.0.1", "127.0.0.3", 40);
        send_all(&mut from, &mut batch);
        assert_eq!(ids_received(&mut other, 40).1, 1, "segmented by the system");
    });
}

/// While any program has reserved a flow label, the kernel refuses unreserved labels of all others.
#[test]
fn packets_leave_without_a_flow_label_that_others_have_for_themselves() {
    in_namespace("", || {
        let mut from = open(&["::1"]);
        // A burst and a single packet, both with label 5.
        let net =
            NetHeader { flow_label: 5, ..NetHeader::outgoing(ip("::1"), ip("::1"), UDP_PORT) };
        let send = |from: &mut UdpBackend, count| {
            let mut batch = whole_packets_with(from, net, count);
            send_all(from, &mut batch);
            let got = receive_packets(from, count as usize);
            got.iter().map(|(net, _)| net.flow_label).collect::<Vec<_>>()
        };
        assert_eq!(send(&mut from, 3), [5; 3]);
        let other = std::net::UdpSocket::bind(("::1", 0)).unwrap();
        take_a_label(&other);
        assert_eq!(send(&mut from, 3), [0; 3]);
        assert_eq!(send(&mut from, 1), [0]);
        assert!(!from.unsegmented.has(ip("::1")), "bursts still leave as bursts");
        let counters = from.counters();
        assert_eq!((counters.tx_packets, counters.tx_unlabelled, counters.tx_other), (7, 4, 0));
    });
}

/// Reserves label 9 exclusively for this socket.
fn take_a_label(socket: &std::net::UdpSocket) {
    const IPV6_FLOWLABEL_MGR: libc::c_int = 32;
    // struct in6_flowlabel_req: destination, label, action (get), share (exclusive), flags (create).
    let mut request = [0; 32];
    request[..16].copy_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
    request[16..20].copy_from_slice(&9u32.to_be_bytes());
    request[20..22].copy_from_slice(&[0, 1]);
    request[22..24].copy_from_slice(&1u16.to_ne_bytes());
    sockopt::set_bytes(socket.as_fd(), libc::IPPROTO_IPV6, IPV6_FLOWLABEL_MGR, &request).unwrap();
}
