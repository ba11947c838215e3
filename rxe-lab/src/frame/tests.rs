pub(crate) mod encapsulations;
pub(crate) mod tunnels;

use std::net::IpAddr;

use proptest::prelude::*;
use rxe_core::types::{Key, Psn, Qpn};
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet, emit_ip};
use rxe_core::wire::{
    Bth, Ethernet, Ext, IpId, NetHeader, Opcode, Packet, Reth, TxBatch, TxLimits, UDP_PORT, emit,
};

use super::*;
use crate::capture::LinkType;

const ETHERNET: LinkType = LinkType(1);
const RAW: LinkType = LinkType(101);

fn net(v6: bool) -> NetHeader {
    let ip = |n: u8| -> IpAddr {
        if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into() } else { [10, 0, 0, n].into() }
    };
    NetHeader::outgoing(ip(1), ip(2), 5000)
}

/// Creates a WRITE ONLY with `len` bytes of payload, from BTH to ICRC.
fn write(net: &NetHeader, psn: u32, len: usize) -> Vec<u8> {
    let bth = Bth {
        ack_req: true,
        ..Bth::new(Opcode::RC_WRITE_ONLY, Qpn::from_wire(0x11), Psn::new(psn))
    };
    let reth = Reth { va: 0x1000, rkey: Key(7), dma_len: u32::try_from(len).unwrap() };
    let mut packet = Vec::new();
    emit::packet_from(
        net,
        &mut packet,
        &bth,
        &Ext { reth: Some(reth), ..Ext::default() },
        &vec![9; len],
    );
    packet
}

fn ethernet(net: &NetHeader, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    emit_ethernet(&Ethernet::default(), net, UDP_PORT, UdpChecksum::None, payload, &mut frame);
    frame
}

#[track_caller]
fn packets<'a>(frame: &'a Frame<'_>) -> &'a [Transport<'a>] {
    match &frame.content {
        Content::Rdma(packets) => packets,
        other => panic!("{other:?}"),
    }
}

/// Decodes a whole frame. Returns the ICRC result and the VA of its first packet.
#[track_caller]
fn first(link: LinkType, frame: &[u8]) -> (Icrc, Option<u64>) {
    let frame = decode_bytes(link, frame, frame.len());
    let packet = &packets(&frame)[0];
    (packet.icrc, packet.ext.reth.map(|reth| reth.va))
}

#[test]
fn whole_packets_of_both_ip_versions_are_right_and_damaged_ones_wrong() {
    for v6 in [false, true] {
        let net = net(v6);
        let mut frame = ethernet(&net, &write(&net, 5, 61));
        assert_eq!(first(ETHERNET, &frame), (Icrc::Right, Some(0x1000)));
        assert_eq!(first(RAW, &frame[14..]), (Icrc::Right, Some(0x1000)));
        let padded = [&frame[..], &[0; 18]].concat();
        assert_eq!(first(ETHERNET, &padded).0, Icrc::Right, "padding of Ethernet");
        *frame.last_mut().unwrap() ^= 1;
        assert_eq!(first(ETHERNET, &frame).0, Icrc::Wrong);
    }
}

#[test]
fn a_cut_frame_gives_the_headers_that_are_there() {
    let net = net(false);
    let frame = ethernet(&net, &write(&net, 5, 1000));
    let of = |len: usize| decode_bytes(ETHERNET, &frame[..len], frame.len());
    for len in 0..frame.len() {
        let cut = of(len);
        match &cut.content {
            Content::Cut => assert!(len < 14 + 20 + 8 + 12, "{len}"),
            Content::Rdma(packets) => {
                let [packet] = &packets[..] else { panic!("{packets:?}") };
                assert_eq!(packet.icrc, Icrc::Unchecked(Unchecked::Cut));
                assert_eq!((packet.payload_len, packet.wrong), (1000, None));
                assert_eq!(packet.ext.reth.is_some(), len >= 14 + 20 + 8 + 12 + 16);
            }
            other => panic!("{len}: {other:?}"),
        }
        for layer in &cut.layers {
            assert!(layer.at + layer.len <= len);
        }
    }
}

#[test]
fn options_extension_headers_and_fragments_are_passed() {
    let v4 = net(false);
    let mut ip = Vec::new();
    emit_ip(&v4, UDP_PORT, UdpChecksum::None, &write(&v4, 5, 64), &mut ip);
    let mut options = ip.clone();
    options.splice(20..20, [1, 1, 1, 0]);
    (options[0], options[3]) = (0x46, options[3] + 4);
    assert_eq!(first(RAW, &options), (Icrc::Unchecked(Unchecked::IpOptions), Some(0x1000)));

    let mut fragment = ip.clone();
    fragment[6] = 0x20;
    assert_eq!(first(RAW, &fragment).0, Icrc::Unchecked(Unchecked::Fragment));
    // The first fragment has the headers, which describe the whole packet.
    let mut part = fragment[..20 + 8 + 12 + 16 + 24].to_vec();
    part[3] = u8::try_from(part.len()).unwrap();
    let part = decode_bytes(RAW, &part, part.len());
    let Content::Rdma(packets) = &part.content else { panic!("{part:?}") };
    assert_eq!((packets.len(), packets[0].payload_len, packets[0].wrong), (1, 64, None));
    fragment[7] = 9;
    let later = decode_bytes(RAW, &fragment, fragment.len());
    assert!(matches!(later.content, Content::Fragment), "{later:?}");

    let v6 = net(true);
    let mut ip = Vec::new();
    emit_ip(&v6, UDP_PORT, UdpChecksum::None, &write(&v6, 5, 64), &mut ip);
    let with = |next: u8, header: &[u8]| {
        let mut packet = ip.clone();
        packet.splice(40..40, header.iter().copied());
        packet[6] = next;
        packet[5] += u8::try_from(header.len()).unwrap();
        packet
    };
    let hop = with(0, &[17, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(first(RAW, &hop), (Icrc::Unchecked(Unchecked::Extension), Some(0x1000)));
    let fragment = with(44, &[17, 0, 0, 1, 0, 0, 0, 9]);
    assert_eq!(first(RAW, &fragment).0, Icrc::Unchecked(Unchecked::Fragment));
    let later = with(44, &[17, 0, 1, 0, 0, 0, 0, 9]);
    assert!(matches!(decode_bytes(RAW, &later, later.len()).content, Content::Fragment));
    // An atomic fragment (RFC 6946) is a whole packet, and so is its UDP datagram.
    let mut atomic = with(44, &[17, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(first(RAW, &atomic).0, Icrc::Unchecked(Unchecked::Fragment));
    atomic[48 + 4..48 + 6].copy_from_slice(&4000u16.to_be_bytes());
    let content = decode_bytes(RAW, &atomic, atomic.len()).content;
    assert!(matches!(content, Content::Malformed(_)), "{content:?}");
}

#[test]
fn frames_of_several_packets_are_split() {
    for v6 in [false, true] {
        let net = net(v6);
        // Packets as the engine sends them: a message of 5 packets, of which the last is short.
        let mut batch = TxBatch::new(TxLimits::default());
        for psn in 0..5u32 {
            let opcode = if psn < 4 { Opcode::RC_SEND_MIDDLE } else { Opcode::RC_SEND_LAST };
            let bth = Bth::new(opcode, Qpn::from_wire(0x11), Psn::new(psn));
            let payload = vec![3; if psn < 4 { 1024 } else { 17 }];
            batch.push(net, emit::len(opcode, payload.len()), |prefix, buf| {
                emit::packet_from(prefix, buf, &bth, &Ext::default(), &payload);
            });
        }
        let [burst] = batch.pending() else { panic!("{:?}", batch.pending()) };
        let frame = ethernet(&net, batch.bytes(burst));
        let decoded = decode_bytes(ETHERNET, &frame, frame.len());
        let seen: Vec<_> = packets(&decoded)
            .iter()
            .map(|p| (p.bth.psn.value(), p.payload_len, p.icrc, p.segment))
            .collect();
        let expected: Vec<_> = (0..5)
            .map(|n| (n, if n < 4 { 1024 } else { 17 }, Icrc::Right, Some((n as usize + 1, 5))))
            .collect();
        assert_eq!(seen, expected);
        // The kernel may or may not increment the IPv4 identification per packet.
        let fixed = NetHeader { id: IpId::Known { id: 0x1234, flags: 0x4000 }, ..net };
        if !v6 {
            let frame = ethernet(&fixed, batch.bytes(burst));
            let decoded = decode_bytes(ETHERNET, &frame, frame.len());
            assert_eq!(packets(&decoded).len(), 5, "found by an ICRC over another identification");
        }
        // A truncated frame is decoded as far as it was captured.
        let cut = decode_bytes(ETHERNET, &frame[..2000], frame.len());
        let seen: Vec<_> = packets(&cut).iter().map(|p| (p.bth.psn.value(), p.segment)).collect();
        if frame.len() > 4200 + 100 {
            assert_eq!(seen, [(0, Some((1, 5))), (1, Some((2, 5)))]);
        }
        // One of the packets is damaged.
        let mut damaged = frame.clone();
        damaged[frame.len() - 500] ^= 1;
        let decoded = decode_bytes(ETHERNET, &damaged, damaged.len());
        let wrong: Vec<_> =
            packets(&decoded).iter().filter(|p| p.icrc == Icrc::Wrong).map(|p| p.segment).collect();
        assert_eq!(wrong, [Some((4, 5))]);
    }
}

/// The frame has packets of 24 bytes each, and 54 bytes of them were captured.
#[test]
fn a_cut_frame_says_how_many_packets_of_it_were_not_captured() {
    let net = net(false);
    let mut all = Vec::new();
    for psn in 5..25 {
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::from_wire(0x11), Psn::new(psn));
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &Ext::default(), &[7; 8]);
        all.extend(packet);
    }
    let frame = ethernet(&net, &all);
    let unseen = |captured: usize| {
        let decoded = decode_bytes(ETHERNET, &frame[..captured], frame.len());
        let last = packets(&decoded).last().unwrap();
        (last.segment, last.unseen.most(None), last.unseen.is_certain(None))
    };
    assert_eq!(unseen(96), (Some((2, 20)), 18, true));
    // The second header was not captured: packets have 24 bytes or more.
    assert_eq!(unseen(42 + 35), (None, 19, false));
    assert_eq!(unseen(frame.len()), (Some((20, 20)), 0, false));
}

#[test]
fn a_damaged_packet_is_not_taken_for_several() {
    let net = net(false);
    let inner = write(&net, 6, 64);
    let mut payload = write(&net, 5, 2000);
    // A payload that resembles packets.
    payload[500..500 + inner.len()].copy_from_slice(&inner);
    let frame = ethernet(&net, &payload);
    let decoded = decode_bytes(ETHERNET, &frame, frame.len());
    let [packet] = packets(&decoded) else { panic!("{decoded:?}") };
    assert_eq!((packet.icrc, packet.segment), (Icrc::Wrong, None));
}

#[test]
fn lengths_that_contradict_each_other_are_named() {
    let net = net(false);
    let mut frame = ethernet(&net, &write(&net, 5, 64));
    let of = |at: usize, value: u16| {
        let mut frame = frame.clone();
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
        match decode_bytes(ETHERNET, &frame, frame.len()).content {
            Content::Malformed(why) => why,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(of(14 + 2, 5000), "the IP packet is longer than its frame");
    assert_eq!(of(14 + 20 + 4, 500), "the UDP length exceeds that of the IP packet");
    assert_eq!(of(14 + 20 + 4, 12), "shorter than a base transport header");
    // The UDP length is less than a UDP header, and the rest of the frame was not captured.
    frame[14 + 20 + 4..][..2].copy_from_slice(&[0, 4]);
    let cut = decode_bytes(ETHERNET, &frame[..14 + 20 + 8], frame.len());
    assert!(matches!(cut.content, Content::Malformed(_)), "{:?}", cut.content);
}

proptest! {
    #[test]
    fn structure_is_judged_as_the_engine_judges_it(
        code: u8, flags: u8, body in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let net = net(false);
        let packet = [&[code, flags, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 1][..], &body].concat();
        let frame = ethernet(&net, &packet);
        let decoded = decode_bytes(ETHERNET, &frame, frame.len());
        let one = &packets(&decoded)[0];
        match Packet::parse(&packet) {
            Ok(parsed) => {
                prop_assert_eq!(one.wrong, None);
                prop_assert_eq!(one.ext, parsed.ext());
                prop_assert_eq!(one.payload(), parsed.payload());
            }
            Err(why) => prop_assert_eq!(one.wrong, Some(why)),
        }
    }

    #[test]
    fn any_bytes_are_taken_apart(
        link in 0u16..300, bytes in proptest::collection::vec(any::<u8>(), 0..300), more in 0usize..50,
    ) {
        let decoded = decode_bytes(LinkType(link), &bytes, bytes.len() + more);
        for layer in &decoded.layers {
            prop_assert!(layer.at + layer.len <= bytes.len());
        }
    }
}
