//! Decodes link layers, by the numbers of <https://www.tcpdump.org/linktypes.html>.

use super::{Address, Content, Next, Stop, Walk, u16_at};
use crate::capture::LinkType;
use crate::header;

const NULL: u16 = 0;
const ETHERNET: u16 = 1;
const RAW_BSD: u16 = 12;
const RAW_OPENBSD: u16 = 14;
const RAW: u16 = 101;
const LOOP: u16 = 108;
const SLL: u16 = 113;
const ERF: u16 = 197;
const IPV4: u16 = 228;
const IPV6: u16 = 229;
const INFINIBAND: u16 = 247;
const SLL2: u16 = 276;

/// EtherTypes that begin a VLAN tag:
/// 802.1Q, 802.1ad, and a pre-standard one for the outer of two tags.
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// The most VLAN tags that are skipped.
const MAX_TAGS: usize = 4;

/// The packet type in a cooked capture of a packet that this host sent.
const OUTGOING: u16 = 4;

/// ERF record types that hold Ethernet frames or InfiniBand packets.
const ERF_ETHERNET: [u8; 4] = [2, 11, 16, 20];
const ERF_INFINIBAND: u8 = 21;

/// Returns the name of a link type; `None` if frames of that type are not decoded.
pub fn link_name(link: LinkType) -> Option<&'static str> {
    Some(match link.0 {
        NULL | LOOP => "loopback",
        ETHERNET => "Ethernet",
        RAW | RAW_BSD | RAW_OPENBSD => "raw IP",
        IPV4 => "raw IPv4",
        IPV6 => "raw IPv6",
        SLL => "Linux cooked",
        SLL2 => "Linux cooked v2",
        ERF => "ERF",
        INFINIBAND => "InfiniBand",
        _ => return None,
    })
}

impl<'a> Walk<'a> {
    /// Decodes the link layer.
    pub(super) fn link(&mut self, link: LinkType) -> Result<Next, Stop> {
        match link.0 {
            ETHERNET => self.ethernet(),
            SLL => {
                let head = self.header(&header::SLL)?;
                self.place = (u16_at(head, 0) == OUTGOING).into();
                self.tags(u16_at(head, 14))
            }
            SLL2 => {
                let head = self.header(&header::SLL2)?;
                // Interface indices begin at 1 and have 31 bits.
                let outgoing = u16::from(head[10]) == OUTGOING;
                self.place = u32::from(u16_at(head, 6)) << 1 | u32::from(outgoing);
                self.tags(u16_at(head, 0))
            }
            // The number of the address family differs between operating systems; IP states its own
            // version.
            NULL | LOOP => self.header(&header::LOOPBACK).map(|_| Next::Ip),
            RAW | RAW_BSD | RAW_OPENBSD | IPV4 | IPV6 => Ok(Next::Ip),
            ERF => self.erf(),
            INFINIBAND => Ok(Next::Lrh),
            _ => Err(Stop::Other),
        }
    }

    fn ethernet(&mut self) -> Result<Next, Stop> {
        let head = self.header(&header::ETHERNET)?;
        self.tags(u16_at(head, 12))
    }

    /// Skips VLAN tags.
    fn tags(&mut self, mut ethertype: u16) -> Result<Next, Stop> {
        for _ in 0..MAX_TAGS {
            if !TAGS.contains(&ethertype) {
                break;
            }
            ethertype = u16_at(self.header(&header::VLAN)?, 2);
        }
        Ok(Next::EtherType(ethertype))
    }

    /// Decodes the record of an Endace card: header, extension headers, frame.
    fn erf(&mut self) -> Result<Next, Stop> {
        const MAX_EXTENSIONS: usize = 8;
        let head = self.header(&header::ERF)?;
        let kind = head[8] & 0x7f;
        let mut more = head[8] & 0x80 != 0;
        for _ in 0..MAX_EXTENSIONS {
            if !more {
                break;
            }
            more = self.header(&header::ERF_EXTENSION)?[0] & 0x80 != 0;
        }
        match kind {
            ERF_INFINIBAND => Ok(Next::Lrh),
            kind if ERF_ETHERNET.contains(&kind) => {
                // Two bytes of padding precede the Ethernet frame.
                self.at += 2;
                self.ethernet()
            }
            _ => Err(Stop::Other),
        }
    }

    /// Decodes RoCE version 1: a GRH behind the Ethernet header. IBTA A16.
    pub(super) fn roce_v1(&mut self) -> Result<Content<'a>, Stop> {
        let end = self.grh()?;
        self.rdma_without_icrc(end)
    }

    /// Decodes native InfiniBand, whose ICRC is followed by a VCRC of 2 bytes. IBTA 7.7.
    pub(super) fn native(&mut self) -> Result<Content<'a>, Stop> {
        const GRH: u8 = 3;
        const BTH: u8 = 2;
        let start = self.at;
        let head = self.header(&header::LRH)?;
        let (dlid, slid) = (u16_at(head, 2), u16_at(head, 6));
        self.ends = Some((Address::Lid(slid), Address::Lid(dlid)));
        // The length field counts words of 4 bytes, from the LRH to the ICRC.
        let end = start + usize::from(u16_at(head, 4) & 0x7ff) * 4;
        match head[1] & 0b11 {
            GRH => self.grh().map(|_| ())?,
            BTH => {}
            _ => return Err(Stop::Other),
        }
        self.rdma_without_icrc(end)
    }

    /// Consumes the global route header. Returns the offset at which the packet ends.
    fn grh(&mut self) -> Result<usize, Stop> {
        const NEXT_IS_BTH: u8 = 0x1b;
        let head = self.header(&header::GRH)?;
        if head[0] >> 4 != 6 || head[6] != NEXT_IS_BTH {
            return Err(Stop::Other);
        }
        let gid = |at: usize| {
            let bytes: [u8; 16] = std::array::from_fn(|i| head[at + i]);
            Address::Ip(rxe_core::types::Gid::from_bytes(bytes).to_ip())
        };
        self.ends = Some((gid(8), gid(24)));
        self.congestion_experienced = head[1] >> 4 & 0b11 == 0b11;
        Ok(self.at + usize::from(u16_at(head, 4)))
    }
}
