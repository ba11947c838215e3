use std::collections::HashSet;
use std::time::{Duration, Instant};

use rxe_core::mem::{Buffer, Source};
use rxe_core::wire::{NetHeader, Placed, TxBatch, UDP_PORT, icrc, whole_len};

use crate::backend::Backend;
use crate::backends::shm::Shm;
use crate::backends::xdp::{XdpBackend, XdpConfig, XdpMode};
use crate::testing::link::{FAR, FIRST, NEAR, StepSender, in_step, ip, ips, with_peer};
use crate::testing::{in_bpf_namespace, receive_packets, send_all};

/// Payload sizes: with and without pad, one in the shortest frame, and the longest.
const SIZES: [u16; 6] = [0, 1, 2, 64, 1021, 1024];

/// Returns a BTH to the block of the first process on an address, with the size as its PSN.
fn head(size: u16) -> [u8; 12] {
    let [high, low] = size.to_be_bytes();
    [4, 0, 0xff, 0xff, 0, 1, 0, 2, 0, 0, high, low]
}

fn open(mode: XdpMode, netdev: &str, addresses: &[&str]) -> XdpBackend {
    let config = XdpConfig { mode, ..XdpConfig::new(netdev, ips(addresses)) };
    XdpBackend::open(&config).unwrap()
}

/// Sends packets in steps until one is sent directly, which is possible once the neighbour is
/// known.
fn send_at_once(steps: &StepSender, backend: &mut impl Backend, net: &NetHeader, size: u16) {
    let limit = Instant::now() + Duration::from_secs(60);
    let mut at_once = false;
    while !at_once {
        assert!(Instant::now() < limit, "the neighbour is not known");
        steps.step(|| at_once = send_one(backend, net, size));
    }
}

/// Sends a packet directly or, if that is not possible, another one, which makes the kernel find
/// the neighbour. Returns whether the packet was sent directly.
fn send_one(backend: &mut impl Backend, net: &NetHeader, size: u16) -> bool {
    let memory = Buffer::zeroed(size.into());
    let all = memory.span(0, size.into()).unwrap();
    all.write(&vec![0x5a; size.into()]).unwrap();
    let spans = [*all];
    let payload = Source::Spans(&spans);
    let mut batch = TxBatch::new(backend.capabilities().tx);
    let placed = loop {
        match backend.direct().unwrap().send(net, &head(size), &payload, 1).unwrap() {
            Placed::NoRoom => send_all(backend, &mut batch),
            placed => break placed,
        }
    };
    if placed == Placed::Unsupported {
        batch.push(*net, 64, |_, buf| {
            buf.extend([0, 0, 0, 0, 0, FIRST]);
            buf.resize(buf.len() + 58, 0);
        });
    }
    send_all(backend, &mut batch);
    placed == Placed::Sent
}

fn whole_packets_cross_a_link<B: Backend>(
    mode: XdpMode,
    wrap: impl FnOnce(XdpBackend) -> B + Send + 'static,
) {
    let (sender, receiver) = in_step();
    with_peer(
        move || {
            let mut backend = open(mode, "far0", &FAR);
            receiver.ready();
            let mut got = HashSet::new();
            receiver.steps(|| {
                for (net, bytes) in receive_packets(&mut backend, 1) {
                    let size = u16::from_be_bytes([bytes[10], bytes[11]]);
                    // The other packets have no ICRC.
                    if bytes[..12] != head(size) {
                        continue;
                    }
                    assert_eq!(icrc::check(&net, &bytes), Ok(()));
                    assert_eq!(bytes.len(), whole_len(12, size.into()));
                    assert!(bytes[12..][..size.into()].iter().all(|b| *b == 0x5a));
                    assert!(got.insert((net.dst, size)), "each comes once");
                }
            });
            assert_eq!(got.len(), NEAR.len() * SIZES.len());
        },
        move || {
            let mut backend = wrap(open(mode, "near0", &NEAR));
            sender.wait();
            for (from, to) in NEAR.into_iter().zip(FAR) {
                let net = NetHeader::outgoing(ip(from), ip(to), UDP_PORT);
                SIZES.into_iter().for_each(|size| send_at_once(&sender, &mut backend, &net, size));
            }
        },
    );
}

#[test]
fn whole_packets_cross_a_link_in_driver_mode() {
    in_bpf_namespace("", || whole_packets_cross_a_link(XdpMode::Driver, |backend| backend));
}

#[test]
fn whole_packets_cross_a_link_in_generic_mode() {
    in_bpf_namespace("", || whole_packets_cross_a_link(XdpMode::Generic, |backend| backend));
}

#[test]
fn whole_packets_go_past_shared_memory() {
    in_bpf_namespace("", || {
        let wrap = |backend| Shm::new(backend, &ips(&NEAR)).unwrap();
        whole_packets_cross_a_link(XdpMode::Any, wrap);
    });
}

/// Sends two packets: one that is put into the transmit ring, and then one that the kernel routes.
/// Returns whether the first was put there; if not, the kernel routes both.
fn send_both_ways(backend: &mut XdpBackend, net: &NetHeader) -> bool {
    let mut batch = TxBatch::new(backend.capabilities().tx);
    let first = Source::Bytes(&[0x5a; 16]);
    let placed = backend.direct().unwrap().send(net, &head(1), &first, 1).unwrap();
    let routed = if placed == Placed::Sent { 2..=2 } else { 1..=2 };
    for number in routed {
        batch.push(*net, 32, |_, buf| {
            buf.extend(head(number));
            buf.resize(buf.len() + 20, 0x5a);
        });
    }
    if placed == Placed::Sent {
        // As when the path has expired.
        backend.paths.forget((net.src, net.dst));
    }
    send_all(backend, &mut batch);
    placed == Placed::Sent
}

#[test]
fn what_the_kernel_routes_does_not_overtake_frames_in_the_ring() {
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer(
            move || {
                let mut backend = open(XdpMode::Any, "far0", &FAR);
                receiver.ready();
                receiver.steps(|| {
                    let got = receive_packets(&mut backend, 2);
                    let numbers: Vec<_> = got.iter().map(|(_, bytes)| bytes[11]).collect();
                    assert_eq!(numbers, [1, 2]);
                });
            },
            move || {
                let mut backend = open(XdpMode::Any, "near0", &NEAR);
                sender.wait();
                let net = NetHeader::outgoing(ip(NEAR[0]), ip(FAR[0]), UDP_PORT);
                let limit = Instant::now() + Duration::from_secs(60);
                let mut in_ring = false;
                while !in_ring {
                    assert!(Instant::now() < limit, "the neighbour is not known");
                    sender.step(|| in_ring = send_both_ways(&mut backend, &net));
                }
            },
        );
    });
}

#[test]
fn frames_of_several_chunks_and_packets_to_this_host_go_another_way() {
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer(
            move || {
                let mut backend = open(XdpMode::Any, "far0", &FAR);
                receiver.ready();
                receiver.steps(|| _ = receive_packets(&mut backend, 1));
            },
            move || {
                let mut backend = open(XdpMode::Any, "near0", &NEAR);
                sender.wait();
                let net = NetHeader::outgoing(ip(NEAR[0]), ip(FAR[0]), UDP_PORT);
                send_at_once(&sender, &mut backend, &net, 0);
                let sent = backend.counters().tx_packets;
                let own = NetHeader { dst: net.src, ..net };
                for (net, size) in [(net, 4096), (own, 64)] {
                    let payload = Source::Bytes(&[0; 4096][..size]);
                    let placed = backend.direct().unwrap().send(&net, &head(0), &payload, 1);
                    assert_eq!(placed, Ok(Placed::Unsupported));
                }
                assert_eq!(backend.counters().tx_packets, sent);
            },
        );
    });
}
