//! The multicast groups that an endpoint receives, and its reports of them.
//!
//! Reports make switches and routers forward the groups' packets. The protocols are IGMPv2 of RFC
//! 2236 and MLDv1 of RFC 2710, which newer routers understand too (RFC 3376, section 7; RFC 3810,
//! section 8).
//!
//! smoltcp's interface is not used to join: version 0.12 reports an IPv6 group that it joins as one
//! that it leaves.
//!
//! Invariant: the number of queued messages is bounded by the number of groups that are received,
//! or were until the last tick.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rxe_core::types::Time;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv6Packet, IgmpPacket, IgmpRepr, IgmpVersion, IpProtocol,
    Ipv4Packet, Ipv6Packet,
};

use super::discovery::{ethernet, solicited_node};
use crate::host::membership::group_mac;
use crate::interface::Address;

/// The received groups, and the reports that are due.
#[derive(Debug, Default)]
pub(super) struct Groups {
    heard: Vec<IpAddr>,
    due: Vec<(Time, Message)>,
}

/// A message about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// The group is received.
    Report(IpAddr),
    /// The group is not received any more.
    Leave(IpAddr),
}

/// The time until a report is repeated, because it may be lost: as long as in newer versions. RFC
/// 3376, section 8.11; RFC 3810, section 9.11.
const AGAIN: Duration = Duration::from_secs(1);
/// The minimum delay of an answer: frequent queries get at most 20 answers per second for each
/// group.
const SOONEST: Duration = Duration::from_millis(50);

const ALL_ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
const ALL_ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// The Router Alert option, with which routers inspect the packet. RFC 2113.
const ROUTER_ALERT_V4: [u8; 4] = [0x94, 4, 0, 0];
/// A hop-by-hop header with the Router Alert option and padding, before ICMPv6. RFC 2711.
const ROUTER_ALERT_V6: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_LEN: usize = 24;

impl Groups {
    pub(super) fn hears(&self, group: IpAddr) -> bool {
        self.heard.contains(&group)
    }

    /// Starts receiving a group, and reports it twice.
    pub(super) fn join(&mut self, group: IpAddr, now: Time) {
        if self.hears(group) {
            return;
        }
        self.heard.push(group);
        self.due.retain(|(_, message)| *message != Message::Leave(group));
        if is_reported(group) {
            self.due.extend([now, now + AGAIN].map(|at| (at, Message::Report(group))));
        }
    }

    /// Joins the groups in which other hosts ask for these addresses. RFC 4861, section 7.2.1.
    pub(super) fn join_solicited(&mut self, addresses: &[Address], now: Time) {
        for address in addresses {
            if let IpAddr::V6(ip) = address.ip {
                self.join(solicited_node(ip).into(), now);
            }
        }
    }

    /// Undoes [`Groups::join`].
    pub(super) fn leave(&mut self, group: IpAddr, now: Time) {
        if !self.hears(group) {
            return;
        }
        self.heard.retain(|heard| *heard != group);
        self.due.retain(|(_, message)| *message != Message::Report(group));
        if is_reported(group) {
            self.due.push((now, Message::Leave(group)));
        }
    }

    /// Schedules reports if `frame` is a membership query. `mac` spreads the answers of many hosts
    /// over time.
    pub(super) fn input(&mut self, frame: &[u8], mac: [u8; 6], now: Time) {
        let Some((asked, within)) = query(frame) else { return };
        let at = now + (within * (u32::from(mac[5]) + 1) / 512).max(SOONEST);
        let is_asked = |group: IpAddr| {
            group.is_ipv4() == asked.is_ipv4() && (asked.is_unspecified() || group == asked)
        };
        for group in
            self.heard.iter().copied().filter(|&group| is_asked(group) && is_reported(group))
        {
            let report = Message::Report(group);
            if !self.due.iter().any(|(due, message)| *message == report && *due <= at) {
                self.due.retain(|(_, message)| *message != report);
                self.due.push((at, report));
            }
        }
    }

    /// Returns when the next message is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.due.iter().map(|(at, _)| *at).min()
    }

    /// Returns the frames that are due, from a host with this Ethernet address and these addresses.
    pub(super) fn due(&mut self, mac: [u8; 6], own: &[Address], now: Time) -> Vec<Vec<u8>> {
        let due = self.due.extract_if(.., |(at, _)| *at <= now);
        due.filter_map(|(_, message)| message.frame(mac, own)).collect()
    }
}

impl Message {
    /// Returns the frame of the message, or `None` without an own address of that family.
    fn frame(self, mac: [u8; 6], own: &[Address]) -> Option<Vec<u8>> {
        let mut own = own.iter().map(|address| address.ip);
        let (Self::Report(group) | Self::Leave(group)) = self;
        match group {
            IpAddr::V4(group) => {
                let own =
                    own.find_map(|ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None })?;
                Some(self.igmp(mac, own, group))
            }
            IpAddr::V6(group) => {
                let own = own.find_map(|ip| match ip {
                    IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
                    _ => None,
                })?;
                Some(self.mld(mac, own, group))
            }
        }
    }

    fn igmp(self, mac: [u8; 6], own: Ipv4Addr, group: Ipv4Addr) -> Vec<u8> {
        let (dst, repr) = match self {
            Self::Report(_) => (
                group,
                IgmpRepr::MembershipReport { group_addr: group, version: IgmpVersion::Version2 },
            ),
            Self::Leave(_) => (ALL_ROUTERS_V4, IgmpRepr::LeaveGroup { group_addr: group }),
        };
        const HEADER: u8 = 20 + 4;
        let header = usize::from(HEADER);
        let len = header + repr.buffer_len();
        ethernet(mac, group_mac(dst.into()), EthernetProtocol::Ipv4, len, |bytes| {
            bytes[20..header].copy_from_slice(&ROUTER_ALERT_V4);
            let mut packet = Ipv4Packet::new_unchecked(bytes);
            packet.set_version(4);
            packet.set_header_len(HEADER);
            packet.set_total_len(u16::try_from(len).unwrap_or(u16::MAX));
            packet.set_hop_limit(1);
            packet.set_next_header(IpProtocol::Igmp);
            packet.set_src_addr(own);
            packet.set_dst_addr(dst);
            packet.fill_checksum();
            repr.emit(&mut IgmpPacket::new_unchecked(packet.payload_mut()));
        })
    }

    fn mld(self, mac: [u8; 6], own: Ipv6Addr, group: Ipv6Addr) -> Vec<u8> {
        let (dst, kind) = match self {
            Self::Report(_) => (group, MLD_REPORT),
            Self::Leave(_) => (ALL_ROUTERS_V6, MLD_DONE),
        };
        const PAYLOAD: u16 = 8 + 24;
        let len = 40 + usize::from(PAYLOAD);
        ethernet(mac, group_mac(dst.into()), EthernetProtocol::Ipv6, len, |bytes| {
            let mut packet = Ipv6Packet::new_unchecked(bytes);
            packet.set_version(6);
            packet.set_payload_len(PAYLOAD);
            packet.set_next_header(IpProtocol::HopByHop);
            packet.set_hop_limit(1);
            packet.set_src_addr(own);
            packet.set_dst_addr(dst);
            let (alert, mld) = packet.payload_mut().split_at_mut(ROUTER_ALERT_V6.len());
            alert.copy_from_slice(&ROUTER_ALERT_V6);
            mld[0] = kind;
            mld[8..].copy_from_slice(&group.octets());
            Icmpv6Packet::new_unchecked(mld).fill_checksum(&own, &dst);
        })
    }
}

/// Returns whether a group is reported: not the all-hosts group, nor groups of host scope. RFC
/// 2236, section 6; RFC 2710, section 5.
fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group != Ipv4Addr::new(224, 0, 0, 1),
        IpAddr::V6(group) => {
            let scope = group.octets()[1] & 0xf;
            scope > 1 && group != Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)
        }
    }
}

/// Parses a membership query. Returns the group (the unspecified address: all groups of the
/// family), and the time within which hosts must answer.
fn query(frame: &[u8]) -> Option<(IpAddr, Duration)> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    match frame.ethertype() {
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
            if packet.next_header() != IpProtocol::Igmp || !packet.verify_checksum() {
                return None;
            }
            let igmp = IgmpPacket::new_checked(packet.payload()).ok()?;
            if !igmp.verify_checksum() {
                return None;
            }
            match IgmpRepr::parse(&igmp).ok()? {
                IgmpRepr::MembershipQuery { max_resp_time, group_addr, version } => {
                    let within = match version {
                        // RFC 2236, section 4.
                        IgmpVersion::Version1 => Duration::from_secs(10),
                        IgmpVersion::Version2 => max_resp_time.into(),
                    };
                    Some((group_addr.into(), within))
                }
                _ => None,
            }
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(frame.payload()).ok()?;
            // Queries must come from this link. RFC 2710, section 5.
            let is_near = packet.src_addr().is_unicast_link_local() && packet.hop_limit() == 1;
            if !is_near || packet.next_header() != IpProtocol::HopByHop {
                return None;
            }
            let payload = packet.payload();
            let (&next, &eights) = (payload.first()?, payload.get(1)?);
            let mld = payload.get((usize::from(eights) + 1) * 8..)?;
            if next != u8::from(IpProtocol::Icmpv6) || mld.len() < MLD_LEN || mld[0] != MLD_QUERY {
                return None;
            }
            let icmp = Icmpv6Packet::new_checked(mld).ok();
            // smoltcp takes a query of version 1 for a truncated one of version 2.
            let icmp = icmp.unwrap_or_else(|| Icmpv6Packet::new_unchecked(mld));
            if !icmp.verify_checksum(&packet.src_addr(), &packet.dst_addr()) {
                return None;
            }
            let group: [u8; 16] = mld[8..MLD_LEN].try_into().ok()?;
            let within = u16::from_be_bytes([mld[4], mld[5]]);
            Some((Ipv6Addr::from(group).into(), Duration::from_millis(within.into())))
        }
        _ => None,
    }
}
