use super::super::eth::{Mac, VlanTag};
use super::*;
use proptest::prelude::*;

/// A frame from 10.0.0.1:49152 to 10.0.0.2:4791, ID 0xbeef, 4 bytes of payload. It was written by
/// hand, and the two checksums were computed by a few lines of Python, not by this crate.
const BY_HAND: [u8; 46] = [
    0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x00, // Ethernet
    0x45, 0, 0, 0x20, 0xbe, 0xef, 0x40, 0, 0x40, 0x11, 0x67, 0xdb, 10, 0, 0, 1, 10, 0, 0,
    2, // IPv4
    0xc0, 0x00, 0x12, 0xb7, 0x00, 0x0c, 0x15, 0x16, // UDP
    1, 2, 3, 4,
];

fn v4() -> NetHeader {
    let ip = |last| IpAddr::from([10, 0, 0, last]);
    let id = IpId::Known { id: 0xbeef, flags: 0x4000 };
    NetHeader { id, ..NetHeader::outgoing(ip(1), ip(2), 0xc000) }
}

fn v6() -> NetHeader {
    let ip = |last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]);
    NetHeader { tos: 0xc2, flow_label: 0xabcde, ..NetHeader::outgoing(ip(1), ip(2), 0xc000) }
}

fn ethernet() -> Ethernet {
    Ethernet {
        dst: Mac([2, 0, 0, 0, 0, 2]),
        src: Mac([2, 0, 0, 0, 0, 1]),
        ethertype: Ethernet::IPV4,
        ..Ethernet::default()
    }
}

fn emit(ethernet: &Ethernet, net: &NetHeader, checksum: UdpChecksum, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    emit_ethernet(ethernet, net, UDP_PORT, checksum, payload, &mut out);
    out
}

#[test]
fn a_frame_is_the_one_made_by_hand() {
    assert_eq!(emit(&ethernet(), &v4(), UdpChecksum::Compute, &[1, 2, 3, 4]), BY_HAND);
    let (eth, datagram) = parse_ethernet(&BY_HAND).unwrap();
    assert_eq!(eth, ethernet());
    assert_eq!(datagram.net, v4());
    assert_eq!(datagram.payload, [1, 2, 3, 4]);
    assert_eq!(datagram.frame().unwrap().segment, 4);
}

#[test]
fn the_udp_checksum_covers_ipv6_and_an_odd_last_byte() {
    let header = IpUdpHeader::new(&v6(), UDP_PORT, UdpChecksum::Compute, &[1, 2, 3]);
    // Computed by the Python code mentioned above.
    assert_eq!(header.as_bytes()[46..], 0x2f1a_u16.to_be_bytes());
}

#[test]
fn tags_are_taken_off_and_put_on() {
    let tag = |tpid, tci| Some(VlanTag { tpid, tci });
    for (vlan, inner_vlan) in [
        (tag(VlanTag::CUSTOMER, 0x6064), None),
        (tag(VlanTag::SERVICE, 1), tag(VlanTag::CUSTOMER, 2)),
    ] {
        let ethernet = Ethernet { vlan, inner_vlan, ..ethernet() };
        let frame = emit(&ethernet, &v4(), UdpChecksum::None, &[9]);
        let (eth, datagram) = parse_ethernet(&frame).unwrap();
        assert_eq!((eth, datagram.payload), (ethernet, &[9][..]));
    }
    assert_eq!(tag(VlanTag::CUSTOMER, 0x6064).unwrap().vid(), 100);
}

#[test]
fn ethernet_padding_is_cut_off() {
    let mut frame = emit(&ethernet(), &v4(), UdpChecksum::None, &[1, 2]);
    frame.resize(60, 0xee);
    assert_eq!(parse_ethernet(&frame).unwrap().1.payload, [1, 2]);
}

#[test]
fn ipv4_options_are_skipped() {
    let mut packet = Vec::new();
    emit_ip(&v4(), UDP_PORT, UdpChecksum::None, &[1, 2], &mut packet);
    packet[0] = 0x46;
    packet[3] += 4;
    packet.splice(20..20, [1, 1, 1, 0]);
    assert_eq!(parse_ip(&packet).unwrap().payload, [1, 2]);
}

#[test]
fn lies_about_lengths_are_found() {
    let good = &BY_HAND[14..];
    let reason = |at: usize, value: u8| {
        let mut packet = good.to_vec();
        packet[at] = value;
        parse_ip(&packet).err()
    };
    assert_eq!(reason(0, 0x44), Some(DropReason::BadIpHeader), "IHL below 5");
    assert_eq!(reason(0, 0x4f), Some(DropReason::BadIpHeader), "options beyond the end");
    assert_eq!(reason(0, 0x55), Some(DropReason::NotIp));
    assert_eq!(reason(3, 0x21), Some(DropReason::Truncated), "total length beyond the end");
    assert_eq!(reason(3, 0x13), Some(DropReason::BadIpHeader), "total length within the header");
    assert_eq!(reason(3, 0x1f), Some(DropReason::BadIpHeader), "total length within UDP's");
    assert_eq!(reason(25, 0x07), Some(DropReason::BadIpHeader), "UDP length within its header");
    assert_eq!(reason(25, 0x0d), Some(DropReason::BadIpHeader), "UDP length beyond the end");
    assert_eq!(reason(6, 0x20), Some(DropReason::Fragment), "more fragments");
    assert_eq!(reason(7, 0x01), Some(DropReason::Fragment), "fragment offset");
    assert_eq!(reason(9, 6), Some(DropReason::NotRoce), "TCP");
    for len in 0..good.len() {
        assert_eq!(parse_ip(&good[..len]).err(), Some(DropReason::Truncated), "{len}");
    }
}

#[test]
fn lies_about_lengths_are_found_in_ipv6() {
    let mut good = Vec::new();
    emit_ip(&v6(), UDP_PORT, UdpChecksum::None, &[1, 2, 3, 4], &mut good);
    assert_eq!(good[..4], [0x6c, 0x2a, 0xbc, 0xde]);
    let reason = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        parse_ip(&packet).err()
    };
    assert_eq!(reason(5, 13), Some(DropReason::Truncated));
    assert_eq!(reason(5, 11), Some(DropReason::BadIpHeader));
    assert_eq!(reason(6, 44), Some(DropReason::Fragment));
    assert_eq!(reason(6, 0), Some(DropReason::NotRoce), "hop-by-hop options");
    for len in 0..good.len() {
        assert_eq!(parse_ip(&good[..len]).err(), Some(DropReason::Truncated), "{len}");
    }
}

#[test]
fn what_is_not_rocev2_says_so() {
    let frame = emit(&Ethernet::default(), &v4(), UdpChecksum::None, &[]);
    let with_type = |ethertype: u16| {
        let mut frame = frame.clone();
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        parse_ethernet(&frame).err()
    };
    assert_eq!(with_type(0x0806), Some(DropReason::NotIp));
    assert_eq!(with_type(0x8915), Some(DropReason::NotIp), "RoCEv1");
    assert_eq!(with_type(Ethernet::IPV6), Some(DropReason::BadIpHeader));
    let mut other_port = Vec::new();
    emit_ip(&v4(), 53, UdpChecksum::None, &[], &mut other_port);
    assert_eq!(parse_ip(&other_port).unwrap().frame().err(), Some(DropReason::NotRoce));
}

proptest! {
    #[test]
    fn arbitrary_frames_never_panic(frame in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = parse_ethernet(&frame);
        let _ = parse_ip(&frame);
    }

    #[test]
    fn damaged_frames_never_panic(
        six: bool, at in 0usize..60, value: u8, len in 0usize..100,
    ) {
        let net = if six { v6() } else { v4() };
        let mut frame = emit(&ethernet(), &net, UdpChecksum::Compute, &[7; 20]);
        frame[at] = value;
        frame.truncate(len);
        let _ = parse_ethernet(&frame);
    }

    #[test]
    fn emitting_what_was_parsed_gives_the_same_bytes(
        six: bool, id: u16, df: bool, tos: u8, ttl: u8, port: u16,
        payload in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut net = if six { v6() } else { v4() };
        if let IpId::Known { id: place, flags } = &mut net.id {
            (*place, *flags) = (id, if df { 0x4000 } else { 0 });
        }
        (net.tos, net.ttl, net.src_port) = (tos, ttl, port);
        let frame = emit(&ethernet(), &net, UdpChecksum::Compute, &payload);
        let (eth, datagram) = parse_ethernet(&frame).unwrap();
        prop_assert_eq!(datagram.net, net);
        prop_assert!(datagram.checksum != 0);
        let again = emit(&eth, &datagram.net, UdpChecksum::Exact(datagram.checksum), &payload);
        prop_assert_eq!(again, frame);
    }
}
