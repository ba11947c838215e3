use std::net::{IpAddr, UdpSocket as StdSocket};

use rxe_core::wire::{NetHeader, UDP_PORT, icrc};

use super::{PORTS, ports_of_block};
use crate::backend::{Backend, SrcPort};
use crate::backends::udp::tests::whole_packets_with;
use crate::backends::udp::{UdpBackend, UdpConfig};
use crate::error::{NetError, PortOwner};
use crate::testing::link::{ip, shell};
use crate::testing::{in_namespace, move_to, receive_packets, send_all};

fn open(addresses: &[&str], source_port: Option<u16>) -> UdpBackend {
    try_open(addresses, source_port).unwrap()
}

fn try_open(addresses: &[&str], source_port: Option<u16>) -> Result<UdpBackend, NetError> {
    let addresses: Vec<_> = addresses.iter().map(|a| ip(a)).collect();
    UdpBackend::open(&UdpConfig { source_port, ..UdpConfig::new("lo", addresses) })
}

fn ports(backend: &UdpBackend) -> Vec<u16> {
    let SrcPort::Range { first, count } = backend.capabilities().src_port else {
        panic!("{:?}", backend.capabilities().src_port);
    };
    (first..=first + (count - 1)).collect()
}

/// Sends `count` packets from this port, with ICRCs for that port.
fn send_from(backend: &mut UdpBackend, port: u16, src: IpAddr, dst: IpAddr, count: u32) {
    let mut batch = whole_packets_with(backend, NetHeader::outgoing(src, dst, port), count);
    send_all(backend, &mut batch);
}

/// Returns the source ports of the next `count` packets, and checks their ICRCs.
fn ports_received(backend: &mut UdpBackend, count: usize) -> Vec<u16> {
    let packets = receive_packets(backend, count);
    let port = |(net, packet): &(NetHeader, Vec<u8>)| {
        assert_eq!(icrc::check(net, packet), Ok(()));
        net.src_port
    };
    packets.iter().map(port).collect()
}

fn descriptors(backend: &UdpBackend) -> usize {
    let mut count = 0;
    backend.for_each_fd(&mut |_| count += 1);
    count
}

#[test]
fn packets_leave_from_the_port_that_they_were_made_for() {
    in_namespace("", || {
        for (src, dst) in [("127.0.0.1", "127.0.0.2"), ("::1", "::1")] {
            let (own, peer) = (ip(src), ip(dst));
            let mut a = open(&[src], None);
            let mut b = (src != dst).then(|| open(&[dst], None));
            let ports = ports(&a);
            assert_eq!(ports.len(), usize::from(PORTS));
            // In bursts and one by one, also from port 4791.
            for (port, count) in [(ports[0], 40), (ports[3], 1), (UDP_PORT, 3), (ports[0], 2)] {
                send_from(&mut a, port, own, peer, count);
                let got = ports_received(b.as_mut().unwrap_or(&mut a), count as usize);
                assert_eq!(got, vec![port; count as usize], "{src}");
            }
            assert_eq!(a.senders.all.len(), 2, "only those that are used are opened");
            assert_eq!(descriptors(&a), 2, "the same descriptors for ever");
            assert_eq!(a.counters().tx_packets, 46);
        }
    });
}

#[test]
fn processes_on_one_address_have_ports_of_their_own() {
    in_namespace("", || {
        let all: Vec<_> = (0..3).map(|_| open(&["127.0.0.1"], None)).collect();
        let mut of_all: Vec<_> = all.iter().flat_map(ports).collect();
        of_all.dedup();
        assert_eq!(of_all.len(), 3 * usize::from(PORTS));
        assert!(of_all.is_sorted() && of_all[0] > 60999, "{of_all:?}");
        let last = SrcPort::Range { first: u16::MAX - (PORTS - 1), count: PORTS };
        assert_eq!(ports_of_block(255), last);
    });
}

#[test]
fn one_port_for_all_is_shared_by_processes() {
    in_namespace("", || {
        for port in [4791, 5000] {
            let mut b = open(&["127.0.0.2"], None);
            let mut all = [0, 1].map(|_| open(&["127.0.0.1", "::1"], Some(port)));
            for a in &mut all {
                assert_eq!(a.capabilities().src_port, SrcPort::Fixed(port));
                send_from(a, port, ip("127.0.0.1"), ip("127.0.0.2"), 3);
                assert_eq!(ports_received(&mut b, 3), [port; 3]);
            }
            send_from(&mut all[0], port, ip("::1"), ip("::1"), 3);
            assert_eq!(ports_received(&mut all[0], 3), [port; 3]);
        }
    });
}

#[test]
fn a_port_that_cannot_be_had_is_refused_if_it_was_asked_for_and_else_done_without() {
    in_namespace("", || {
        let _other = StdSocket::bind("127.0.0.1:5000").unwrap();
        let error = try_open(&["127.0.0.1"], Some(5000)).err().unwrap();
        let NetError::SourcePort { owner: Some(PortOwner::Process { pid, .. }), .. } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!(*pid, std::process::id());
        let said = error.to_string();
        assert!(
            said.starts_with("cannot send from UDP port 5000 on 127.0.0.1: process "),
            "{said}"
        );
        assert!(said.ends_with(" has it; choose another source port: 4791 is always there"));

        for (src, dst) in [("127.0.0.1", "127.0.0.2"), ("::1", "::1")] {
            let mut a = open(&[src], None);
            let mut b = (src != dst).then(|| open(&[dst], None));
            let ports = ports(&a);
            let _taken = StdSocket::bind((ip(src), ports[3])).unwrap();
            for _ in 0..2 {
                send_from(&mut a, ports[3], ip(src), ip(dst), 40);
                let got = ports_received(b.as_mut().unwrap_or(&mut a), 40);
                assert_eq!(got, [UDP_PORT; 40], "with ICRCs for this port");
            }
            // A port that does not belong to the backend.
            send_from(&mut a, 7, ip(src), ip(dst), 2);
            assert_eq!(ports_received(b.as_mut().unwrap_or(&mut a), 2), [UDP_PORT; 2]);
        }
    });
}

#[test]
fn datagrams_to_a_source_port_are_dropped_and_counted() {
    in_namespace("", || {
        let (mut a, mut b) = (open(&["127.0.0.1"], None), open(&["127.0.0.2"], None));
        let port = ports(&a)[0];
        send_from(&mut a, port, ip("127.0.0.1"), ip("127.0.0.2"), 1);
        ports_received(&mut b, 1);
        let stranger = StdSocket::bind("127.0.0.3:0").unwrap();
        (0..5)
            .for_each(|_| assert_eq!(stranger.send_to(&[1; 64], ("127.0.0.1", port)).unwrap(), 64));
        (0..20).for_each(|_| assert_eq!(a.receive(1, &mut |_| unreachable!()).unwrap(), 0));
        assert_eq!(a.counters().rx_unusable, 5);
        // The dropped datagrams stay counted when the socket is closed.
        move_to(&mut a, &[ip("127.0.0.9")]).unwrap();
        assert_eq!((a.counters().rx_unusable, a.senders.all.len()), (5, 0));
    });
}

#[test]
fn addresses_that_come_and_go_have_all_ports() {
    in_namespace("", || {
        let (mut a, mut b) = (open(&["127.0.0.1"], None), open(&["127.0.0.9"], None));
        let port = ports(&a)[1];
        let mut send = |a: &mut UdpBackend, own: &str| {
            send_from(a, port, ip(own), ip("127.0.0.9"), 1);
            assert_eq!(ports_received(&mut b, 1), [port], "{own}");
        };
        send(&mut a, "127.0.0.1");
        move_to(&mut a, &[ip("127.0.0.1"), ip("127.0.0.2")]).unwrap();
        send(&mut a, "127.0.0.2");
        send(&mut a, "127.0.0.1");
        move_to(&mut a, &[ip("127.0.0.1")]).unwrap();
        assert_eq!(a.senders.all.len(), 1);
        move_to(&mut a, &[ip("127.0.0.1"), ip("127.0.0.2")]).unwrap();
        send(&mut a, "127.0.0.2");
    });
}

#[test]
fn a_port_without_room_to_send_says_when_it_has_again() {
    let link = "ip link add near0 type veth peer name far0
        ip link set near0 up
        ip link set far0 up
        ip address add 10.9.0.1/24 dev near0
        ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev near0
        tc qdisc add dev near0 root tbf rate 8mbit burst 10k limit 64m";
    in_namespace(link, || {
        let config =
            UdpConfig { send_buffer: 64 << 10, ..UdpConfig::new("near0", [ip("10.9.0.1")]) };
        let mut a = UdpBackend::open(&config).unwrap();
        let port = ports(&a)[0];
        // 400 kB at 1 MB/s: the send buffer becomes full again and again.
        send_from(&mut a, port, ip("10.9.0.1"), ip("10.9.0.2"), 400);
        let counters = a.counters();
        assert_eq!((counters.tx_packets, counters.tx_other), (400, 0));
        shell("tc qdisc change dev near0 root tbf rate 8gbit burst 1m limit 64m");
        assert!(a.senders.blocked.is_none());
        assert!(!a.sockets.epoll().has(crate::host::READY), "it is not readable for ever");
    });
}
