//! Tests of several queues of an interface, and several shards on them.

use std::thread;
use std::time::{Duration, Instant};

use rxe_core::wire::{NetHeader, TxBatch};

use super::{datagrams, open, open_packet};
use crate::backend::Backend;
use crate::backends::packet::PacketBackend;
use crate::backends::xdp::{XdpBackend, XdpConfig, XdpInterface, XdpMode};
use crate::error::{NetError, XdpRefusal};
use crate::testing::link::{
    COUNT, FAR, FIRST, NEAR, StepReceiver, StepSender, add_addresses, batch, batch_to, check,
    in_step, ip, ips, with_peer, with_peer_over,
};
use crate::testing::{in_bpf_namespace, receive_packets, send_all, skipped};
use rxe_sys::sockopt::kernel_version;

#[test]
fn all_queues_of_an_interface_receive() {
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer_over(
            FOUR_QUEUES,
            move || {
                let mut backend = open("far0", &FAR);
                assert_eq!(backend.queues.received(), [0; 4]);
                receiver.ready();
                let before = datagrams();
                receiver.step(|| _ = receive_packets(&mut backend, PORTS.into()));
                assert_eq!(datagrams(), before, "a queue has no socket");
                let received = backend.queues.received();
                assert!(received.iter().filter(|count| **count > 0).count() > 1, "{received:?}");
            },
            move || {
                let mut backend = open_packet("near0", &NEAR);
                sender.wait();
                sender.step(|| send_from_ports(&mut backend, &[FIRST]));
            },
        );
    });
}

/// Options of ip-link(8) for an interface with four queues in each direction.
const FOUR_QUEUES: &str = "numtxqueues 4 numrxqueues 4";
const PORTS: u16 = 64;

/// Sends a packet from each of [`PORTS`] ports to each of these blocks. The kernel selects the
/// queue by addresses and ports.
fn send_from_ports(backend: &mut PacketBackend, blocks: &[u8]) {
    let mut batch = TxBatch::new(backend.capabilities().tx);
    for port in 0..PORTS {
        let net = NetHeader::outgoing(ip(NEAR[0]), ip(FAR[0]), 0xc000 + port);
        for block in blocks {
            batch.push(net, 64, |_, buf| {
                buf.extend([0, 0, 0, 0, 0, *block]);
                buf.resize(buf.len() + 58, *block);
            });
        }
    }
    send_all(backend, &mut batch);
}

/// Opens a number of shards on an interface. Returns the shards and their blocks.
fn open_shards(
    mode: XdpMode,
    netdev: &str,
    addresses: &[&str],
    count: u32,
) -> (Vec<XdpBackend>, Vec<u8>) {
    let interface = XdpInterface::open(netdev, mode, count).unwrap();
    let config = XdpConfig::new(netdev, ips(addresses));
    let shards: Vec<_> = (0..count).map(|_| XdpBackend::on(&interface, &config).unwrap()).collect();
    let blocks = shards.iter().map(|shard| shard.capabilities().qpn_block.unwrap()).collect();
    (shards, blocks)
}

/// Returns the blocks of `count` shards that have an address to themselves.
fn blocks(count: u8) -> Vec<u8> {
    (FIRST..).take(count.into()).collect()
}

#[test]
fn a_shard_receives_its_own_on_all_queues() {
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer_over(
            FOUR_QUEUES,
            move || {
                let (mut shards, own) = open_shards(XdpMode::Any, "far0", &FAR, 3);
                assert_eq!(own, blocks(3));
                receiver.ready();
                let before = datagrams();
                receiver.step(|| {
                    for (shard, block) in shards.iter_mut().zip(own) {
                        for (_, bytes) in receive_packets(shard, PORTS.into()) {
                            assert_eq!(bytes[5..], [block; 59]);
                        }
                    }
                });
                assert_eq!(datagrams(), before, "a queue has no socket of a shard");
                for shard in &mut shards {
                    assert_eq!(shard.receive(1, &mut |_| {}).unwrap(), 0);
                    let received = shard.queues.received();
                    assert_eq!(received.iter().sum::<u32>(), u32::from(PORTS));
                    assert!(received.iter().filter(|count| **count > 0).count() > 1);
                }
            },
            move || {
                let mut backend = open_packet("near0", &NEAR);
                sender.wait();
                sender.step(|| send_from_ports(&mut backend, &blocks(3)));
            },
        );
    });
}

/// Shards at both ends send to each other, one after another.
fn shards_exchange(mode: XdpMode, queues: &str) {
    let (sender, receiver) = in_step();
    let (back_sender, back_receiver) = in_step();
    with_peer_over(
        queues,
        move || {
            let (mut shards, _) = open_shards(mode, "far0", &FAR, 2);
            receiver.ready();
            all_receive(&receiver, &mut shards, 3, [NEAR[0], FAR[0]]);
            back_sender.wait();
            all_send(&back_sender, &mut shards, 3, [FAR[0], NEAR[0]]);
        },
        move || {
            let (mut shards, _) = open_shards(mode, "near0", &NEAR, 3);
            sender.wait();
            all_send(&sender, &mut shards, 2, [NEAR[0], FAR[0]]);
            back_receiver.ready();
            all_receive(&back_receiver, &mut shards, 2, [FAR[0], NEAR[0]]);
        },
    );
}

/// The number of batches from each shard to each. Together they have more packets than there are
/// chunks.
const ROUNDS: usize = 20;

/// Each shard sends to each of the `to` shards at the other end.
fn all_send(steps: &StepSender, shards: &mut [XdpBackend], to: u8, [src, dst]: [&str; 2]) {
    for _ in 0..ROUNDS {
        for shard in &mut *shards {
            for block in blocks(to) {
                steps.step(|| send_all(shard, &mut batch_to(block, shard, src, dst)));
            }
        }
    }
    for shard in shards {
        assert_eq!(shard.counters().tx_packets, (ROUNDS * usize::from(to) * COUNT) as u64);
    }
}

/// Each shard receives from each of the `from` shards at the other end.
fn all_receive(steps: &StepReceiver, shards: &mut [XdpBackend], from: u8, [src, dst]: [&str; 2]) {
    for _ in 0..ROUNDS * usize::from(from) {
        for shard in &mut *shards {
            let block = shard.capabilities().qpn_block.unwrap();
            steps.step(|| {
                let got = receive_packets(shard, COUNT);
                assert!(got.iter().all(|(_, bytes)| bytes[5] == block));
                check(&got, src, dst);
            });
        }
    }
    for shard in &*shards {
        let counters = shard.counters();
        assert_eq!(counters.rx_packets, (ROUNDS * usize::from(from) * COUNT) as u64);
        assert_eq!((counters.rx_unusable, counters.rx_overflow), (0, 0));
    }
    // A virtual interface receives on the queue that the other end sends on.
    let received: Vec<_> = shards.iter().map(|shard| shard.queues.received()).collect();
    let count = received[0].len();
    for queue in (0..usize::from(from)).map(|shard| shard % count) {
        assert!(received.iter().any(|received| received[queue] > 0), "{queue} of {received:?}");
    }
}

#[test]
fn shards_share_a_queue_in_driver_mode() {
    in_bpf_namespace("", || shards_exchange(XdpMode::Driver, ""));
}

#[test]
fn shards_share_a_queue_in_generic_mode() {
    if kernel_version() < (6, 15) {
        skipped("shards_share_a_queue_in_generic_mode", "it needs Linux 6.15");
        return;
    }
    in_bpf_namespace("", || shards_exchange(XdpMode::Generic, ""));
}

#[test]
fn shards_have_queues_of_their_own_to_send_on() {
    in_bpf_namespace("", || shards_exchange(XdpMode::Driver, FOUR_QUEUES));
}

#[test]
fn shards_send_and_receive_at_the_same_time() {
    const SHARDS: u32 = 2;
    const BATCHES: usize = 200;
    in_bpf_namespace("", || {
        let steps: Vec<_> = (0..SHARDS).map(|_| in_step()).collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        with_peer(
            move || {
                let (shards, _) = open_shards(XdpMode::Any, "far0", &FAR, SHARDS);
                thread::scope(|scope| {
                    for (mut shard, receiver) in shards.into_iter().zip(receivers) {
                        scope.spawn(move || {
                            receiver.ready();
                            receiver.steps(|| {
                                check(&receive_packets(&mut shard, COUNT), NEAR[0], FAR[0]);
                            });
                        });
                    }
                });
            },
            move || {
                let (mut shards, blocks) = open_shards(XdpMode::Any, "near0", &NEAR, SHARDS);
                senders.iter().for_each(StepSender::wait);
                // The kernel would not queue two batches until it has found the neighbour.
                let mut first = batch_to(blocks[0], &shards[0], NEAR[0], FAR[0]);
                senders[0].step(|| send_all(&mut shards[0], &mut first));
                thread::scope(|scope| {
                    let shards = shards.into_iter().zip(blocks).zip(senders);
                    for ((mut shard, block), sender) in shards {
                        scope.spawn(move || {
                            for _ in 0..BATCHES {
                                let mut batch = batch_to(block, &shard, NEAR[0], FAR[0]);
                                sender.step(|| send_all(&mut shard, &mut batch));
                            }
                        });
                    }
                });
            },
        );
    });
}

#[test]
fn a_shard_goes_on_when_the_first_is_gone() {
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer(
            move || {
                let (mut shards, own) = open_shards(XdpMode::Any, "far0", &FAR, 2);
                drop(shards.remove(0));
                assert_eq!(own, blocks(2));
                receiver.ready();
                let before = datagrams();
                receiver.steps(|| {
                    check(&receive_packets(&mut shards[0], COUNT), NEAR[0], FAR[0]);
                });
                assert_eq!(datagrams(), before, "they came through the UDP socket");
            },
            move || {
                let (mut shards, own) = open_shards(XdpMode::Any, "near0", &NEAR, 2);
                drop(shards.remove(0));
                sender.wait();
                for _ in 0..3 {
                    let mut batch = batch_to(own[1], &shards[0], NEAR[0], FAR[0]);
                    sender.step(|| send_all(&mut shards[0], &mut batch));
                }
            },
        );
    });
}

#[test]
fn there_are_no_more_shards_than_an_interface_was_opened_for() {
    in_bpf_namespace("ip link add near0 type veth peer name far0", || {
        add_addresses("near0", &NEAR);
        let interface = XdpInterface::open("near0", XdpMode::Any, 2).unwrap();
        let config = XdpConfig::new("near0", ips(&NEAR));
        let shards = [(); 2].map(|()| XdpBackend::on(&interface, &config).unwrap());
        let buffers = shards.each_ref().map(|shard| shard.capabilities().recv_buffer);
        assert_eq!(buffers[0], 2 * buffers[1]);
        match XdpBackend::on(&interface, &config).err() {
            Some(NetError::Xdp { reason: XdpRefusal::Shards { most: 2 }, .. }) => {}
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_frame_that_finds_no_room_is_counted_once() {
    // More packets than there are chunks.
    const BATCHES: usize = 40;
    in_bpf_namespace("", || {
        let (sender, receiver) = in_step();
        with_peer(
            move || {
                let backend = open("far0", &FAR);
                receiver.ready();
                let mut sent = 0;
                receiver.steps(|| {
                    sent += COUNT;
                    let limit = Instant::now() + Duration::from_secs(60);
                    let come = || backend.queues.waiting() + lost(&backend);
                    while come() < sent {
                        assert!(Instant::now() < limit, "{} of {sent}", come());
                        thread::yield_now();
                    }
                    assert_eq!(come(), sent);
                });
                assert!(lost(&backend) > 0);
            },
            move || {
                let mut backend = open("near0", &NEAR);
                sender.wait();
                for _ in 0..BATCHES {
                    let mut batch = batch(&backend, NEAR[0], FAR[0]);
                    sender.step(|| send_all(&mut backend, &mut batch));
                }
            },
        );
    });
}

fn lost(backend: &XdpBackend) -> usize {
    usize::try_from(backend.counters().rx_overflow).unwrap()
}
