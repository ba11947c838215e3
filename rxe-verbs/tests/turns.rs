//! A peer that requests much data must not stall the other queue pairs of a device.

mod common;

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use rxe_core::wire::{Bth, Ext, NetHeader, Opcode, PacketRepr, Reth, UDP_PORT, emit};
use rxe_verbs::*;

/// Returns the 50th, 99th and 99.9th percentiles and the maximum.
fn percentiles(mut times: Vec<Duration>) -> [Duration; 4] {
    times.sort_unstable();
    let last = times.len() - 1;
    [last / 2, last * 99 / 100, last * 999 / 1000, last].map(|i| times[i])
}

#[test]
fn other_queue_pairs_go_on_while_a_peer_reads_sixteen_gibibytes() {
    go_on_beside_reads(1);
}

/// With two shards, the other queue pairs have an engine and a lock of their own.
#[test]
fn other_queue_pairs_of_another_shard_go_on_too() {
    go_on_beside_reads(2);
}

/// Measures messages and verbs while a peer READs from the last shard of a device with this many
/// shards.
fn go_on_beside_reads(shards: u32) {
    const READS: u32 = 16;
    const LEN: u32 = 1 << 30;
    let a = Side::new(open(address()));
    let b = Side::new(Device::options("lo").address(address()).shards(shards).open().unwrap());
    connect(&a.qp, &b.qp);
    // The peer is a plain socket that never reads what arrives.
    let peer = address();
    let socket = UdpSocket::bind((peer, UDP_PORT)).unwrap();
    let cq = b.device.create_cq(16).unwrap();
    let cq = if shards == 1 { &b.cq } else { &cq };
    let victim = b.pd.qp(cq).build().unwrap();
    let are_apart = victim.qpn().block() != b.qp.qpn().block();
    assert_eq!(are_apart, shards > 1);
    let own = victim.endpoint();
    let first = Psn::new(0x1000);
    let theirs = Endpoint { qpn: Qpn::new(0x77).unwrap(), psn: first, gid: peer.into(), ..own };
    let options = ConnectOptions { mtu: Some(Mtu::M1024), ..patient() };
    victim.connect(&theirs, &options).unwrap();
    let memory = b.region(LEN as usize);
    let Remote { addr, rkey } = memory.remote(0);
    let dst = own.gid.to_ip();
    let inbox = b.region(8);
    let innocent = || {
        let messages = (0..2_000).map(|id| {
            let before = Instant::now();
            a.qp.write_bytes(id, b"innocent", inbox.remote(0)).post().unwrap();
            assert_eq!(a.ok().id, id);
            before.elapsed()
        });
        percentiles(messages.collect())
    };
    let alone = innocent();
    for read in 0..READS {
        let psn = Psn::new(first.value() + read * (LEN / 1024));
        let bth = Bth::new(Opcode::RC_READ_REQUEST, own.qpn, psn);
        let reth = Some(Reth { va: addr, rkey, dma_len: LEN });
        let ext = Ext { reth, ..Ext::default() };
        let net = NetHeader::outgoing(peer, dst, UDP_PORT);
        let mut bytes = Vec::new();
        emit::repr(&net, &mut bytes, &PacketRepr { bth, ext, payload: &[], pad_bytes: [0; 3] });
        socket.send_to(&bytes, (dst, UDP_PORT)).unwrap();
    }
    let sent = b.device.counters().sent_pkts;
    while b.device.counters().sent_pkts < sent + 1000 {
        thread::yield_now();
    }

    // Meanwhile another connection to the same device continues.
    let beside = innocent();
    // Verbs continue to work too.
    let mut verbs = Vec::new();
    for _ in 0..500 {
        let before = Instant::now();
        drop(b.pd.qp(&b.cq).build().unwrap());
        verbs.push(before.elapsed());
    }
    let sent = b.device.counters().sent_pkts;
    println!("{shards} shards; 50, 99, 99.9, 100 % of messages: {beside:?}, before {alone:?}");
    println!("50, 99, 99.9, 100 % of verbs: {:?}", percentiles(verbs));
    let retries = a.device.counters().ack_timeout;
    println!("{sent} packets to the peer, {retries} timeouts of the innocent");
    assert!(sent < u64::from(READS) * u64::from(LEN / 1024), "the peer was served all the while");
}
