//! The headers of a payload on a packet socket. These are a virtio header that tells the kernel how
//! to segment, then Ethernet, IP and UDP. They are kept on the stack, and built once for a whole
//! burst.

use std::net::IpAddr;

use rxe_core::wire::NetHeader;
use rxe_core::wire::UDP_PORT;
use rxe_core::wire::frame::{IpUdpHeader, UdpChecksum};

/// The length in bytes of an Ethernet header without tags.
pub(crate) const ETHERNET: usize = 14;
/// The length in bytes of `struct virtio_net_hdr`.
pub(crate) const VNET: usize = 10;

const UDP: usize = 8;
/// The offset of the checksum in a UDP header.
const UDP_CHECKSUM: usize = 6;
const PROTOCOL_UDP: u8 = 17;

const VNET_NEEDS_CSUM: u8 = 1;
const VNET_GSO_NONE: u8 = 0;
const VNET_GSO_UDP_L4: u8 = 5;
const VNET_GSO_ECN: u8 = 0x80;

/// Returns the EtherType for an address family.
pub(crate) fn ethertype(ip: IpAddr) -> u16 {
    if ip.is_ipv4() { 0x0800 } else { 0x86dd }
}

/// The headers of one packet, or of a burst that the kernel segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    /// The virtio header and the Ethernet header; used from `front_from` on.
    front: [u8; VNET + ETHERNET],
    front_from: usize,
    ip: IpUdpHeader,
}

impl Headers {
    /// Returns the headers of a packet that the kernel routes. RoCEv2 has no UDP checksum over
    /// IPv4; IPv6 requires one.
    pub(crate) fn routed(net: &NetHeader, payload: &[u8]) -> Self {
        let checksum = if net.dst.is_ipv4() { UdpChecksum::None } else { UdpChecksum::Compute };
        let ip = IpUdpHeader::new(net, UDP_PORT, checksum, payload);
        Self { front: [0; VNET + ETHERNET], front_from: VNET + ETHERNET, ip }
    }

    /// Returns the headers of an Ethernet packet, without a virtio header.
    pub(crate) fn plain(net: &NetHeader, payload: &[u8], src: [u8; 6], dst: [u8; 6]) -> Self {
        Self::routed(net, payload).on_ethernet(net, src, dst)
    }

    /// Returns the length in bytes of the headers that [`Headers::plain`] returns for this packet.
    pub(crate) fn plain_len(net: &NetHeader) -> usize {
        ETHERNET + if net.dst.is_ipv4() { 20 } else { 40 } + UDP
    }

    /// Returns the headers of Ethernet packets, with a virtio header. Packets have `segment` bytes
    /// (`None`: a single packet). If a UDP checksum is required (for IPv6 and for segmented
    /// bursts), the kernel or the device completes it.
    pub(crate) fn offloaded(
        net: &NetHeader,
        payload: &[u8],
        segment: Option<usize>,
        src: [u8; 6],
        dst: [u8; 6],
    ) -> Self {
        let partial = segment.is_some() || net.dst.is_ipv6();
        let checksum = if partial {
            UdpChecksum::Exact(pseudo_sum(net, UDP + payload.len()))
        } else {
            UdpChecksum::None
        };
        let ip = IpUdpHeader::new(net, UDP_PORT, checksum, payload);
        let mut headers =
            Self { front: [0; VNET + ETHERNET], front_from: 0, ip }.on_ethernet(net, src, dst);
        let whole = ETHERNET + ip.as_bytes().len();
        let vnet = &mut headers.front[..VNET];
        if let Some(segment) = segment {
            vnet[1] = VNET_GSO_UDP_L4;
            vnet[4..6].copy_from_slice(&number(segment));
        }
        if partial {
            vnet[0] = VNET_NEEDS_CSUM;
            vnet[6..8].copy_from_slice(&number(whole - UDP));
            vnet[8..].copy_from_slice(&number(UDP_CHECKSUM));
        }
        vnet[2..4].copy_from_slice(&number(whole));
        headers.front_from = 0;
        headers
    }

    /// Returns the headers before IP, and the IP and UDP headers.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        [&self.front[self.front_from..], self.ip.as_bytes()]
    }

    fn on_ethernet(mut self, net: &NetHeader, src: [u8; 6], dst: [u8; 6]) -> Self {
        let header = &mut self.front[VNET..];
        header[..6].copy_from_slice(&dst);
        header[6..12].copy_from_slice(&src);
        header[12..].copy_from_slice(&ethertype(net.dst).to_be_bytes());
        self.front_from = VNET;
        self
    }
}

/// The content of a received frame's virtio header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vnet {
    /// The number of bytes per segment; 0 if the frame is one packet.
    pub(crate) gso_size: usize,
    /// The start of the bytes that a missing checksum covers, and the checksum's offset from there.
    /// A frame from this host lacks its checksum if no network card has completed it.
    checksum: Option<(usize, usize)>,
}

impl Vnet {
    /// Returns whether the frame lacks a checksum that its receiver would verify. RoCEv2 relies on
    /// the ICRC instead.
    pub(crate) fn lacks_checksum(&self, frame: &[u8]) -> bool {
        self.checksum.is_some_and(|(start, _)| {
            let port = frame.get(start + 2..start + 4).unwrap_or_default();
            *port != UDP_PORT.to_be_bytes()
        })
    }

    /// Completes a missing checksum in the frame. RFC 1071. The checksum field already holds the
    /// sum over the pseudo header.
    pub(crate) fn complete(&self, frame: &mut [u8]) {
        let Some((start, at)) = self.checksum else { return };
        let Some(covered) = frame.get(start..) else { return };
        let word = |w: &[u8]| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b));
        let sum = covered.chunks(2).map(word).sum::<u32>();
        // Zero would mean that there is no checksum.
        let checksum = match !folded(sum) {
            0 => u16::MAX,
            other => other,
        };
        if let Some(to) = frame.get_mut(start + at..start + at + 2) {
            to.copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

/// Splits the virtio header from the frame. Returns `None` as the header of segments other than
/// UDP.
pub(super) fn parse_vnet(bytes: &[u8]) -> (Option<Vnet>, &[u8]) {
    let Some((vnet, frame)) = bytes.split_first_chunk::<VNET>() else { return (None, &[]) };
    let number = |at: usize| usize::from(u16::from_ne_bytes([vnet[at], vnet[at + 1]]));
    let gso_size = match vnet[1] & !VNET_GSO_ECN {
        VNET_GSO_NONE => 0,
        VNET_GSO_UDP_L4 => number(4),
        _ => return (None, frame),
    };
    let checksum = (vnet[0] & VNET_NEEDS_CSUM != 0).then(|| (number(6), number(8)));
    (Some(Vnet { gso_size, checksum }), frame)
}

/// Converts a length for a header. Lengths in a burst are at most 65,535.
fn number(n: usize) -> [u8; 2] {
    u16::try_from(n).unwrap_or(0).to_ne_bytes()
}

/// Returns the sum over the pseudo header of the UDP checksum, not inverted. RFC 768, 8200, 1071.
fn pseudo_sum(net: &NetHeader, udp_len: usize) -> u16 {
    let words = |octets: &[u8]| -> u32 {
        octets.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum()
    };
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&ip.octets()),
    };
    let len = u32::try_from(udp_len).unwrap_or(0);
    let sum = address(net.src) + address(net.dst) + u32::from(PROTOCOL_UDP) + len;
    folded(sum)
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_core::wire::frame::parse_ethernet;

    fn net(src: &str, dst: &str) -> NetHeader {
        NetHeader::outgoing(src.parse().unwrap(), dst.parse().unwrap(), 0xc001)
    }

    fn joined(headers: &Headers, payload: &[u8]) -> Vec<u8> {
        [headers.parts()[0], headers.parts()[1], payload].concat()
    }

    #[test]
    fn what_is_built_reads_back() {
        let payload = [0x5a; 30];
        for net in [net("10.0.0.1", "10.0.0.2"), net("fe80::1", "fe80::2")] {
            let plain = joined(&Headers::plain(&net, &payload, [2; 6], [4; 6]), &payload);
            assert_eq!(parse_ethernet(&plain).unwrap().1.net, net);
            assert_eq!(plain.len(), Headers::plain_len(&net) + payload.len());
            let single = Headers::offloaded(&net, &payload, None, [2; 6], [4; 6]);
            let single = joined(&single, &payload);
            let (vnet, frame) = parse_vnet(&single);
            assert_eq!(
                (vnet.unwrap().gso_size, parse_ethernet(frame).unwrap().1.payload),
                (0, &payload[..])
            );
            let burst = Headers::offloaded(&net, &payload, Some(10), [2; 6], [4; 6]);
            let burst = joined(&burst, &payload);
            let (vnet, frame) = parse_vnet(&burst);
            assert_eq!(
                (vnet.unwrap().gso_size, parse_ethernet(frame).unwrap().1.payload),
                (10, &payload[..])
            );
        }
    }

    #[test]
    fn a_partial_checksum_completes_to_the_right_one() {
        for payload in [&[1, 2, 3, 4][..], &[1, 2, 3]] {
            for net in [net("10.0.0.1", "10.0.0.2"), net("2001:db8::1", "2001:db8::2")] {
                let partial = Headers::offloaded(&net, payload, Some(2), [0; 6], [0; 6]);
                let partial = joined(&partial, payload);
                let (vnet, frame) = parse_vnet(&partial);
                let mut frame = frame.to_vec();
                vnet.unwrap().complete(&mut frame);
                let full = IpUdpHeader::new(&net, UDP_PORT, UdpChecksum::Compute, payload);
                let right = full.as_bytes().last_chunk::<2>().unwrap();
                assert_eq!(frame[frame.len() - payload.len() - 2..][..2], *right);
            }
        }
    }

    #[test]
    fn checksums_that_nobody_checks_are_not_completed() {
        let net = net("fe80::1", "fe80::2");
        let roce = joined(&Headers::offloaded(&net, &[7; 4], None, [0; 6], [0; 6]), &[7; 4]);
        let (vnet, frame) = parse_vnet(&roce);
        let (vnet, mut frame) = (vnet.unwrap(), frame.to_vec());
        assert!(!vnet.lacks_checksum(&frame));
        // Packets to another port need the checksum.
        frame[ETHERNET + 40 + 3] ^= 1;
        assert!(vnet.lacks_checksum(&frame));
        assert!(!Vnet::default().lacks_checksum(&frame));
    }

    #[test]
    fn places_outside_of_the_frame_do_no_harm() {
        for (start, at) in [(0, 65_535), (65_535, 0), (65_535, 65_535), (58, 0), (59, 1)] {
            let vnet = Vnet { gso_size: 0, checksum: Some((start, at)) };
            let mut frame = [0; 60];
            vnet.lacks_checksum(&frame);
            vnet.complete(&mut frame);
        }
    }

    #[test]
    fn other_segmentation_and_short_headers_are_refused() {
        assert_eq!(parse_vnet(&[0; 9]), (None, &[][..]));
        let tcp = [0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(parse_vnet(&tcp), (None, &[][..]));
    }
}
