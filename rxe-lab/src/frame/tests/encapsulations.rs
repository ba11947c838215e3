//! One Ethernet frame inside each encapsulation that the decoder follows.
//! The test of `rxe decode` against tshark includes this file too.

/// A frame inside an encapsulation.
pub(crate) struct Wrapped {
    pub(crate) name: &'static str,
    /// The link type.
    pub(crate) link: u16,
    pub(crate) bytes: Vec<u8>,
}

/// The VNI or VSID of all encapsulations that have one.
pub(crate) const NETWORK: u32 = 5001;
/// The session of all encapsulations that have one.
pub(crate) const SESSION: u32 = 77;

const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8];
/// VNI 5001, then a reserved byte.
const VNI: [u8; 4] = [0, 0x13, 0x89, 0];
/// A label stack entry at the bottom of its stack: label 16, TTL 64.
const BOTTOM: [u8; 4] = [0, 1, 1, 64];

/// Returns `frame`, which is an Ethernet frame with an IP packet, in each encapsulation.
pub(crate) fn all(frame: &[u8]) -> Vec<Wrapped> {
    let packet = &frame[14..];
    let is_v6 = packet[0] >> 4 == 6;
    let (ethertype, protocol) = if is_v6 { ([0x86, 0xdd], 41) } else { ([8, 0], 4) };
    let join = |parts: &[&[u8]]| parts.concat();
    let ip = |protocol: u8, payload: &[u8]| ether([8, 0], &ipv4(protocol, payload));
    let port = |port: u16, payload: &[u8]| ip(17, &udp(port, payload));
    let gre = |flags: [u8; 2], kind: [u8; 2], rest: &[&[u8]]| {
        ip(47, &join(&[&flags, &kind, &rest.concat()]))
    };
    let vxlan = join(&[&[8, 0, 0, 0], &VNI, frame]);
    let gpe = |next: u8, payload: &[u8]| port(4790, &join(&[&[0x0c, 0, 0, next], &VNI, payload]));
    // MD type 2 with 4 bytes of context; service path 7, index 255.
    let nsh = |next: u8, payload: &[u8]| {
        join(&[&[0x0f, 0xc3, 2, next, 0, 0, 7, 255, 1, 2, 0, 0], payload])
    };
    let labels = [&[0, 0, 0xb2, 63][..], &BOTTOM].concat();
    let wire = join(&[&labels, frame]);
    let sequence = [0, 0, 0, 5];
    // Version 1, VLAN 100, COS 3, session 77.
    let erspan_ii = [0x10, 100, 0x60, 77, 0, 0, 0, 9];
    let erspan_iii = |last: u8, ft: u8| [0x20, 100, 0x60, 77, 1, 2, 3, 4, 0, 8, ft << 2, last];
    let pppoe = |protocol: &[u8]| {
        let len = u16::try_from(protocol.len() + packet.len()).unwrap().to_be_bytes();
        join(&[&[0x11, 0, 0, 77], &len, protocol, packet])
    };
    let ppp: &[u8] = if is_v6 { &[0, 0x57] } else { &[0, 0x21] };
    let compressed = &ppp[1..];
    // Of type 4, with one segment: the destination of the outer header.
    let routing = |next: u8, payload: &[u8]| {
        let head = [&[next, 2, 4, 0, 0, 0, 0, 0][..], &v6_address(9)].concat();
        ether([0x86, 0xdd], &ipv6(43, &join(&[&head, payload])))
    };
    let snap = join(&[&[0xaa, 0xaa, 3, 0, 0, 0], &ethertype, packet]);
    let len = u16::try_from(snap.len()).unwrap().to_be_bytes();
    let wlan = |control: [u8; 2], more: &[u8]| {
        let head = [&control[..], &[0x2c, 0], &ADDRESSES, &[2, 0, 0, 0, 0, 7, 0x10, 3]].concat();
        join(&[&head, more, &snap])
    };
    // Time of reception and flags are present; the flags say that the header is padded.
    let radiotap = [0, 0, 17, 0, 3, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x20];
    let gtp = |flags: u8, rest: &[u8]| {
        let len = u16::try_from(rest.len()).unwrap().to_be_bytes();
        port(2152, &join(&[&[flags, 255], &len, &[0, 0, 0x12, 0x34], rest]))
    };
    let list: Vec<(&'static str, u16, Vec<u8>)> = vec![
        ("VXLAN", 1, port(4789, &vxlan)),
        ("VXLAN on Linux's port", 1, port(8472, &vxlan)),
        ("VXLAN over IPv6", 1, ether([0x86, 0xdd], &ipv6(17, &udp(4789, &vxlan)))),
        ("VXLAN-GPE with IP", 1, gpe(if is_v6 { 2 } else { 1 }, packet)),
        ("VXLAN-GPE with Ethernet", 1, gpe(3, frame)),
        ("VXLAN-GPE with NSH", 1, gpe(4, &nsh(3, frame))),
        ("VXLAN-GPE with MPLS", 1, gpe(5, &join(&[&BOTTOM, packet]))),
        ("GENEVE", 1, port(6081, &join(&[&[0, 0, 0x65, 0x58], &VNI, frame]))),
        (
            "GENEVE with options and IP",
            1,
            port(
                6081,
                &join(&[
                    &[3, 0],
                    &ethertype,
                    &VNI,
                    &[1, 2, 3, 1, 5, 6, 7, 8, 0xff, 0xf0, 4, 0],
                    packet,
                ]),
            ),
        ),
        ("MPLS in UDP", 1, port(6635, &join(&[&BOTTOM, packet]))),
        ("GTP-U", 1, gtp(0x30, packet)),
        (
            "GTP-U with an extension",
            1,
            gtp(0x36, &join(&[&[0, 6, 0, 0x85, 1, 0x10, 2, 0], packet])),
        ),
        ("IP in IPv4", 1, ip(protocol, packet)),
        ("IP in IPv6", 1, ether([0x86, 0xdd], &ipv6(protocol, packet))),
        ("GRE", 1, gre([0, 0], ethertype, &[packet])),
        (
            "GRE with checksum, key and sequence number",
            1,
            gre([0xb0, 0], ethertype, &[&[0; 4], &[0, 0, 0, 3], &sequence, packet]),
        ),
        ("GRE with Ethernet", 1, gre([0, 0], [0x65, 0x58], &[frame])),
        ("NVGRE", 1, gre([0x20, 0], [0x65, 0x58], &[&VNI, frame])),
        ("GRE with MPLS", 1, gre([0, 0], [0x88, 0x47], &[&labels, packet])),
        (
            "PPTP",
            1,
            gre(
                [0x30, 0x81],
                [0x88, 0x0b],
                &[
                    &u16::try_from(packet.len() + 4).unwrap().to_be_bytes(),
                    &[0, 8],
                    &sequence,
                    &[0, 0, 0, 4],
                    &[0xff, 3],
                    ppp,
                    packet,
                ],
            ),
        ),
        ("ERSPAN I", 1, gre([0, 0], [0x88, 0xbe], &[frame])),
        ("ERSPAN II", 1, gre([0x10, 0], [0x88, 0xbe], &[&sequence, &erspan_ii, frame])),
        ("ERSPAN III", 1, gre([0x10, 0], [0x22, 0xeb], &[&sequence, &erspan_iii(0, 0), frame])),
        (
            "ERSPAN III with the platform's part",
            1,
            gre(
                [0x10, 0],
                [0x22, 0xeb],
                &[&sequence, &erspan_iii(1, 0), &[0x0c, 0, 0, 1, 0, 0, 0, 2], frame],
            ),
        ),
        (
            "ERSPAN III with IP",
            1,
            gre([0x10, 0], [0x22, 0xeb], &[&sequence, &erspan_iii(0, 2), packet]),
        ),
        (
            "VXLAN in ERSPAN II",
            1,
            gre([0x10, 0], [0x88, 0xbe], &[&sequence, &erspan_ii, &port(4789, &vxlan)]),
        ),
        ("MPLS in IP", 1, ip(137, &join(&[&BOTTOM, packet]))),
        ("SRv6 with Ethernet", 1, routing(143, frame)),
        ("SRv6 with IP", 1, routing(protocol, packet)),
        ("MPLS", 1, ether([0x88, 0x47], &join(&[&labels, packet]))),
        ("MPLS with Ethernet", 1, ether([0x88, 0x47], &wire)),
        (
            "MPLS with Ethernet behind a control word",
            1,
            ether([0x88, 0x47], &join(&[&labels, &[0; 4], frame])),
        ),
        ("PPPoE", 1, ether([0x88, 0x64], &pppoe(ppp))),
        ("NSH", 1, ether([0x89, 0x4f], &nsh(3, frame))),
        ("802.1ah", 1, ether([0x88, 0xe7], &join(&[&[0x60, 0, 0x13, 0x89], frame]))),
        ("LLC with SNAP", 1, ether(len, &snap)),
        ("Ethernet in Ethernet", 1, ether([0x65, 0x58], frame)),
        ("PPP", 9, join(&[ppp, packet])),
        ("PPP with a compressed protocol number", 9, join(&[compressed, packet])),
        ("PPP in HDLC framing", 50, join(&[&[0xff, 3], ppp, packet])),
        ("Cisco HDLC on a serial line", 50, join(&[&[0x0f, 0], &ethertype, packet])),
        ("PPP with direction", 204, join(&[&[1, 0xff, 3], ppp, packet])),
        ("PPPoE alone", 51, pppoe(ppp)),
        ("Cisco HDLC", 104, join(&[&[0x8f, 0], &ethertype, packet])),
        ("802.11", 105, wlan([0x08, 1], &[])),
        ("802.11 with four addresses", 105, wlan([0x08, 3], &[2, 0, 0, 0, 0, 6])),
        ("802.11 with QoS", 105, wlan([0x88, 2], &[5, 0])),
        ("802.11 with HT control", 105, wlan([0x88, 0x82], &[5, 0, 1, 2, 3, 4])),
        ("radiotap", 127, join(&[&radiotap, &wlan([0x88, 1], &[5, 0, 0, 0])])),
    ];
    list.into_iter().map(|(name, link, bytes)| Wrapped { name, link, bytes }).collect()
}

/// Returns an Ethernet frame.
pub(crate) fn ether(ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
    [&ADDRESSES[..], &ethertype, payload].concat()
}

/// Returns an IPv4 packet from 192.0.2.1 to 192.0.2.2, without a checksum.
pub(crate) fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let head = [0x45, 0, len[0], len[1], 0x12, 0x34, 0x40, 0, 63, protocol, 0, 0];
    [&head[..], &[192, 0, 2, 1, 192, 0, 2, 2], payload].concat()
}

/// Returns an IPv6 packet from 2001:db8::1 to 2001:db8::2.
pub(crate) fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [0x60, 0, 0, 7, len[0], len[1], next, 63];
    [&head[..], &v6_address(1), &v6_address(2), payload].concat()
}

fn v6_address(last: u8) -> [u8; 16] {
    [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

/// Returns a UDP datagram to this port, without a checksum.
pub(crate) fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
    let port = port.to_be_bytes();
    [&[0xc3, 0x50, port[0], port[1], len[0], len[1], 0, 0][..], payload].concat()
}
