use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rxe_core::wire::{NetHeader, TxBatch, UDP_PORT};

use super::route::Path;
use super::{PacketBackend, PacketConfig};
use crate::backend::{Backend, SrcPort};
use crate::backends::udp::{UdpBackend, UdpConfig};
use crate::error::NetError;
use crate::host::sharing::Sharing;
use crate::testing::link::{
    COUNT, FAR, NEAR, add_addresses, batch, check, enter_new_namespace, exchange,
    exchange_beyond_a_gateway, exchange_by_a_rule, exchange_over_a_link, in_step, ip, ips, shell,
    unreachables_sent, with_peer,
};
use crate::testing::{in_namespace, in_namespaces, move_to, receive_packets, send_all, skipped};

fn open(netdev: &str, addresses: &[&str]) -> PacketBackend {
    PacketBackend::open(&PacketConfig::new(netdev, ips(addresses))).unwrap()
}

fn open_udp(netdev: &str, addresses: &[&str]) -> UdpBackend {
    UdpBackend::open(&UdpConfig::new(netdev, ips(addresses))).unwrap()
}

#[test]
fn bursts_cross_a_link_to_a_packet_backend() {
    in_namespace("", || {
        exchange_over_a_link(|| open("near0", &NEAR), || open("far0", &FAR));
    });
}

#[test]
fn udp_and_packet_backends_understand_each_other() {
    in_namespace("", || {
        let (opened, peer_open) = mpsc::channel();
        with_peer(
            move || {
                let mut backend = open_udp("far0", &FAR);
                opened.send(()).unwrap();
                for (near, far) in NEAR.iter().zip(&FAR) {
                    check(&receive_packets(&mut backend, COUNT), near, far);
                    let mut batch = batch(&backend, far, near);
                    send_all(&mut backend, &mut batch);
                }
            },
            move || {
                let mut backend = open("near0", &NEAR);
                peer_open.recv().unwrap();
                for (near, far) in NEAR.iter().zip(&FAR) {
                    let mut batch = batch(&backend, near, far);
                    send_all(&mut backend, &mut batch);
                    check(&receive_packets(&mut backend, COUNT), far, near);
                }
            },
        );
    });
}

#[test]
fn queue_pairs_of_two_processes_have_different_ports() {
    in_namespace("", || {
        let backends = [(); 2].map(|()| open("lo", &["127.0.0.1"]));
        let ports = backends.each_ref().map(|backend| {
            let ports = backend.capabilities().src_port;
            let SrcPort::Range { first, count } = ports else { panic!("{ports:?}") };
            first..first + count
        });
        assert!(ports.iter().all(|ports| ports.start >= 0xc000 && ports.len() == 16), "{ports:?}");
        assert!(!ports[0].contains(&ports[1].start), "{ports:?}");
    });
}

#[test]
fn without_offload_each_packet_has_its_id() {
    in_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer(
            move || {
                let mut backend = open("far0", &FAR);
                receiver.ready();
                for (near, far) in NEAR.iter().zip(&FAR) {
                    for _ in 0..2 {
                        receiver.step(|| check(&receive_packets(&mut backend, COUNT), near, far));
                    }
                }
            },
            move || {
                let config =
                    PacketConfig { segment: false, ..PacketConfig::new("near0", ips(&NEAR)) };
                let mut backend = PacketBackend::open(&config).unwrap();
                sender.wait();
                for (near, far) in NEAR.iter().zip(&FAR) {
                    (0..2).for_each(|_| sender.batch(&mut backend, near, far));
                }
            },
        );
    });
}

#[test]
fn a_gateway_leads_beyond_the_link() {
    in_namespace("", || exchange_beyond_a_gateway(open));
}

#[test]
fn a_rule_for_the_source_leads_over_the_interface() {
    in_namespace("", || exchange_by_a_rule(open));
}

#[test]
fn a_rule_for_the_source_leads_over_the_interface_with_the_udp_backend_too() {
    in_namespace("", || exchange_by_a_rule(open_udp));
}

#[test]
fn a_route_that_puts_something_around_packets_is_left_to_the_kernel() {
    const NAME: &str = "a_route_that_puts_something_around_packets_is_left_to_the_kernel";
    const AROUND: &str = "ip link add around type vxlan external dstport 4789";
    in_namespace("", || {
        if !Command::new("sh").args(["-c", AROUND]).status().unwrap().success() {
            skipped(NAME, "the kernel has no VXLAN");
            return;
        }
        let (sender, receiver) = in_step();
        with_peer(
            move || {
                shell("ip link add around type vxlan id 5 remote 10.9.0.1 dstport 4789");
                add_addresses("around", &["10.6.0.2"]);
                let mut backend = open("around", &["10.6.0.2"]);
                receiver.ready();
                receiver.steps(|| {
                    check(&receive_packets(&mut backend, COUNT), "10.6.0.1", "10.6.0.2");
                });
            },
            move || {
                add_addresses("around", &["10.6.0.1"]);
                shell("ip route add 10.6.0.2 encap ip id 5 dst 10.9.0.2 dev around");
                let mut backend = open("around", &["10.6.0.1"]);
                sender.wait();
                (0..3).for_each(|_| sender.batch(&mut backend, "10.6.0.1", "10.6.0.2"));
            },
        );
    });
}

#[test]
fn a_thread_in_another_namespace_sends_by_the_routes_of_the_backend() {
    in_namespace("", || {
        let (done, wait) = mpsc::channel();
        with_peer(
            move || {
                let _backend = open("far0", &FAR);
                wait.recv().unwrap();
            },
            move || {
                let mut backend = open("near0", &NEAR);
                let elsewhere = move || {
                    enter_new_namespace();
                    let ends = (ip(NEAR[0]), ip(FAR[0]));
                    let limit = Instant::now() + Duration::from_secs(10);
                    while !matches!(backend.paths.known(ends), Some(Path::Direct { .. })) {
                        assert!(Instant::now() < limit, "{:?}", backend.paths.known(ends));
                        let mut batch = batch(&backend, NEAR[0], FAR[0]);
                        send_all(&mut backend, &mut batch);
                        thread::sleep(Duration::from_millis(5));
                    }
                };
                thread::spawn(elsewhere).join().unwrap();
                done.send(()).unwrap();
            },
        );
    });
}

#[test]
fn loopback_and_this_host_are_reached() {
    in_namespace("ip link add near0 type veth peer name far0", || {
        add_addresses("near0", &["10.9.0.1", "10.9.0.3", "2001:db8::1"]);
        let mut a = open("lo", &["127.0.0.1", "::1"]);
        let mut b = open("lo", &["127.0.0.2"]);
        let mut c = open("near0", &["10.9.0.1", "2001:db8::1"]);
        let mut d = open_udp("near0", &["10.9.0.3"]);
        for _ in 0..2 {
            exchange(&mut a, "127.0.0.1", &mut b, "127.0.0.2");
            exchange(&mut c, "10.9.0.1", &mut d, "10.9.0.3");
            exchange(&mut d, "10.9.0.3", &mut c, "10.9.0.1");
        }
        for (backend, own) in [(&mut a, "::1"), (&mut c, "2001:db8::1")] {
            let mut batch = batch(backend, own, own);
            send_all(backend, &mut batch);
            check(&receive_packets(backend, COUNT), own, own);
        }
        assert_eq!(unreachables_sent(), 0);
    });
}

#[test]
fn a_link_that_is_down_loses_packets_and_no_more() {
    in_namespace("", || {
        shell(
            "ip link add near0 type veth peer name far0; ip addr add 10.9.0.1/24 dev near0; ip link set lo down",
        );
        let mut backend = open("near0", &["10.9.0.1"]);
        for _ in 0..3 {
            let mut batch = batch(&backend, "10.9.0.1", "10.9.0.2");
            send_all(&mut backend, &mut batch);
            assert_eq!(backend.receive(10, &mut |_| {}).unwrap(), 0);
        }
        let c = backend.counters();
        assert_eq!(c.tx_unreachable + c.tx_down, 3 * COUNT as u64, "{c:?}");
    });
}

#[test]
fn a_destination_without_a_way_does_not_end_segmentation_for_others() {
    in_namespace("ip link add near0 type veth peer name far0", || {
        add_addresses("near0", &["10.9.0.1"]);
        shell("ip route add blackhole 10.8.0.1");
        let mut backend = open("near0", &["10.9.0.1"]);
        let before = backend.segment;
        let mut batch = batch(&backend, "10.9.0.1", "10.8.0.1");
        send_all(&mut backend, &mut batch);
        assert_eq!(backend.counters().tx_other, COUNT as u64, "{:?}", backend.counters());
        assert_eq!(backend.segment, before);
    });
}

#[test]
fn without_the_capability_it_says_what_to_do() {
    // A user namespace alone gives no rights over the network.
    in_namespaces("-U", "", || {
        let config = PacketConfig::new("lo", ips(&["127.0.0.77"]));
        let error = PacketBackend::open(&config).err().unwrap();
        assert!(matches!(error, NetError::NoPrivilege { .. }), "{error:?}");
        assert!(error.to_string().contains("setcap cap_net_raw+ep"), "{error}");
    });
}

#[test]
fn groups_are_heard_by_both_backends_and_by_the_sender() {
    let setup = "
        ip link add veth0 type veth peer name peer0
        ip link set veth0 up
        ip link set peer0 up
        ip address add 10.9.0.1/24 dev veth0
        ip address add fd09::1/64 dev veth0 nodad
        ip address add 10.9.0.2/24 dev veth0
        ip address add fd09::2/64 dev veth0 nodad";
    in_namespace(setup, || {
        for (group, ours, others) in
            [("239.1.2.3", "10.9.0.1", "10.9.0.2"), ("ff0e::7", "fd09::1", "fd09::2")]
        {
            let mut a = open("veth0", &[ours]);
            let mut b = open_udp("veth0", &[others]);
            a.join(ip(group)).unwrap();
            b.join(ip(group)).unwrap();
            for sender in 0..2 {
                let src = [ours, others][sender];
                let net = NetHeader::outgoing(ip(src), ip(group), UDP_PORT);
                let mut batch = TxBatch::new(a.capabilities().tx);
                batch.push(net, 64, |_, buf| buf.resize(64, 7));
                if sender == 0 {
                    send_all(&mut a, &mut batch);
                } else {
                    send_all(&mut b, &mut batch);
                }
                for got in [receive_packets(&mut a, 1), receive_packets(&mut b, 1)] {
                    assert_eq!((got.len(), got[0].0.src, got[0].0.dst), (1, ip(src), ip(group)));
                }
            }
            a.leave(ip(group));
            let mut batch = TxBatch::new(a.capabilities().tx);
            let net = NetHeader::outgoing(ip(others), ip(group), UDP_PORT);
            batch.push(net, 64, |_, buf| buf.resize(64, 7));
            send_all(&mut b, &mut batch);
            assert_eq!(a.receive(1, &mut |_| {}).unwrap(), 0, "left");
            assert_eq!(a.counters().tx_packets, 1);
        }
    });
}

#[test]
fn new_addresses_are_received_for_and_old_ones_are_not() {
    in_namespace("", || {
        let mut a = open("lo", &["127.0.0.1"]);
        let mut b = open_udp("lo", &["127.0.0.9"]);
        move_to(&mut a, &ips(&["127.0.0.2", "127.0.0.3"])).unwrap();
        assert_eq!(a.addresses(), ips(&["127.0.0.2", "127.0.0.3"]));
        exchange(&mut b, "127.0.0.9", &mut a, "127.0.0.3");
        exchange(&mut a, "127.0.0.2", &mut b, "127.0.0.9");
        let mut lost = batch(&b, "127.0.0.9", "127.0.0.1");
        send_all(&mut b, &mut lost);
        assert_eq!(a.receive(1, &mut |_| {}).unwrap(), 0);
    });
}
