use std::net::IpAddr;

use rxe_core::wire::{IpId, NetHeader, TxBatch, UDP_PORT};

use super::{UdpBackend, UdpConfig};
use crate::testing::{in_namespace, receive_packets, wait_readable};
use crate::{Backend, NetError, PortOwner, SendStatus, SrcPort};

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn open(addresses: &[&str]) -> UdpBackend {
    let addresses: Vec<_> = addresses.iter().map(|a| ip(a)).collect();
    UdpBackend::open(&UdpConfig::new("lo", addresses)).unwrap()
}

/// Appends a packet of `len` bytes that begins with the ID that it was made for.
fn push(batch: &mut TxBatch, net: NetHeader, len: usize) {
    batch.push(net, len, |net, buf| {
        let id = net.id().unwrap_or(0);
        buf.extend_from_slice(&id.to_be_bytes());
        buf.resize(buf.len() + len - 2, 0x5a);
    });
}

#[test]
fn a_run_arrives_as_one_frame_with_its_segment_size_and_headers() {
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
fn without_segmentation_every_packet_is_a_run() {
    in_namespace("", || {
        let mut config = UdpConfig::new("lo", [ip("127.0.0.1")]);
        config.segment = false;
        let mut a = UdpBackend::open(&config).unwrap();
        let mut b = open(&["127.0.0.2"]);
        assert_eq!(a.capabilities().tx.run_segments, 1);
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
        assert_eq!(c.src_port, SrcPort::Fixed(4791));
        assert!(!c.sees_ip_id && c.privileges.is_empty());
        assert!(c.recv_buffer > 100_000, "{}", c.recv_buffer);
        let mut fds = 0;
        a.for_each_fd(&mut |_| fds += 1);
        assert_eq!(fds, 1);
    });
}

#[test]
fn errors_say_what_to_do() {
    in_namespace("", || {
        let _a = open(&["127.0.0.1"]);
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
