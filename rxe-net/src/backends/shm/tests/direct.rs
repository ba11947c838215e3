//! Tests of direct packets.

use rxe_core::mem::Source;
use rxe_core::types::Qpn;
use rxe_core::wire::{NetHeader, Placed, TxBatch, UDP_PORT, icrc};

use super::super::Shm;
use super::{ip, open, over_the_wire, readable};
use crate::backend::{Backend, SendStatus};
use crate::backends::udp::UdpBackend;
use crate::testing::in_namespace;

/// Sends a direct packet with this payload; BTH and addresses as in [`packets`].
fn send_direct(from: &mut Shm<UdpBackend>, net: &NetHeader, payload: &[u8]) -> Placed {
    let mut bth = [0; 12];
    bth[5] = 1;
    bth[1] = u8::try_from(payload.len().wrapping_neg() & 3).unwrap() << 4;
    let direct = Backend::direct(from).unwrap();
    direct.send(net, &bth, &Source::Bytes(payload), 1).unwrap()
}

/// Sends a payload as a coalesced segment of `count` packets, the first with PSN 0.
fn send_coalesced(
    from: &mut Shm<UdpBackend>,
    net: &NetHeader,
    payload: &[u8],
    count: u16,
) -> Placed {
    let mut bth = [0; 12];
    bth[5] = 1;
    let direct = Backend::direct(from).unwrap();
    direct.send(net, &bth, &Source::Bytes(payload), count).unwrap()
}

#[test]
fn packets_sent_at_once_arrive_in_order_with_those_of_batches() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        let other = NetHeader { tos: 0x68, src_port: 7, ..net };
        let mut expected = Vec::new();
        let mut sent = 0;
        for round in 0..2000_usize {
            let payload: Vec<u8> =
                (0..round * 7 % 4097).map(|i| (i + round).to_le_bytes()[0]).collect();
            let net = if round % 50 < 30 { net } else { other };
            if round % 9 == 8 {
                let mut batch = TxBatch::new(from.capabilities().tx);
                batch.push_to(net, Qpn::from_wire(0x01_0000), payload.len() + 20, |_, buf| {
                    buf.extend([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
                    buf.extend(&payload);
                    buf.extend([9; 8]);
                });
                assert_eq!(from.send(&mut batch).unwrap(), SendStatus::Done);
            } else {
                assert_eq!(send_direct(&mut from, &net, &payload), Placed::Sent);
            }
            sent += 1;
            expected.push((net.src_port, net.tos, 0, payload));
            if round % 7 == 6 {
                let count = 1 + round % 100;
                let payload: Vec<u8> =
                    (0..count * 256).map(|i| (i * round).to_le_bytes()[0]).collect();
                let coalesced = u16::try_from(count).unwrap();
                assert_eq!(send_coalesced(&mut from, &net, &payload, coalesced), Placed::Sent);
                let packets = (0..=u8::MAX).zip(payload.chunks(256));
                expected.extend(packets.map(|(psn, p)| (net.src_port, net.tos, psn, p.to_vec())));
                sent += count;
            }
            if round % 100 == 99 {
                let mut nothing = TxBatch::new(from.capabilities().tx);
                assert_eq!(from.send(&mut nothing).unwrap(), SendStatus::Done);
                let mut got = Vec::new();
                to.watch(true);
                while got.len() < expected.len() {
                    assert!(readable(&to, 10), "{} packets", got.len());
                    let mut buf = Vec::new();
                    to.receive(64, &mut |frame| {
                        let coalesced = !frame.coalesced.is_empty();
                        frame.for_each_whole(&mut buf, &mut |whole| {
                            let bytes = whole.payload;
                            let end = bytes.len()
                                - if coalesced { 4 + usize::from(bytes[1] >> 4) } else { 8 };
                            let right = icrc::check(&whole.net, bytes).is_ok();
                            assert_eq!(right, coalesced, "what was on no wire gets an ICRC");
                            let psn = bytes[11];
                            let payload = bytes[12..end].to_vec();
                            got.push((whole.net.src_port, whole.net.tos, psn, payload));
                        });
                    })
                    .unwrap();
                }
                to.watch(false);
                assert!(got == expected);
                expected.clear();
            }
        }
        assert_eq!((over_the_wire(&to), from.counters().tx_packets), (0, sent as u64));
        assert_eq!(to.counters().rx_packets, sent as u64);
    });
}

#[test]
fn a_coalesced_segment_counts_as_its_packets() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        // A WRITE whose first packet has a RETH.
        let mut counted = |records: &[(usize, usize, u16)]| {
            for &(head, payload, count) in records {
                let head = [&[0, 0, 0, 0, 0, 1], &vec![0; head - 6][..]].concat();
                let direct = Backend::direct(&mut from).unwrap();
                let payload = vec![0; payload];
                direct.send(&net, &head, &Source::Bytes(&payload), count).unwrap();
            }
            from.send(&mut TxBatch::new(from.capabilities().tx)).unwrap();
            let (sent, before) = (from.counters(), to.counters().rx_packets);
            while to.counters().rx_packets == before {
                to.receive(64, &mut |_| {}).unwrap();
            }
            let got = to.counters();
            [sent.tx_packets, sent.tx_bytes, got.rx_packets, got.rx_bytes]
        };
        let alone = counted(&[(28, 256, 1), (12, 256, 1), (12, 8, 1)]);
        let both = counted(&[(28, 520, 3)]);
        assert_eq!(both, alone.map(|count| 2 * count));
    });
}

#[test]
fn who_is_not_reached_through_memory_gets_nothing_at_once() {
    in_namespace("", || {
        let mut from = open("127.0.0.1");
        let to = |from: &str, to: &str| NetHeader::outgoing(ip(from), ip(to), UDP_PORT);
        for net in [
            to("127.0.0.1", "127.0.0.9"),
            to("127.0.0.1", "127.0.0.1"),
            to("127.0.0.3", "127.0.0.1"),
        ] {
            assert_eq!(send_direct(&mut from, &net, &[1]), Placed::Unsupported, "{net:?}");
            assert_eq!(send_coalesced(&mut from, &net, &[1; 8], 2), Placed::Unsupported, "{net:?}");
            let direct = Backend::direct(&mut from).unwrap();
            assert_eq!(direct.max_coalesced(&net, Qpn::from_wire(0x01_0000)), 0);
        }
        let _to = open("127.0.0.2");
        let net = to("127.0.0.1", "127.0.0.2");
        while send_direct(&mut from, &net, &[0; 4096]) == Placed::Sent {}
        assert_eq!(send_direct(&mut from, &net, &[0; 4096]), Placed::NoRoom);
        assert_eq!(send_coalesced(&mut from, &net, &[0; 8192], 2), Placed::NoRoom);
    });
}

/// Two ends that poll, and sometimes sleep: no packet stays in a ring unnoticed.
#[test]
fn a_ping_pong_of_packets_sent_at_once_never_stops() {
    const ROUNDS: u32 = 50_000;
    in_namespace("", || {
        let play = |own: &str, peer: &str, first: bool| {
            let mut backend = open(own);
            let net = NetHeader::outgoing(ip(own), ip(peer), UDP_PORT);
            let mut nothing = TxBatch::new(backend.capabilities().tx);
            while send_direct(&mut backend, &net, b"begin") != Placed::Sent {
                backend.send(&mut nothing).unwrap();
            }
            backend.send(&mut nothing).unwrap();
            let mut next = 0_u32;
            let mut begun = false;
            let mut idle = 0_u32;
            let mut turn = first;
            while next < ROUNDS {
                if turn && begun {
                    assert_eq!(send_direct(&mut backend, &net, &next.to_be_bytes()), Placed::Sent);
                    backend.send(&mut nothing).unwrap();
                    next += 1;
                    turn = false;
                    idle = 0;
                }
                if next.is_multiple_of(100) && idle == 0 {
                    backend.watch(true);
                } else if next % 100 == 1 {
                    backend.watch(false);
                }
                let mut got = 0;
                backend
                    .receive(64, &mut |frame| {
                        for packet in frame.coalesced {
                            let mut bytes = [0; 4];
                            got += 1;
                            if packet.payload.len() == 5 {
                                begun = true;
                                continue;
                            }
                            packet.payload.read(&mut bytes).unwrap();
                            let expected = if first { next - 1 } else { next };
                            assert_eq!(u32::from_be_bytes(bytes), expected, "{own}");
                            next += u32::from(!first);
                            turn = true;
                        }
                    })
                    .unwrap();
                idle = if got > 0 { 0 } else { idle + 1 };
                if !first && turn {
                    let answer = (next - 1).to_be_bytes();
                    assert_eq!(send_direct(&mut backend, &net, &answer), Placed::Sent);
                    backend.send(&mut nothing).unwrap();
                    turn = false;
                }
                assert!(idle < 20_000_000, "{own} waits for ever at {next}");
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| play("127.0.0.1", "127.0.0.2", true));
            scope.spawn(|| play("127.0.0.2", "127.0.0.1", false));
        });
    });
}
