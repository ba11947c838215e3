//! Tests of captures, in separate namespaces.

use std::time::Duration;

use rxe_core::wire::NetHeader;
use rxe_core::wire::frame::{IpUdpHeader, UdpChecksum};

use super::*;
use crate::backends::link_frame::LinkFrame;
use crate::testing::in_namespace;
use crate::wrappers::pcap::Direction;

/// Returns a frame from this Ethernet address with a datagram to this port.
fn frame(from: [u8; 6], address: &str, port: u16) -> Vec<u8> {
    let address: std::net::IpAddr = address.parse().unwrap();
    let net = NetHeader::outgoing(address, address, 1);
    let ethertype: u16 = if address.is_ipv4() { 0x0800 } else { 0x86dd };
    let packet = IpUdpHeader::new(&net, port, UdpChecksum::None, &[7; 26]);
    [&[0xff; 6][..], &from, &ethertype.to_be_bytes(), packet.as_bytes(), &[7; 26]].concat()
}

#[test]
fn the_rdma_packets_of_an_interface_are_captured_at_both_ends() {
    // A new interface loses frames until it is shown as up.
    let link = "ip link add near0 type veth peer name far0
        for end in near0 far0; do ip link set $end up; done
        for end in near0 far0; do
            until ip link show $end | grep -q 'state UP'; do sleep 0.01; done
        done";
    in_namespace(link, || {
        let mut ends = ["near0", "far0"].map(|name| LinkCapture::open(name, 1 << 20).unwrap());
        let near = find("near0").unwrap();
        let user =
            Use { wants: Box::new(|_| false), filter: None, wake: Box::new(|| {}), queue: 0 };
        let mut sender = Channel::open(&near, user).unwrap();
        let mac = near.mac.unwrap().octets();
        let wanted = ["10.0.0.1", "fe80::1"].map(|address| frame(mac, address, 4791));
        for sent in [&frame(mac, "10.0.0.1", 53), &wanted[0], &vec![0; 60], &wanted[1]] {
            sender.send(&[&sent[..7], &sent[7..]]).unwrap();
        }
        for (end, direction) in ends.iter_mut().zip([Direction::Outbound, Direction::Inbound]) {
            let mut got = Vec::new();
            while got.len() < wanted.len() {
                end.wait(Duration::from_secs(10));
                let sink = &mut |frame: &LinkFrame<'_>| {
                    assert_eq!(frame.direction, direction);
                    assert!(frame.at.as_secs() > 1_500_000_000, "{:?}", frame.at);
                    got.push(frame.bytes.to_vec());
                };
                assert!(end.receive(sink).unwrap() > 0, "nothing came in 10 s");
            }
            assert_eq!(got, wanted, "{direction:?}");
            assert_eq!(end.dropped(), 0);
        }
    });
}

#[test]
fn what_cannot_be_captured_on_is_refused_with_what_to_do() {
    in_namespace("ip link add near0 type veth peer name far0", || {
        let refused = |name: &str| LinkCapture::open(name, 1 << 20).err().unwrap().to_string();
        let error = refused("none0");
        assert!(error.starts_with("there is no network interface none0: choose lo, "), "{error}");
        assert_eq!(refused("near0"), "interface near0 is down: `ip link set near0 up`");
        assert!(refused("lo").starts_with("interface lo carries no Ethernet frames"));
    });
}

#[test]
fn a_capture_that_is_not_read_drops_frames_and_counts_them() {
    let link = "ip link add near0 type veth peer name far0
        for end in near0 far0; do ip link set $end up; done
        for end in near0 far0; do
            until ip link show $end | grep -q 'state UP'; do sleep 0.01; done
        done";
    in_namespace(link, || {
        let mut far = LinkCapture::open("far0", 1000).unwrap();
        let near = find("near0").unwrap();
        let user =
            Use { wants: Box::new(|_| false), filter: None, wake: Box::new(|| {}), queue: 0 };
        let mut sender = Channel::open(&near, user).unwrap();
        while far.dropped() == 0 {
            sender.send(&[&frame([2; 6], "10.0.0.1", 4791)]).unwrap();
            far.wait(Duration::from_secs(10));
        }
        assert!((1..1000).contains(&far.receive(&mut |_| {}).unwrap()));
        far.stop().unwrap();
    });
}
