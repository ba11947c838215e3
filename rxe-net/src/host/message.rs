//! The format of a frame between processes of one host. In a datagram or in shared memory, the
//! known fields of its IP and UDP headers precede its packets.

use std::net::{IpAddr, Ipv6Addr};

use rxe_core::wire::{Frame, IpId, NetHeader};

use super::control::VERSION;
use rxe_sys::addr::to_mapped_octets;

/// The length of the header in bytes.
pub(crate) const LEN: usize = 60;
/// The maximum number of packets in a message. A kernel merges or segments as many
/// (UDP_MAX_SEGMENTS since Linux 6.9).
pub const MAX_PACKETS: usize = 128;
const MAGIC: [u8; 4] = [b'r', b'x', b'f', VERSION];

/// Returns the header for a frame.
pub fn emit(frame: &Frame<'_>) -> [u8; LEN] {
    emit_header(&frame.net, frame.segment)
}

/// Returns the header for packets of `segment` bytes.
pub(crate) fn emit_header(net: &NetHeader, segment: usize) -> [u8; LEN] {
    let NetHeader { src, dst, src_port, tos, ttl, flow_label, id } = *net;
    let mut bytes = [0; LEN];
    let (kind, id, flags) = match id {
        IpId::Absent => (0, 0, 0),
        IpId::Hidden => (1, 0, 0),
        IpId::Known { id, flags } => (2, id, flags),
    };
    let segment = u32::try_from(segment).unwrap_or(u32::MAX);
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&[u8::from(src.is_ipv4()), tos, ttl, kind]);
    bytes[8..10].copy_from_slice(&src_port.to_be_bytes());
    bytes[12..16].copy_from_slice(&flow_label.to_be_bytes());
    bytes[16..18].copy_from_slice(&id.to_be_bytes());
    bytes[18..20].copy_from_slice(&flags.to_be_bytes());
    bytes[20..24].copy_from_slice(&segment.to_be_bytes());
    bytes[24..40].copy_from_slice(&to_mapped_octets(src));
    bytes[40..56].copy_from_slice(&to_mapped_octets(dst));
    bytes
}

/// Parses the frame in a datagram. Returns `None` if it is malformed.
pub fn parse(datagram: &[u8]) -> Option<Frame<'_>> {
    let (head, payload) = datagram.split_first_chunk()?;
    let (net, segment) = parse_header(head)?;
    if payload.is_empty() {
        return None;
    }
    let segment = segment.clamp(1, payload.len());
    // The receiver has a cost per packet, however short, so their number is limited.
    let frame = Frame { segment, ..Frame::single(net, payload) };
    (payload.len() <= MAX_PACKETS.saturating_mul(segment)).then_some(frame)
}

/// Parses a header: the known fields of the IP and UDP headers, and the size of a packet in bytes.
/// Returns `None` if it is malformed.
pub(crate) fn parse_header(head: &[u8; LEN]) -> Option<(NetHeader, usize)> {
    let [family, tos, ttl, kind] = head[4..8].try_into().ok()?;
    let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
    let address = |at: usize| -> Option<IpAddr> {
        let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&head[at..at + 16]).ok()?);
        if family == 1 { ip.to_ipv4_mapped().map(IpAddr::V4) } else { Some(ip.into()) }
    };
    let id = match kind {
        0 => IpId::Absent,
        1 => IpId::Hidden,
        _ => IpId::Known { id: half(16), flags: half(18) },
    };
    if head[..4] != MAGIC {
        return None;
    }
    let (src, dst) = (address(24)?, address(40)?);
    let net = NetHeader { src, dst, src_port: half(8), tos, ttl, flow_label: word(12), id };
    Some((net, usize::try_from(word(20)).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::control::ControlMessage;
    use crate::host::mad;

    proptest! {
        #[test]
        fn whatever_is_said_is_parsed_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            ours in any::<bool>(),
        ) {
            let with = |magic: &[u8]| [if ours { magic } else { &[] }, &bytes].concat();
            if let Some(frame) = parse(&with(&MAGIC)) {
                prop_assert!(!frame.payload.is_empty() && frame.segment > 0);
                prop_assert!(frame.segment <= frame.payload.len());
                prop_assert!(frame.payloads().count() <= MAX_PACKETS);
            }
            let _ = ControlMessage::parse(&with(b"rxe\x03"));
            let _ = mad::destination(&bytes);
        }
    }

    #[test]
    fn frames_survive_the_way_there_and_back() {
        for (src, dst, id) in [
            ("10.0.0.1", "10.0.0.2", IpId::Hidden),
            ("10.0.0.1", "10.0.0.2", IpId::Known { id: 7, flags: 0x4000 }),
            ("fe80::1", "2001:db8::1", IpId::Absent),
        ] {
            let net = NetHeader {
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                src_port: 4791,
                tos: 0x68,
                ttl: 63,
                flow_label: 0xabcde,
                id,
            };
            let frame = Frame { segment: 2, ..Frame::single(net, &[1, 2, 3, 4, 5]) };
            let bytes = [&emit(&frame)[..], frame.payload].concat();
            let got = parse(&bytes).unwrap();
            assert_eq!((got.net, got.payload, got.segment), (net, frame.payload, 2));
        }
    }

    #[test]
    fn whatever_else_comes_is_nothing() {
        assert!(parse(&[]).is_none());
        assert!(parse(&[0; LEN + 5]).is_none());
        let frame = Frame::single(NetHeader::default(), &[1]);
        let bytes = [&emit(&frame)[..], &[9]].concat();
        assert!(parse(&bytes).is_some() && parse(&bytes[..LEN]).is_none());
        let mut lies = bytes.clone();
        lies[20..24].copy_from_slice(&[0; 4]);
        assert_eq!(parse(&lies).unwrap().segment, 1);
        lies[20..24].copy_from_slice(&[0xff; 4]);
        assert_eq!(parse(&lies).unwrap().segment, 1);
    }

    #[test]
    fn packets_without_number_are_refused() {
        let payload = [0; MAX_PACKETS + 1];
        let message = |payload| {
            let frame = Frame { segment: 1, ..Frame::single(NetHeader::default(), payload) };
            [&emit(&frame)[..], payload].concat()
        };
        assert!(parse(&message(&payload[1..])).is_some());
        assert!(parse(&message(&payload)).is_none());
    }
}
