use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, sendto, socket, socket_with};
use rxe_core::wire::{NetHeader, TxBatch, UDP_PORT};

use super::{XdpBackend, XdpConfig, XdpMode};
use crate::backend::Backend;
use crate::backends::packet::{PacketBackend, PacketConfig};
use crate::backends::udp::{UdpBackend, UdpConfig};
use crate::host::sharing::Sharing;
use crate::interface::net_device;
use crate::testing::link::{
    COUNT, FAR, NEAR, add_addresses, batch, check, exchange, exchange_beyond_a_gateway,
    exchange_by_a_rule, exchange_over_a_link, in_step, ip, ips, shell, snmp, unreachables_sent,
    with_peer,
};
use crate::testing::{in_bpf_namespace, move_to, receive_packets, send_all, skipped};
use rxe_sys::addr::RawAddr;
use rxe_sys::sockopt;

fn open(netdev: &str, addresses: &[&str]) -> XdpBackend {
    XdpBackend::open(&XdpConfig::new(netdev, ips(addresses))).unwrap()
}

fn open_generic(netdev: &str, addresses: &[&str]) -> XdpBackend {
    let config = XdpConfig { mode: XdpMode::Generic, ..XdpConfig::new(netdev, ips(addresses)) };
    XdpBackend::open(&config).unwrap()
}

fn open_udp(netdev: &str, addresses: &[&str]) -> UdpBackend {
    UdpBackend::open(&UdpConfig::new(netdev, ips(addresses))).unwrap()
}

fn open_packet(netdev: &str, addresses: &[&str]) -> PacketBackend {
    PacketBackend::open(&PacketConfig::new(netdev, ips(addresses))).unwrap()
}

#[test]
fn bursts_cross_a_link_in_driver_mode() {
    in_bpf_namespace("", || {
        exchange_over_a_link(|| open("near0", &NEAR), || open("far0", &FAR));
    });
}

#[test]
fn bursts_cross_a_link_in_generic_mode() {
    in_bpf_namespace("", || {
        exchange_over_a_link(|| open_generic("near0", &NEAR), || open_generic("far0", &FAR));
    });
}

#[test]
fn it_understands_the_udp_backend() {
    in_bpf_namespace("", || {
        exchange_over_a_link(|| open("near0", &NEAR), || open_udp("far0", &FAR));
    });
}

#[test]
fn it_understands_the_udp_backend_in_generic_mode() {
    in_bpf_namespace("", || {
        exchange_over_a_link(|| open_generic("near0", &NEAR), || open_udp("far0", &FAR));
    });
}

#[test]
fn it_understands_the_packet_backend() {
    in_bpf_namespace("", || {
        exchange_over_a_link(|| open("near0", &NEAR), || open_packet("far0", &FAR));
    });
}

#[test]
fn it_understands_the_packet_backend_in_generic_mode() {
    in_bpf_namespace("", || {
        exchange_over_a_link(|| open_generic("near0", &NEAR), || open_packet("far0", &FAR));
    });
}

/// Sends packets of these sizes until some have arrived without the kernel's network stack, and
/// checks them.
fn send_sizes(backend: &mut impl Backend, sizes: &[usize]) {
    let net = NetHeader::outgoing(ip(NEAR[0]), ip(FAR[0]), UDP_PORT);
    let mut batch = TxBatch::new(backend.capabilities().tx);
    for size in sizes {
        batch.push(net, *size, |_, buf| {
            let start = buf.len();
            buf.extend([0, 0, 0, 0, 0, 1]);
            buf.extend((6..*size).map(|i| (i % 251).to_le_bytes()[0]));
            assert_eq!(buf.len() - start, *size);
        });
    }
    send_all(backend, &mut batch);
}

#[test]
fn packets_of_path_mtu_4096_cross_a_link_of_large_mtu() {
    const SIZES: [usize; 5] = [4096 + 12 + 16 + 4, 4120, 3600, 4050, 100];
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer(
            move || {
                shell("ip link set far0 mtu 9000");
                let mut backend = open("far0", &FAR);
                if backend.capabilities().link_mtu < 9000 {
                    skipped("path MTU 4096 over XDP", "the kernel has no frames in pieces");
                }
                receiver.ready();
                receiver.steps(|| {
                    for (_, bytes) in receive_packets(&mut backend, SIZES.len()) {
                        assert!(SIZES.contains(&bytes.len()), "{}", bytes.len());
                        let expected = (6..bytes.len()).map(|i| (i % 251).to_le_bytes()[0]);
                        assert!(bytes[6..].iter().copied().eq(expected), "{}", bytes.len());
                    }
                });
                let counters = backend.counters();
                assert_eq!(counters.rx_overflow + counters.rx_unusable, 0, "{counters:?}");
            },
            move || {
                shell("ip link set near0 mtu 9000");
                let mut backend = open("near0", &NEAR);
                sender.wait();
                for _ in 0..20 {
                    sender.step(|| send_sizes(&mut backend, &SIZES));
                }
            },
        );
    });
}

#[test]
fn a_gateway_leads_beyond_the_link() {
    in_bpf_namespace("", || exchange_beyond_a_gateway(open));
}

#[test]
fn a_rule_for_the_source_leads_over_the_interface() {
    in_bpf_namespace("", || exchange_by_a_rule(open));
}

#[test]
fn this_host_is_reached_and_shares_the_address() {
    in_bpf_namespace("ip link add near0 type veth peer name far0", || {
        add_addresses("near0", &["10.9.0.1", "10.9.0.3", "2001:db8::1"]);
        let mut a = open("near0", &["10.9.0.1", "2001:db8::1"]);
        let mut b = open_udp("near0", &["10.9.0.3"]);
        for _ in 0..2 {
            exchange(&mut a, "10.9.0.1", &mut b, "10.9.0.3");
            exchange(&mut b, "10.9.0.3", &mut a, "10.9.0.1");
        }
        for own in ["10.9.0.1", "2001:db8::1"] {
            let mut batch = batch(&a, own, own);
            send_all(&mut a, &mut batch);
            check(&receive_packets(&mut a, COUNT), own, own);
        }
        assert_eq!(unreachables_sent(), 0);
    });
}

/// Sends a packet to each of these blocks.
fn send_to_blocks(backend: &mut impl Backend, blocks: &[u8]) {
    let net = NetHeader::outgoing(ip(NEAR[0]), ip(FAR[0]), UDP_PORT);
    let mut batch = TxBatch::new(backend.capabilities().tx);
    for block in blocks {
        let qpn = rxe_core::types::Qpn::from_wire(u32::from(*block) << 16 | 2);
        batch.push_to(net, qpn, 32, |_, buf| {
            buf.extend([0, 0, 0, 0, 0, *block]);
            buf.resize(buf.len() + 26, *block);
        });
    }
    send_all(backend, &mut batch);
}

#[test]
fn processes_with_other_backends_share_its_address() {
    in_bpf_namespace("", || {
        let (opened, peer_open) = mpsc::channel();
        with_peer(
            move || {
                let mut all: Vec<Box<dyn Backend>> = vec![
                    Box::new(open_udp("far0", &FAR)),
                    Box::new(open("far0", &FAR)),
                    Box::new(open_packet("far0", &FAR)),
                ];
                let blocks: Vec<_> =
                    all.iter().map(|b| b.capabilities().qpn_block.unwrap()).collect();
                opened.send(blocks.clone()).unwrap();
                for (backend, block) in all.iter_mut().zip(&blocks) {
                    for (_, bytes) in receive_packets(backend, 10) {
                        assert_eq!(bytes[5..], [*block; 27]);
                    }
                    assert_eq!(backend.receive(1, &mut |_| {}).unwrap(), 0);
                }
            },
            move || {
                let mut backend = open("near0", &NEAR);
                let blocks = peer_open.recv().unwrap();
                for _ in 0..10 {
                    send_to_blocks(&mut backend, &blocks);
                    thread::sleep(std::time::Duration::from_millis(5));
                }
            },
        );
    });
}

#[test]
fn a_link_that_goes_down_loses_packets_and_no_more() {
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        // Nothing is buffered: once `send` returns, the receiver discards no more packets.
        let (done, wait) = mpsc::sync_channel::<()>(0);
        with_peer(
            move || {
                let mut backend = open("far0", &FAR);
                receiver.ready();
                receiver.step(|| check(&receive_packets(&mut backend, COUNT), NEAR[0], FAR[0]));
                // Packets that arrive before the link is up again are lost; later ones are not.
                while wait.try_recv().is_err() {
                    backend.receive(64, &mut |_| {}).unwrap();
                }
                // Including the packets that were in the ring when the link went down.
                let mut numbers = std::collections::HashSet::new();
                while numbers.len() < COUNT {
                    let got = receive_packets(&mut backend, 1);
                    numbers.extend(got.iter().map(|(_, bytes)| bytes[6..10].to_vec()));
                }
            },
            move || {
                let mut backend = open("near0", &NEAR);
                sender.wait();
                sender.batch(&mut backend, NEAR[0], FAR[0]);
                shell("ip link set near0 down");
                for _ in 0..3 {
                    let mut batch = batch(&backend, NEAR[0], FAR[0]);
                    send_all(&mut backend, &mut batch);
                }
                let c = backend.counters();
                let lost = c.tx_unreachable + c.tx_down;
                assert!(lost >= COUNT as u64, "{c:?}");
                assert_eq!(c.tx_packets + lost, 4 * COUNT as u64, "{c:?}");
                shell("ip link set near0 up");
                shell("until ip link show near0 | grep -q 'state UP'; do sleep 0.01; done");
                shell("until ip route get 10.9.0.2 | grep -q near0; do sleep 0.01; done");
                done.send(()).unwrap();
                let mut batch = batch(&backend, NEAR[0], FAR[0]);
                send_all(&mut backend, &mut batch);
            },
        );
    });
}

#[test]
fn groups_are_heard_by_both_backends_and_by_the_sender() {
    let setup = "
        ip link add veth0 type veth peer name peer0
        ip link set veth0 up
        ip link set peer0 up
        ip address add 10.9.0.1/24 dev veth0
        ip address add 10.9.0.2/24 dev veth0";
    in_bpf_namespace(setup, || {
        let (group, ours, others) = ("239.1.2.3", "10.9.0.1", "10.9.0.2");
        let mut a = open("veth0", &[ours]);
        let mut b = open_udp("veth0", &[others]);
        a.join(ip(group)).unwrap();
        b.join(ip(group)).unwrap();
        let net = NetHeader::outgoing(ip(ours), ip(group), UDP_PORT);
        let mut batch = TxBatch::new(a.capabilities().tx);
        batch.push(net, 64, |_, buf| buf.resize(64, 7));
        send_all(&mut a, &mut batch);
        for got in [receive_packets(&mut a, 1), receive_packets(&mut b, 1)] {
            assert_eq!((got.len(), got[0].0.src, got[0].0.dst), (1, ip(ours), ip(group)));
        }
        a.leave(ip(group));
    });
}

#[test]
fn new_addresses_are_received_for_and_old_ones_are_not() {
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer(
            move || {
                shell("ip addr add 10.9.0.7/24 dev far0");
                let mut backend = open("far0", &["10.9.0.2"]);
                move_to(&mut backend, &ips(&["10.9.0.7"])).unwrap();
                assert_eq!(backend.addresses(), ips(&["10.9.0.7"]));
                receiver.ready();
                receiver.steps(|| {
                    check(&receive_packets(&mut backend, COUNT), "10.9.0.1", "10.9.0.7");
                });
            },
            move || {
                let mut backend = open("near0", &NEAR);
                sender.wait();
                for _ in 0..3 {
                    sender.batch(&mut backend, "10.9.0.1", "10.9.0.7");
                }
                // Such packets would be received together with later ones.
                for _ in 0..2 {
                    let mut unheard = batch(&backend, "10.9.0.1", "10.9.0.2");
                    send_all(&mut backend, &mut unheard);
                    sender.batch(&mut backend, "10.9.0.1", "10.9.0.7");
                }
            },
        );
    });
}

/// Sends an ICMP echo request with this sequence number and waits for the reply.
fn ping(to: &str, number: u8) {
    let icmp = rustix::net::ipproto::ICMP;
    let socket = socket(AddressFamily::INET, SocketType::RAW, Some(icmp)).unwrap();
    // Type, code, checksum, identifier, sequence number.
    let mut request = [8, 0, 0, 0, 0x12, 0x34, 0, number];
    let sum = !(0x0800 + 0x1234 + u16::from(number));
    request[2..4].copy_from_slice(&sum.to_be_bytes());
    let to = SocketAddr::new(ip(to), 0);
    assert_eq!(sendto(&socket, &request, SendFlags::empty(), &to).unwrap(), request.len());
    let mut reply = [0; 128];
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    loop {
        let mut polls = [PollFd::new(&socket, PollFlags::IN)];
        assert!(poll(&mut polls, Some(&limit)).unwrap() > 0, "no reply in 10 s");
        let (got, _) = recv(&socket, &mut reply, RecvFlags::empty()).unwrap();
        // After the IP header. The socket also receives requests of other hosts.
        if got >= 28 && reply[20] == 0 && reply[24..28] == request[4..8] {
            return;
        }
    }
}

/// Returns the UDP datagrams that this thread's namespace has received over IPv4.
fn datagrams() -> u64 {
    snmp("Udp:", "InDatagrams")
}

#[test]
fn packets_to_a_known_neighbour_bypass_the_network_stack() {
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer(
            move || {
                let mut backend = open("far0", &FAR);
                receiver.ready();
                let before = datagrams();
                receiver.steps(|| check(&receive_packets(&mut backend, COUNT), NEAR[0], FAR[0]));
                assert_eq!(datagrams(), before, "they came through the UDP socket");
            },
            move || {
                let mut backend = open("near0", &NEAR);
                sender.wait();
                let tap = tap("near0");
                // The first burst finds the neighbour, and one burst per second confirms it.
                let routed = (0..1000).map(|_| {
                    sender.batch(&mut backend, NEAR[0], FAR[0]);
                    seen(&tap, NEAR[0])
                });
                let routed: Vec<_> = routed.take_while(|count| *count > 0).collect();
                assert!((1..1000).contains(&routed.len()), "{routed:?}");
                let batches = routed.len() + 1;
                assert_eq!(backend.counters().tx_packets, (batches * COUNT) as u64);
            },
        );
    });
}

/// Opens a packet socket that sees all packets of this network stack on an interface.
fn tap(netdev: &str) -> OwnedFd {
    const ETH_P_ALL: u16 = 3;
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::NONBLOCK);
    let tap = socket_with(AddressFamily::PACKET, kind, flags, None).unwrap();
    // Large enough to keep all packets.
    let bytes = 64 << 20;
    sockopt::set_int(tap.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).unwrap();
    let index = net_device(netdev).unwrap().index;
    sockopt::bind(tap.as_fd(), &RawAddr::link(index, ETH_P_ALL)).unwrap();
    tap
}

/// Returns the number of UDP packets over IPv4 from this address that the socket has received.
fn seen(tap: &OwnedFd, from: &str) -> usize {
    let IpAddr::V4(from) = ip(from) else { panic!("IPv4 only") };
    let mut bytes = [0; 20];
    let mut count = 0;
    while let Ok((got, _)) = recv(tap, &mut bytes, RecvFlags::DONTWAIT) {
        count += usize::from(got == 20 && bytes[9] == 17 && bytes[12..16] == from.octets());
    }
    count
}

#[test]
fn the_rest_of_the_interface_goes_on() {
    const BYTES: usize = 4 << 20;
    in_bpf_namespace("", || {
        let (listening, addresses) = mpsc::channel();
        with_peer(
            move || {
                let _backend = open("far0", &FAR);
                for far in [FAR[0], FAR[1]] {
                    let listener = TcpListener::bind((far, 0)).unwrap();
                    listening.send(listener.local_addr().unwrap()).unwrap();
                    let mut stream = listener.accept().unwrap().0;
                    let mut got = vec![0; BYTES];
                    stream.read_exact(&mut got).unwrap();
                    assert!(got.iter().enumerate().all(|(i, b)| *b == (i % 253).to_le_bytes()[0]));
                    stream.write_all(&got).unwrap();
                }
            },
            move || {
                let _backend = open("near0", &NEAR);
                let bytes: Vec<u8> = (0..BYTES).map(|i| (i % 253).to_le_bytes()[0]).collect();
                for _ in 0..2 {
                    let mut stream = TcpStream::connect(addresses.recv().unwrap()).unwrap();
                    let mut reader = stream.try_clone().unwrap();
                    stream.write_all(&bytes).unwrap();
                    let mut back = vec![0; BYTES];
                    reader.read_exact(&mut back).unwrap();
                    assert!(back == bytes);
                }
                (1..=3).for_each(|number| ping(FAR[0], number));
            },
        );
    });
}

mod left;
mod queues;
mod refused;
