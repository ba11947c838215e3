//! Frames that ask which host has an address, and what such frames tell. ARP (RFC 826), neighbour
//! discovery (RFC 4861), and duplicate detection with both (RFC 5227, RFC 4862).
//!
//! The headers are smoltcp's. Its interface answers requests for an address; it neither detects
//! duplicates nor answers hosts that do, so this is done here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags,
    NdiscRepr, RawHardwareAddress,
};

use crate::host::membership::group_mac;

/// The information in a frame about the owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressInfo {
    /// The host with this Ethernet address has the IP address.
    Has(IpAddr, [u8; 6]),
    /// The host with this Ethernet address probes for the IP address, in order to use it.
    Probes(IpAddr, [u8; 6]),
}

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The hop limit of neighbour discovery, which proves that a packet is from this link. RFC 4861,
/// section 7.1.
const HOP_LIMIT: u8 = 255;

/// Returns what `frame` tells about an address, or `None` if it is about something else or
/// malformed.
pub(super) fn address_info(frame: &[u8]) -> Option<AddressInfo> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    match frame.ethertype() {
        EthernetProtocol::Arp => arp_address_info(frame.payload()),
        EthernetProtocol::Ipv6 => nd_address_info(frame.payload(), frame.src_addr().0),
        _ => None,
    }
}

fn arp_address_info(packet: &[u8]) -> Option<AddressInfo> {
    let packet = ArpPacket::new_checked(packet).ok()?;
    let ArpRepr::EthernetIpv4 {
        source_hardware_addr: mac,
        source_protocol_addr: source,
        target_protocol_addr: target,
        operation,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    match (source.is_unspecified(), operation) {
        (true, ArpOperation::Request) => Some(AddressInfo::Probes(target.into(), mac.0)),
        (true, _) => None,
        (false, _) => Some(AddressInfo::Has(source.into(), mac.0)),
    }
}

fn nd_address_info(packet: &[u8], sender: [u8; 6]) -> Option<AddressInfo> {
    let packet = Ipv6Packet::new_checked(packet).ok()?;
    if packet.next_header() != IpProtocol::Icmpv6 || packet.hop_limit() != HOP_LIMIT {
        return None;
    }
    let (src, dst) = (packet.src_addr(), packet.dst_addr());
    let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
    let sums = ChecksumCapabilities::default();
    let Icmpv6Repr::Ndisc(repr) = Icmpv6Repr::parse(&src, &dst, &icmp, &sums).ok()? else {
        return None;
    };
    let mac_of = |address: RawHardwareAddress| address.as_bytes().try_into().ok();
    match repr {
        NdiscRepr::NeighborSolicit { target_addr, .. } if src.is_unspecified() => {
            // A host without an address must not send its Ethernet address as an option: only the
            // frame has it.
            Some(AddressInfo::Probes(target_addr.into(), sender))
        }
        NdiscRepr::NeighborSolicit { lladdr, .. } => {
            Some(AddressInfo::Has(src.into(), lladdr.and_then(mac_of)?))
        }
        NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => {
            // A host that answers a unicast question may leave out its Ethernet address.
            Some(AddressInfo::Has(target_addr.into(), lladdr.and_then(mac_of)?))
        }
        _ => None,
    }
}

/// Returns a frame that asks all hosts for the owner of `target`. `own` is the address of the same
/// family to answer to.
pub(super) fn solicitation(mac: [u8; 6], own: IpAddr, target: IpAddr) -> Vec<u8> {
    match (own, target) {
        (IpAddr::V4(own), IpAddr::V4(target)) => {
            arp(ArpOperation::Request, mac, own, [0; 6], target)
        }
        (IpAddr::V6(own), IpAddr::V6(target)) => solicit(mac, own, target),
        _ => Vec::new(),
    }
}

/// Returns a frame that asks all hosts whether one has `target`, which this host wants to use.
pub(super) fn probe(mac: [u8; 6], target: IpAddr) -> Vec<u8> {
    match target {
        IpAddr::V4(target) => {
            arp(ArpOperation::Request, mac, Ipv4Addr::UNSPECIFIED, [0; 6], target)
        }
        IpAddr::V6(target) => solicit(mac, Ipv6Addr::UNSPECIFIED, target),
    }
}

/// Returns a frame that tells all hosts that this host has `ip`.
pub(super) fn announcement(mac: [u8; 6], ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => arp(ArpOperation::Reply, mac, ip, [0xff; 6], ip),
        IpAddr::V6(ip) => {
            let repr = NdiscRepr::NeighborAdvert {
                flags: NdiscNeighborFlags::OVERRIDE,
                target_addr: ip,
                lladdr: Some(EthernetAddress(mac).into()),
            };
            nd(mac, ip, ALL_NODES, repr)
        }
    }
}

/// Returns the Ethernet addresses of the groups in which other hosts ask for these addresses.
pub(super) fn groups(addresses: impl Iterator<Item = IpAddr>) -> Vec<[u8; 6]> {
    let asked = addresses.filter_map(|ip| match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(group_mac(solicited_node(ip).into())),
    });
    let mut groups: Vec<_> = asked.chain([group_mac(ALL_NODES.into())]).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Returns the solicited-node group of an address. RFC 4291, section 2.7.1.
pub(super) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    let last = [0xff00 | u16::from(a), u16::from_be_bytes([b, c])];
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, last[0], last[1])
}

fn arp(
    operation: ArpOperation,
    mac: [u8; 6],
    own: Ipv4Addr,
    target_mac: [u8; 6],
    target: Ipv4Addr,
) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: own,
        target_hardware_addr: EthernetAddress(target_mac),
        target_protocol_addr: target,
    };
    ethernet(mac, [0xff; 6], EthernetProtocol::Arp, repr.buffer_len(), |payload| {
        repr.emit(&mut ArpPacket::new_unchecked(payload));
    })
}

fn solicit(mac: [u8; 6], own: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    // A host without an address must not send its Ethernet address. RFC 4861, section 4.3.
    let lladdr = (!own.is_unspecified()).then(|| EthernetAddress(mac).into());
    nd(mac, own, solicited_node(target), NdiscRepr::NeighborSolicit { target_addr: target, lladdr })
}

fn nd(mac: [u8; 6], src: Ipv6Addr, dst: Ipv6Addr, repr: NdiscRepr<'_>) -> Vec<u8> {
    let icmp = Icmpv6Repr::Ndisc(repr);
    let ip = Ipv6Repr {
        src_addr: src,
        dst_addr: dst,
        next_header: IpProtocol::Icmpv6,
        payload_len: icmp.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let len = ip.buffer_len() + icmp.buffer_len();
    ethernet(mac, group_mac(dst.into()), EthernetProtocol::Ipv6, len, |payload| {
        let mut packet = Ipv6Packet::new_unchecked(payload);
        ip.emit(&mut packet);
        let mut inner = Icmpv6Packet::new_unchecked(packet.payload_mut());
        icmp.emit(&src, &dst, &mut inner, &ChecksumCapabilities::default());
    })
}

pub(super) fn ethernet(
    src: [u8; 6],
    dst: [u8; 6],
    ethertype: EthernetProtocol,
    len: usize,
    write: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let src_addr = EthernetAddress(src);
    let repr = EthernetRepr { src_addr, dst_addr: EthernetAddress(dst), ethertype };
    let mut bytes = vec![0; EthernetFrame::<&[u8]>::buffer_len(len)];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    repr.emit(&mut frame);
    write(frame.payload_mut());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_said_is_understood() {
        for (own, target) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2:3456")] {
            let (own, target) = (ip(own), ip(target));
            assert_eq!(
                address_info(&solicitation(MAC, own, target)),
                Some(AddressInfo::Has(own, MAC))
            );
            assert_eq!(address_info(&announcement(MAC, own)), Some(AddressInfo::Has(own, MAC)));
            assert_eq!(address_info(&probe(MAC, target)), Some(AddressInfo::Probes(target, MAC)));
        }
    }

    #[test]
    fn questions_go_to_the_group_of_the_address() {
        let frame = solicitation(MAC, ip("fe80::1"), ip("fd00::12:3456"));
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        assert_eq!(frame[38..54], "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(group_mac(ip("239.129.2.3")), [1, 0, 0x5e, 1, 2, 3]);
        let own = ["10.0.0.1", "fd00::12:3456", "fe80::12:3456"].map(ip);
        let expected = [[0x33, 0x33, 0, 0, 0, 1], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]];
        assert_eq!(groups(own.into_iter()), expected);
    }

    #[test]
    fn neighbour_discovery_from_beyond_a_router_is_not_believed() {
        let mut frame = announcement(MAC, ip("fe80::1"));
        frame[14 + 7] = 254;
        assert_eq!(address_info(&frame), None);
    }

    proptest! {
        #[test]
        fn damaged_frames_do_no_harm(
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<prop::sample::Index>(),
        ) {
            for frame in [
                solicitation(MAC, ip("fe80::1"), ip("fe80::2")),
                probe(MAC, ip("10.0.0.2")),
                announcement(MAC, ip("fe80::1")),
            ] {
                let mut frame = frame;
                let at = at.index(frame.len());
                frame[at] = byte;
                frame.truncate(cut.index(frame.len() + 1));
                address_info(&frame);
            }
        }
    }
}
