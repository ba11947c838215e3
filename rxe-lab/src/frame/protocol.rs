//! Names of protocols that are not followed: what the frames hold that have no RDMA packet.

use std::fmt;

use serde::{Serialize, Serializer};

/// A protocol that is not followed further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// The protocol with this EtherType.
    EtherType(u16),
    /// The protocol with this number in an IP header.
    Ip(u8),
    /// UDP; the number is the smaller of the two ports, which mostly tells the service.
    Udp(u16),
    /// The protocol with this number in a PPP header.
    Ppp(u16),
    /// The protocol with this DSAP in an LLC header.
    Llc(u8),
    /// A protocol of Cisco, by its number in SNAP or Cisco HDLC.
    Cisco(u16),
    /// An ERF record of this type.
    Erf(u8),
    /// A frame of this link type.
    LinkType(u16),
    /// Anything else, by its name.
    Named(&'static str),
}

impl Protocol {
    /// A header that contradicts itself, or that its packet is too short for.
    pub(super) const DAMAGED: Self = Self::Named("damaged headers");
    /// More headers, one in the other, than are followed.
    pub(super) const NESTED: Self = Self::Named("too many nested headers");

    /// Returns the name of a protocol that has one of its own.
    fn name(self) -> Option<&'static str> {
        let (table, number): (&[(u16, &str)], u16) = match self {
            Self::EtherType(number) => (ETHERTYPES, number),
            Self::Ip(number) => (IP, number.into()),
            Self::Ppp(number) => (PPP, number),
            Self::Llc(number) => (LLC, number.into()),
            Self::Cisco(number) => (CISCO, number),
            Self::Named(name) => return Some(name),
            Self::Udp(_) | Self::Erf(_) | Self::LinkType(_) => return None,
        };
        table.iter().find(|(of, _)| *of == number).map(|(_, name)| *name)
    }

    /// Returns whether an EtherType is that of a protocol with a name of its own.
    pub(super) fn is_known_ethertype(ethertype: u16) -> bool {
        Self::EtherType(ethertype).name().is_some()
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            return f.write_str(name);
        }
        match self {
            Self::EtherType(number) => write!(f, "EtherType 0x{number:04x}"),
            Self::Ip(number) => write!(f, "IP protocol {number}"),
            Self::Udp(port) => write!(f, "UDP {port}"),
            Self::Ppp(number) => write!(f, "PPP 0x{number:04x}"),
            Self::Llc(number) => write!(f, "LLC 0x{number:02x}"),
            Self::Cisco(number) => write!(f, "Cisco 0x{number:04x}"),
            Self::Erf(number) => write!(f, "ERF type {number}"),
            Self::LinkType(number) => write!(f, "link type {number}"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

impl Serialize for Protocol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// <https://www.iana.org/assignments/ieee-802-numbers>
const ETHERTYPES: &[(u16, &str)] = &[
    (0x0806, "ARP"),
    (0x0842, "Wake-on-LAN"),
    (0x22f3, "TRILL"),
    (0x8035, "RARP"),
    (0x8100, "VLAN"),
    (0x8137, "IPX"),
    (0x8808, "MAC control (pause, PFC)"),
    (0x8809, "slow protocols (LACP)"),
    (0x8847, "MPLS"),
    (0x8863, "PPPoE discovery"),
    (0x8864, "PPPoE"),
    (0x888e, "EAPOL"),
    (0x8892, "PROFINET"),
    (0x88a2, "ATA over Ethernet"),
    (0x88a4, "EtherCAT"),
    (0x88cc, "LLDP"),
    (0x88e5, "MACsec"),
    (0x88f5, "MVRP"),
    (0x88f7, "PTP"),
    (0x8902, "CFM"),
    (0x8906, "FCoE"),
    (0x8914, "FIP"),
    (0x894f, "NSH"),
    (0x9000, "loopback test"),
];

/// <https://www.iana.org/assignments/protocol-numbers>
const IP: &[(u16, &str)] = &[
    (1, "ICMP"),
    (2, "IGMP"),
    (6, "TCP"),
    (33, "DCCP"),
    (46, "RSVP"),
    (47, "GRE"),
    (50, "ESP"),
    (51, "AH"),
    (58, "ICMPv6"),
    (59, "IPv6 without a next header"),
    (88, "EIGRP"),
    (89, "OSPF"),
    (103, "PIM"),
    (112, "VRRP"),
    (115, "L2TPv3"),
    (132, "SCTP"),
    (136, "UDP-Lite"),
];

/// <https://www.iana.org/assignments/ppp-numbers>
const PPP: &[(u16, &str)] = &[
    (0x8021, "IPCP"),
    (0x8057, "IPV6CP"),
    (0xc021, "LCP"),
    (0xc023, "PAP"),
    (0xc025, "PPP link quality report"),
    (0xc223, "CHAP"),
    (0xc227, "EAP"),
];

const LLC: &[(u16, &str)] =
    &[(0x42, "STP"), (0xaa, "SNAP"), (0xe0, "IPX over LLC"), (0xf0, "NetBIOS"), (0xfe, "IS-IS")];

const CISCO: &[(u16, &str)] = &[
    (0x010b, "PVST+"),
    (0x0111, "UDLD"),
    (0x2000, "CDP"),
    (0x2003, "VTP"),
    (0x2004, "DTP"),
    (0x8035, "SLARP"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_protocols_have_one_name() {
        let mut names = BTreeSet::new();
        let by_number = (0..=u16::MAX).flat_map(|n| {
            [Protocol::EtherType(n), Protocol::Udp(n), Protocol::Ppp(n), Protocol::Cisco(n)]
        });
        let by_byte =
            (0..=u8::MAX).flat_map(|n| [Protocol::Ip(n), Protocol::Llc(n), Protocol::Erf(n)]);
        let named = [Protocol::DAMAGED, Protocol::NESTED];
        for protocol in by_number.chain(by_byte).chain(named) {
            assert!(names.insert(protocol.to_string()), "{protocol} twice");
        }
        for name in ["ARP", "TCP", "UDP 53", "LCP", "STP", "EtherType 0x1234", "IP protocol 99"] {
            assert!(names.contains(name), "{name}");
        }
    }
}
