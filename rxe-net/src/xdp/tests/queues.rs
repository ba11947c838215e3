//! Several queues of an interface.

use rxe_core::wire::{NetHeader, TxBatch};

use super::{datagrams, open, open_packet};
use crate::testing::link::{FAR, FIRST, NEAR, in_step, ip, with_peer_over};
use crate::testing::{in_bpf_namespace, receive_packets, send_all};
use crate::{Backend, PacketBackend};

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

/// Options of ip-link(8) for an interface that has four queues for each direction.
const FOUR_QUEUES: &str = "numtxqueues 4 numrxqueues 4";
const PORTS: u16 = 64;

/// Sends a packet from each of [`PORTS`] ports to each of these blocks. The kernel chooses the queue by
/// addresses and ports.
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
