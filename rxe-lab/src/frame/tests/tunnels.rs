//! Tests of tunnels.

use super::encapsulations::{NETWORK, SESSION, all, ether, ipv4, udp};
use super::*;
use crate::header::{NETWORK_IDS, SESSION_IDS};

/// A WRITE of 300 bytes, more than the padding of short Ethernet frames.
pub(crate) fn inner(v6: bool) -> Vec<u8> {
    let net = net(v6);
    ethernet(&net, &write(&net, 5, 300))
}

fn other(frame: &Frame<'_>) -> String {
    match frame.content {
        Content::Other(protocol) => protocol.to_string(),
        ref content => panic!("{content:?}"),
    }
}

fn other_of(bytes: &[u8]) -> String {
    other(&decode_bytes(ETHERNET, bytes, bytes.len()))
}

/// Returns the number in the innermost header that has such a field.
fn number(frame: &Frame<'_>, names: &[&str]) -> Option<u64> {
    frame.layers.iter().rev().find_map(|layer| layer.number(names, frame.bytes))
}

#[test]
fn the_packet_inside_each_encapsulation_is_found() {
    let (mut networks, mut sessions) = (0, 0);
    for v6 in [false, true] {
        let net = net(v6);
        for wrapped in all(&inner(v6)) {
            let (name, bytes) = (wrapped.name, &wrapped.bytes);
            let link = LinkType(wrapped.link);
            assert!(link_name(link).is_some(), "{name}");
            let frame = decode_bytes(link, bytes, bytes.len());
            let Content::Rdma(packets) = &frame.content else { panic!("{name}: {frame:?}") };
            let [packet] = &packets[..] else { panic!("{name}: {frame:?}") };
            assert_eq!(packet.icrc, Icrc::Right, "{name}");
            assert_eq!((packet.wrong, packet.payload_len), (None, 300), "{name}");
            let ends = (Address::Ip(net.src), Address::Ip(net.dst));
            assert_eq!(frame.ends, Some(ends), "{name}");
            for (names, expected, count) in
                [(NETWORK_IDS, NETWORK, &mut networks), (SESSION_IDS, SESSION, &mut sessions)]
            {
                if let Some(number) = number(&frame, names) {
                    assert_eq!(number, u64::from(expected), "{name}");
                    *count += 1;
                }
            }
            // The headers follow one another without a gap.
            let mut at = 0;
            for layer in &frame.layers {
                let is_padded = name == "radiotap" && layer.header.name == "LLC";
                assert_eq!(layer.at, if is_padded { at + 2 } else { at }, "{name}: {layer:?}");
                at = layer.at + layer.len;
            }
            assert_eq!(at, packet.at, "{name}");
        }
    }
    assert_eq!((networks, sessions), (2 * 11, 2 * 7));
}

#[test]
fn each_prefix_of_an_encapsulated_frame_is_cut() {
    for v6 in [false, true] {
        for wrapped in all(&inner(v6)) {
            let (link, bytes) = (LinkType(wrapped.link), &wrapped.bytes);
            for len in 0..bytes.len() {
                let cut = decode_bytes(link, &bytes[..len], bytes.len());
                match &cut.content {
                    Content::Cut => {}
                    Content::Rdma(packets) => {
                        assert_eq!(packets[0].icrc, Icrc::Unchecked(Unchecked::Cut));
                    }
                    content => panic!("{}, {len} bytes: {content:?}", wrapped.name),
                }
                // As a frame of this length it is damaged, and maybe something else.
                decode_bytes(link, &bytes[..len], len);
            }
        }
    }
}

/// The decoder tells by the first bytes what is behind a label stack. Ethernet addresses may look
/// like the start of an IP packet or a control word.
#[test]
fn ethernet_behind_labels_is_told_by_what_follows_the_addresses() {
    let packet = inner(false);
    for first in [0x00, 0x02, 0x0e, 0x44, 0x45, 0x48, 0x60, 0x6c, 0x74, 0xfc] {
        for word in [&[][..], &[0; 4]] {
            let mut frame = packet.clone();
            frame[..6].copy_from_slice(&[first, 0, 0, 40, 0, 9]);
            let labels = [0, 1, 1, 64];
            let bytes = ether([0x88, 0x47], &[&labels, word, &frame].concat());
            assert_eq!(super::first(ETHERNET, &bytes).0, Icrc::Right, "{first:#x} {word:?}");
        }
    }
    let unknown = ether([0x88, 0x47], &[0, 1, 1, 64, 0x10, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!(other_of(&unknown), "MPLS");
}

#[test]
fn a_congestion_mark_of_any_header_counts() {
    let plain = all(&inner(false)).swap_remove(0).bytes;
    let marked = |at: Option<usize>| {
        let mut bytes = plain.clone();
        if let Some(at) = at {
            bytes[at] |= 3;
        }
        decode_bytes(ETHERNET, &bytes, bytes.len()).congestion_experienced
    };
    assert!(!marked(None));
    assert!(marked(Some(14 + 1)), "the outer header");
    assert!(marked(Some(14 + 20 + 8 + 8 + 14 + 1)), "the inner header");
}

#[test]
fn the_fragments_of_a_tunnels_packet_are_fragments() {
    for wrapped in all(&inner(false)) {
        let has_ip = wrapped.bytes[12..15] == [8, 0, 0x45] && wrapped.link == 1;
        for flags in [[0x20, 0], [0x20, 9], [0, 9]].into_iter().filter(|_| has_ip) {
            let mut bytes = wrapped.bytes.clone();
            bytes[14 + 6..14 + 8].copy_from_slice(&flags);
            let frame = decode_bytes(ETHERNET, &bytes, bytes.len());
            assert!(matches!(frame.content, Content::Fragment), "{}: {frame:?}", wrapped.name);
        }
    }
}

#[test]
fn a_copy_inside_a_tunnel_has_another_place() {
    let frame = inner(false);
    let place = |bytes: &[u8]| decode_bytes(ETHERNET, bytes, bytes.len()).place;
    let is_tunnel = |name: &str| !["LLC with SNAP", "Ethernet in Ethernet"].contains(&name);
    for wrapped in all(&frame).iter().filter(|wrapped| wrapped.link == 1) {
        let (name, is_outside) = (wrapped.name, place(&wrapped.bytes) == 0);
        assert_eq!(is_outside, !is_tunnel(name), "{name}");
    }
    let of = |name: &str| place(&all(&frame).iter().find(|it| it.name == name).unwrap().bytes);
    assert!(of("VXLAN") != of("GENEVE") && of("ERSPAN II") != of("VXLAN in ERSPAN II"));
    let vxlan = |vni: u8, source: u8| {
        let mut bytes = all(&frame).swap_remove(0).bytes;
        (bytes[14 + 20 + 8 + 6], bytes[14 + 15]) = (vni, source);
        place(&bytes)
    };
    assert_eq!(place(&frame), 0);
    assert_eq!(vxlan(1, 1), vxlan(1, 1));
    assert!(vxlan(1, 1) != vxlan(2, 1) && vxlan(1, 1) != vxlan(1, 2));
}

#[test]
fn a_frame_that_the_mirroring_switch_truncated_is_cut() {
    let frame = inner(false);
    let mirrored = |len: usize, truncated: u8| {
        let head = [0x10, 0, 0x88, 0xbe, 0, 0, 0, 5, 0x10, 100, truncated, 77, 0, 0, 0, 9];
        ether([8, 0], &ipv4(47, &[&head, &frame[..len]].concat()))
    };
    let decode = |bytes: Vec<u8>, check: fn(&Frame<'_>)| {
        check(&decode_bytes(ETHERNET, &bytes, bytes.len()));
    };
    decode(mirrored(100, 4), |frame| {
        let [packet] = packets(frame) else { panic!("{frame:?}") };
        assert_eq!(packet.icrc, Icrc::Unchecked(Unchecked::Cut));
        assert_eq!((packet.payload_len, packet.wrong), (300, None));
    });
    decode(mirrored(40, 4), |frame| assert!(matches!(frame.content, Content::Cut), "{frame:?}"));
    decode(mirrored(100, 0), |frame| {
        let Content::Malformed(why) = frame.content else { panic!("{frame:?}") };
        assert_eq!(why, "the IP packet is longer than its frame");
    });
}

#[test]
fn nested_tunnels_are_followed_up_to_a_limit() {
    let nested = |count: usize| {
        let mut frame = inner(false);
        for _ in 0..count {
            let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &frame].concat();
            frame = ether([8, 0], &ipv4(17, &udp(4789, &vxlan)));
        }
        frame
    };
    assert_eq!(first(ETHERNET, &nested(16)).0, Icrc::Right);
    assert_eq!(other_of(&nested(100)), "too many nested headers");
}

#[test]
fn other_traffic_has_a_name() {
    let of_ethertype = |ethertype: u16| other_of(&ether(ethertype.to_be_bytes(), &[0; 60]));
    assert_eq!(of_ethertype(0x0806), "ARP");
    assert_eq!(of_ethertype(0x8808), "MAC control (pause, PFC)");
    assert_eq!(of_ethertype(0x1234), "EtherType 0x1234");
    let of_protocol = |protocol: u8| other_of(&ether([8, 0], &ipv4(protocol, &[0; 40])));
    assert_eq!((of_protocol(6), of_protocol(99)), ("TCP".into(), "IP protocol 99".into()));
    let of_port = |port: u16| other_of(&ether([8, 0], &ipv4(17, &udp(port, &[0; 40]))));
    assert_eq!((of_port(53), of_port(60000)), ("UDP 53".into(), "UDP 50000".into()));
    // A flag says that there is a VNI.
    assert_eq!(of_port(4789), "UDP 4789");
    let stp = ether([0, 38], &[&[0x42, 0x42, 3][..], &[0; 57]].concat());
    assert_eq!(other_of(&stp), "STP");
    let cdp = ether([0, 60], &[&[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0][..], &[0; 52]].concat());
    assert_eq!(other_of(&cdp), "CDP");
    let lcp = ether([0x88, 0x64], &[0x11, 0, 0, 1, 0, 6, 0xc0, 0x21, 1, 1, 0, 4]);
    assert_eq!(other_of(&lcp), "LCP");
    let arp = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &ether([8, 6], &[0; 46])].concat();
    assert_eq!(other_of(&ether([8, 0], &ipv4(17, &udp(4789, &arp)))), "ARP");
    assert_eq!(other_of(&[0; 10]), "damaged headers");
    let unknown = decode_bytes(LinkType(147), &[0; 60], 60);
    assert_eq!(other(&unknown), "link type 147");
    let wifi = |control: [u8; 2]| {
        let bytes = [&control[..], &[0; 60]].concat();
        other(&decode_bytes(LinkType(105), &bytes, bytes.len()))
    };
    assert_eq!(wifi([0x80, 0]), "802.11 management");
    assert_eq!(wifi([0x08, 0x41]), "encrypted 802.11");
}

proptest! {
    #[test]
    fn changed_bytes_of_encapsulated_frames_are_taken_apart(
        v6: bool, which: prop::sample::Index, cut: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut all = all(&inner(v6));
        let at = which.index(all.len());
        let wrapped = all.swap_remove(at);
        let mut bytes = wrapped.bytes;
        for (at, byte) in changes {
            // Mostly in the headers.
            let at = at.index(bytes.len() * 2) % bytes.len().min(160);
            bytes[at] = byte;
        }
        let captured = &bytes[..bytes.len() - cut.index(bytes.len() * 2).saturating_sub(bytes.len())];
        let frame = decode_bytes(LinkType(wrapped.link), captured, bytes.len());
        for layer in &frame.layers {
            prop_assert!(layer.at + layer.len <= captured.len());
        }
        if let Content::Rdma(packets) = &frame.content {
            for packet in packets {
                prop_assert!(packet.at < captured.len());
                prop_assert!(packet.payload().len() <= packet.payload_len);
            }
        }
    }
}
