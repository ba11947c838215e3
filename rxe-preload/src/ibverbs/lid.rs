//! Peers addressed by LID, for InfiniBand programs that do not use GIDs (`RXE_LIDS`).
//!
//! Ethernet has no LIDs, and kernel drivers refuse such programs.
//! Here the LID of a port is the low half of its device's first IPv4 address. The LID of a peer
//! stands for the IPv4 address with our high half and the LID as low half.

use std::net::{IpAddr, Ipv4Addr};

use rxe_verbs::{AddressVector, Gid};

/// Returns the LID of a port with these GIDs, or 0 (no LID) if it has no IPv4 address.
pub(super) fn of_port(gids: &[Gid]) -> u16 {
    first(gids).map_or(0, |(_, ip)| low(ip))
}

/// Returns the address vector of the peer with this LID, from a port with these GIDs.
pub(super) fn towards(gids: &[Gid], lid: u16) -> Option<AddressVector> {
    let (sgid_index, own) = first(gids)?;
    let [a, b, ..] = own.octets();
    let [c, d] = lid.to_be_bytes();
    Some(AddressVector {
        sgid_index,
        dgid: Gid::from(IpAddr::from([a, b, c, d])),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
    })
}

fn first(gids: &[Gid]) -> Option<(u16, Ipv4Addr)> {
    gids.iter().enumerate().find_map(|(at, gid)| match gid.to_ip() {
        IpAddr::V4(ip) if low(ip) != 0 => Some((u16::try_from(at).ok()?, ip)),
        _ => None,
    })
}

fn low(ip: Ipv4Addr) -> u16 {
    let [.., c, d] = ip.octets();
    u16::from_be_bytes([c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gids(addresses: &[&str]) -> Vec<Gid> {
        let ip = |address: &&str| Gid::from(address.parse::<IpAddr>().unwrap());
        addresses.iter().map(ip).collect()
    }

    #[test]
    fn a_lid_leads_to_the_port_that_has_it() {
        let own = gids(&["fe80::1", "fd09::1", "10.9.0.1", "10.8.0.7"]);
        let peer = gids(&["fe80::2", "10.9.200.2"]);
        assert_eq!((of_port(&own), of_port(&peer)), (1, 0xc802));
        let there = towards(&own, of_port(&peer)).unwrap();
        assert_eq!((there.sgid_index, there.dgid), (2, peer[1]));
        let back = towards(&peer, of_port(&own)).unwrap();
        assert_eq!((back.sgid_index, back.dgid), (1, own[2]));
    }

    #[test]
    fn without_an_ipv4_address_there_is_none() {
        let own = gids(&["fe80::1", "::", "10.9.0.0"]);
        assert_eq!(of_port(&own), 0);
        assert_eq!(towards(&own, 2), None);
    }
}
