//! Tests of endpoints beside the host's network stack, in separate namespaces.

use std::net::UdpSocket;
use std::sync::mpsc;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use smoltcp::wire::IpAddress;

use super::*;
use crate::backends::l2::interface::InterfaceLink;
use crate::backends::packet::socket::{PacketSocket, PacketSocketConfig};
use crate::backends::udp::{UdpBackend, UdpConfig};
use crate::interface::net_device;
use crate::testing::link::{FAR, NEAR, add_addresses, ips, shell, with_peer};
use crate::testing::{in_namespace, receive_packets, skipped};
use rxe_sys::addr::RawAddr;
use rxe_sys::cmsg::Control;
use rxe_sys::mmsg::{Outgoing, sendmmsg};

pub(super) const OWN: [&str; 2] = ["10.9.0.11", "2001:db8::11"];
pub(super) const OTHER: [&str; 2] = ["10.9.0.12", "2001:db8::12"];

pub(super) fn parse(words: &str) -> L2Config {
    L2Config::from_words(words.split_whitespace()).unwrap()
}

pub(super) fn open(words: &str) -> Result<L2Backend, NetError> {
    L2Backend::open(&parse(words))
}

fn endpoint(netdev: &str, addresses: [&str; 2], mac: &str) -> L2Backend {
    endpoint_on(&format!("if:{netdev}"), addresses, mac)
}

/// Opens an endpoint on this link, without duplicate address detection.
pub(super) fn endpoint_on(link: &str, [v4, v6]: [&str; 2], mac: &str) -> L2Backend {
    open(&format!("{link} address {v4}/24 address {v6}/64 mac {mac} nodad")).unwrap()
}

fn udp(netdev: &str, addresses: &[&str]) -> UdpBackend {
    UdpBackend::open(&UdpConfig::new(netdev, ips(addresses))).unwrap()
}

/// Sends in both directions, twice: the first time the neighbour is resolved, then it is known.
pub(super) fn both_ways(
    (a, own): (&mut (impl Backend + 'static), &[&str]),
    (b, others): (&mut (impl Backend + 'static), &[&str]),
) {
    for (own, other) in own.iter().zip(others) {
        for _ in 0..2 {
            let mut packets = batch(a, own, other);
            send_all(a, &mut packets);
            check(&until(a, b, COUNT)[1], own, other);
            let mut packets = batch(b, other, own);
            send_all(b, &mut packets);
            check(&until(a, b, COUNT)[0], other, own);
        }
    }
}

/// A pair of interfaces with both ends in this namespace. The host sends nothing on them by itself.
/// A new interface loses frames until it is shown as up.
pub(super) const PAIR: &str = "
    ip link add near0 type veth peer name far0
    for end in near0 far0; do ip link set $end addrgenmode none up; done
    for end in near0 far0; do
        until ip link show $end | grep -q 'state UP'; do sleep 0.01; done
    done";

/// Returns the next frame from a link, and its bytes per packet.
fn next(link: &mut InterfaceLink) -> Option<(Vec<u8>, usize)> {
    let mut got = None;
    let sink = &mut |a: &Arrival<'_>| got = Some((a.bytes.to_vec(), a.gso_size));
    link.next(sink).unwrap().then(|| got.unwrap())
}

fn wait_for(link: &mut InterfaceLink, wanted: impl Fn(&[u8]) -> bool) -> (Vec<u8>, usize) {
    loop {
        match next(link) {
            Some((frame, segment)) if wanted(&frame) => return (frame, segment),
            Some(_) => {}
            None => wait(link.shared()),
        }
    }
}

pub(super) fn wait(fd: &SharedFd) {
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "nothing happened in 10 s");
}

#[test]
fn an_endpoint_is_a_station_beside_the_host_s_stack() {
    in_namespace("", || {
        let (opened, peer_open) = mpsc::channel();
        with_peer(
            move || {
                let mut far = udp("far0", &FAR);
                opened.send(()).unwrap();
                for (near, far_ip) in OWN.iter().zip(&FAR).chain(NEAR.iter().zip(&FAR)) {
                    for _ in 0..2 {
                        check(&receive_packets(&mut far, COUNT), near, far_ip);
                        let mut packets = batch(&far, far_ip, near);
                        send_all(&mut far, &mut packets);
                    }
                }
            },
            || {
                let mut own = endpoint("near0", OWN, NEAR_MAC);
                let mut host = udp("near0", &NEAR);
                peer_open.recv().unwrap();
                for (near, far) in OWN.iter().zip(&FAR) {
                    for _ in 0..2 {
                        let mut packets = batch(&own, near, far);
                        send_all(&mut own, &mut packets);
                        check(&until(&mut own, &mut host, COUNT)[0], far, near);
                    }
                }
                // The host's own process continues over the same interface.
                for (near, far) in NEAR.iter().zip(&FAR) {
                    for _ in 0..2 {
                        let mut packets = batch(&host, near, far);
                        send_all(&mut host, &mut packets);
                        check(&receive_packets(&mut host, COUNT), far, near);
                    }
                }
                assert_eq!(own.counters().rx_packets, 4 * COUNT as u64);
                assert_eq!(host.counters().rx_packets, 6 * COUNT as u64);
            },
        );
    });
}

#[test]
fn endpoints_on_one_interface_reach_each_other_and_notice_duplicates() {
    in_namespace(PAIR, || {
        let mut near = endpoint("near0", OWN, NEAR_MAC);
        let mut beside = endpoint("near0", OTHER, FAR_MAC);
        both_ways((&mut near, &OWN), (&mut beside, &OTHER));
        for netdev in ["near0", "far0"] {
            let third = parse(&format!("if:{netdev} address {}/24", OWN[0]));
            let opened = thread::spawn(move || L2Backend::open(&third));
            while !opened.is_finished() {
                near.receive(64, &mut |_| {}).unwrap();
                thread::yield_now();
            }
            let error = opened.join().unwrap().err().unwrap().to_string();
            let expected =
                format!("has the address 10.9.0.11 (its Ethernet address is {NEAR_MAC})");
            assert!(error.contains(&expected), "{error}");
        }
    });
}

#[test]
fn a_bridge_with_ports_is_an_interface_and_its_ports_are_none() {
    let setup = "
        ip link add br0 type bridge forward_delay 0 mcast_snooping 0
        ip link add near0 type veth peer name far0
        ip link set near0 master br0
        for end in br0 near0 far0; do ip link set $end addrgenmode none up; done
        for end in br0 near0 far0; do
            until ip link show $end | grep -q 'state UP'; do sleep 0.01; done
        done";
    in_namespace(setup, || {
        let error = open("if:near0 address 10.9.0.11/24").err().unwrap().to_string();
        assert_eq!(
            error,
            "the interface of if:near0 is a port of br0, which takes its frames: use if:br0"
        );
        let mut near = endpoint("br0", OWN, NEAR_MAC);
        let mut far = endpoint("far0", OTHER, FAR_MAC);
        both_ways((&mut near, &OWN), (&mut far, &OTHER));
    });
}

#[test]
fn what_cannot_be_an_endpoint_s_interface_is_refused_with_what_to_do() {
    let setup = "
        ip link add near0 type veth peer name far0
        ip link set near0 mtu 1400
        ip link set far0 mtu 1200";
    in_namespace(setup, || {
        let refused = |words: &str| open(&format!("{words} nodad")).err().unwrap().to_string();
        for (words, expected) in [
            ("if:none0", "there is no network interface none0: see `ip link`"),
            ("if:lo", "the interface of if:lo is loopback or a tunnel: an endpoint needs one that"),
            ("if:near0 mtu 1400", "interface near0 is down: `ip link set near0 up`"),
            (
                "if:near0",
                "the interface of if:near0 has an MTU of 1400 bytes, and the endpoint one of 1500: \
                 add `mtu 1400` after if:near0, or `ip link set near0 mtu 1500`",
            ),
            ("if:far0", "and the endpoint one of 1500: `ip link set far0 mtu 1500`"),
        ] {
            let error = refused(words);
            assert!(error.contains(expected), "{error}");
        }
        add_addresses("near0", &NEAR[..1]);
        let error = refused("if:near0 mtu 1400 address 10.9.0.1/24");
        assert!(error.contains("this host has the address 10.9.0.1 itself, on near0"), "{error}");
        let mac = Interface::list().unwrap().into_iter().find(|i| i.name == "near0").unwrap().mac;
        let error = refused(&format!("if:near0 mtu 1400 mac {}", mac.unwrap()));
        assert!(error.contains("is that of the interface of if:near0"), "{error}");

        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).unwrap();
        let error = refused("if:near0 mtu 1400");
        assert!(error.starts_with("if:near0 needs CAP_NET_RAW: run it as root"), "{error}");
    });
}

#[test]
fn an_interface_that_is_down_loses_packets_and_one_that_is_gone_ends_the_link() {
    in_namespace(PAIR, || {
        let mut near = endpoint("near0", OWN, NEAR_MAC);
        let mut far = endpoint("far0", OTHER, FAR_MAC);
        both_ways((&mut near, &OWN), (&mut far, &OTHER));
        shell("ip link set near0 down");
        near.receive(64, &mut |_| {}).unwrap();
        let mut packets = batch(&near, OWN[0], OTHER[0]);
        send_all(&mut near, &mut packets);
        assert_eq!(near.counters().tx_down, COUNT as u64);
        shell(
            "ip link set near0 up
            for end in near0 far0; do
                until ip link show $end | grep -q 'state UP'; do sleep 0.01; done
            done",
        );
        near.receive(64, &mut |_| {}).unwrap();
        far.receive(64, &mut |_| {}).unwrap();
        both_ways((&mut near, &OWN), (&mut far, &OTHER));
        // Changes of other interfaces wake no thread.
        while near.receive(64, &mut |_| {}).unwrap() > 0 {}
        shell("ip link add other0 type veth peer name other1");
        let mut fds = Vec::new();
        near.for_each_fd(&mut |fd| fds.push(fd.clone()));
        let mut polls = [PollFd::new(&fds[0], PollFlags::IN)];
        assert_eq!(poll(&mut polls, Some(&Timespec::default())).unwrap(), 0);

        shell("ip link delete near0");
        let error = loop {
            wait(&fds[0]);
            let _mark = NonBlocking::enter();
            if let Err(error) = near.receive(64, &mut |_| {}) {
                break error.to_string();
            }
        };
        assert!(error.contains("the interface of if:near0 cannot be used any more"), "{error}");
    });
}

#[test]
fn frames_wait_for_a_queue_that_is_full_and_the_descriptor_tells_when_it_is_not() {
    in_namespace(PAIR, || {
        let slow = "tc qdisc add dev near0 root tbf rate 100kbit burst 10k limit 64m";
        if !std::process::Command::new("sh").args(["-c", slow]).status().unwrap().success() {
            skipped(
                "frames_wait_for_a_queue_that_is_full",
                format_args!("`{slow}` does not work here"),
            );
            return;
        }
        let mut near =
            InterfaceLink::open("near0", &parse(&format!("if:near0 mac {NEAR_MAC}"))).unwrap();
        let frame = [&[4; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[7; 1400]].concat();
        // A frame leaves now and then.
        while near.has_room() {
            near.push(&[&frame]).unwrap();
            near.flush().unwrap();
        }
        shell("tc qdisc change dev near0 root tbf rate 8gbit burst 1m limit 64m");
        while !near.has_room() {
            wait(near.shared());
            while next(&mut near).is_some() {}
            near.flush().unwrap();
        }
        let mut polls = [PollFd::new(near.shared(), PollFlags::IN)];
        assert_eq!(poll(&mut polls, Some(&Timespec::default())).unwrap(), 0);
    });
}

/// A host on the link may send any number of them.
#[test]
fn segments_that_are_no_udp_count_for_the_budget() {
    in_namespace(PAIR, || {
        let mut near =
            InterfaceLink::open("near0", &parse(&format!("if:near0 mac {NEAR_MAC}"))).unwrap();
        let interface = net_device("far0").unwrap().index;
        let nothing = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 }];
        let far = PacketSocket::open(&PacketSocketConfig {
            interface,
            ethernet: true,
            filter: &nothing,
            outgoing: false,
            buffer: 1 << 20,
            keep: SharedFd::guarded,
        });
        let far = far.unwrap();
        if !far.vnet {
            skipped("segments_that_are_no_udp", format_args!("this kernel has none"));
            return;
        }
        // TCP in segments of 100 bytes, without its checksum.
        let [headers, start, at] = [54_u16, 34, 16].map(u16::to_ne_bytes);
        let vnet = [&[1, 1], &headers[..], &100_u16.to_ne_bytes(), &start, &at].concat();
        let frame = ipv4(IpProtocol::Tcp, false, 20 + 300, |tcp| tcp[12] = 5 << 4);
        let parts = [&vnet[..], &frame, &[]];
        let addr = RawAddr::link(interface, 0x0800);
        let out = Outgoing { addr, control: Control::EMPTY, parts };
        assert_eq!(sendmmsg(far.intact().unwrap(), &[out]).unwrap(), 1);
        assert_eq!(wait_for(&mut near, |_| true), (vec![], 0));
    });
}

#[test]
fn the_interface_is_left_as_it_was_found() {
    in_namespace(PAIR, || {
        let state = || {
            let shown = "ip -d link show near0; ip maddress show dev near0; ip address show near0";
            let output = std::process::Command::new("sh").args(["-c", shown]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let before = state();
        let near = endpoint("near0", OWN, NEAR_MAC);
        // The group in which hosts ask for its address.
        assert!(state().contains("33:33:ff:00:00:11"), "{}", state());
        drop(near);
        assert_eq!(state(), before);
    });
}

#[test]
fn frames_of_other_vlans_are_not_the_link_s() {
    in_namespace(PAIR, || {
        let words = |netdev, mac| parse(&format!("if:{netdev} mac {mac}"));
        let mut near = InterfaceLink::open("near0", &words("near0", NEAR_MAC)).unwrap();
        let mut far = InterfaceLink::open("far0", &words("far0", FAR_MAC)).unwrap();
        let asked = solicitation([2, 0, 0, 0, 0, 2], ip(OTHER[0]), ip(OWN[0]));
        for tag in [Some([0x81, 0, 0, 5]), Some([0x81, 0, 0xe0, 0]), None] {
            let (addresses, rest) = asked.split_at(12);
            let tag = tag.as_ref().map_or(&[][..], |tag| &tag[..]);
            far.push(&[addresses, tag, rest]).unwrap();
        }
        // The frame with priority 7 and no VLAN, and the frame without a tag.
        let is_arp = |frame: &[u8]| frame[12..14] == [8, 6];
        assert_eq!(wait_for(&mut near, is_arp), (asked.clone(), 0));
        assert_eq!(wait_for(&mut near, is_arp), (asked, 0));
        assert!(std::iter::from_fn(|| next(&mut near)).all(|(frame, _)| !is_arp(&frame)));
    });
}

/// Between interfaces of one host, checksums are left to a network card that does not exist.
#[test]
fn checksums_that_no_card_has_completed_are_right() {
    in_namespace(PAIR, || {
        let mut near =
            InterfaceLink::open("near0", &parse(&format!("if:near0 mac {NEAR_MAC}"))).unwrap();
        add_addresses("far0", &["10.9.0.2"]);
        shell(&format!("ip neigh add 10.9.0.11 lladdr {NEAR_MAC} dev far0"));
        let server = UdpSocket::bind("10.9.0.2:67").unwrap();
        server.send_to(b"an offer", "10.9.0.11:68").unwrap();
        let is_udp = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 17;
        let (frame, _) = wait_for(&mut near, is_udp);
        let packet = Ipv4Packet::new_checked(&frame[14..]).unwrap();
        let udp = UdpPacket::new_checked(packet.payload()).unwrap();
        let (src, dst) = (packet.src_addr(), packet.dst_addr());
        assert!(udp.verify_checksum(&IpAddress::Ipv4(src), &IpAddress::Ipv4(dst)));
    });
}

#[test]
fn bursts_stay_whole_on_the_way_out_and_in() {
    in_namespace(PAIR, || {
        let mut near = endpoint("near0", OWN, NEAR_MAC);
        let words = format!("if:far0 mac {FAR_MAC}");
        let mut far = InterfaceLink::open("far0", &parse(&words)).unwrap();
        // The neighbour is not known yet, so the packets wait for this answer, each as a separate
        // frame.
        let mut packets = batch(&near, OWN[0], OTHER[0]);
        send_all(&mut near, &mut packets);
        far.push(&[&announcement([2, 0, 0, 0, 0, 2], ip(OTHER[0]))]).unwrap();
        while near.counters().tx_packets == 0 {
            wait(near.link.shared());
            near.receive(64, &mut |_| {}).unwrap();
        }
        let mut packets = batch(&near, OWN[0], OTHER[0]);
        send_all(&mut near, &mut packets);
        let (mut segments, mut left) = (Vec::new(), 2 * COUNT);
        while left > 0 {
            let is_roce = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 17;
            let (frame, segment) = wait_for(&mut far, is_roce);
            left -= if segment == 0 { 1 } else { (frame.len() - 42).div_ceil(segment) };
            segments.push(segment);
        }
        assert!(segments.contains(&1040) && segments.contains(&64), "{segments:?}");
        assert_eq!(near.counters().tx_packets, 2 * COUNT as u64);
    });
}
