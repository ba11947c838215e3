//! Decodes link layers, by the numbers of <https://www.tcpdump.org/linktypes.html>.

use super::protocol::Protocol;
use super::{Address, Content, Next, Stop, Walk, u16_at};
use crate::capture::LinkType;
use crate::header;

const NULL: u16 = 0;
const ETHERNET: u16 = 1;
const PPP: u16 = 9;
const RAW_BSD: u16 = 12;
const RAW_OPENBSD: u16 = 14;
const PPP_HDLC: u16 = 50;
const PPPOE: u16 = 51;
const RAW: u16 = 101;
const CISCO_HDLC: u16 = 104;
const WIFI: u16 = 105;
const LOOP: u16 = 108;
const SLL: u16 = 113;
const RADIOTAP: u16 = 127;
const ERF: u16 = 197;
const PPP_WITH_DIRECTION: u16 = 204;
const IPV4: u16 = 228;
const IPV6: u16 = 229;
const INFINIBAND: u16 = 247;
const SLL2: u16 = 276;

/// The packet type in a cooked capture of a packet that this host sent.
const OUTGOING: u16 = 4;

/// The number in a cooked capture in place of an EtherType for frames that begin with LLC.
const ETH_P_802_2: u16 = 4;

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
        PPP | PPP_HDLC | PPP_WITH_DIRECTION => "PPP",
        PPPOE => "PPPoE",
        CISCO_HDLC => "Cisco HDLC",
        WIFI => "802.11",
        RADIOTAP => "802.11 with radiotap",
        INFINIBAND => "InfiniBand",
        _ => return None,
    })
}

impl<'a> Walk<'a> {
    /// Decodes the link layer.
    pub(super) fn link(&mut self, link: LinkType) -> Result<Next<'a>, Stop> {
        match link.0 {
            ETHERNET => Ok(Next::Ethernet),
            SLL => {
                let head = self.header(&header::SLL)?;
                self.place = (u16_at(head, 0) == OUTGOING).into();
                self.cooked(u16_at(head, 14))
            }
            SLL2 => {
                let head = self.header(&header::SLL2)?;
                // Interface indices begin at 1 and have 31 bits.
                let outgoing = u16::from(head[10]) == OUTGOING;
                self.place = u32::from(u16_at(head, 6)) << 1 | u32::from(outgoing);
                self.cooked(u16_at(head, 0))
            }
            // The number of the address family differs between operating systems; IP states its own
            // version.
            NULL | LOOP => self.header(&header::LOOPBACK).map(|_| Next::Ip),
            RAW | RAW_BSD | RAW_OPENBSD | IPV4 | IPV6 => Ok(Next::Ip),
            ERF => self.erf(),
            PPP | PPP_HDLC => self.serial(),
            PPP_WITH_DIRECTION => {
                self.place = (self.header(&header::PPP_DIRECTION)?[0] != 0).into();
                Ok(Next::Ppp)
            }
            PPPOE => Ok(Next::Pppoe),
            CISCO_HDLC => self.cisco_hdlc(),
            WIFI => self.wifi(false),
            RADIOTAP => self.radiotap(),
            INFINIBAND => Ok(Next::Lrh),
            other => Err(Stop::Other(Protocol::LinkType(other))),
        }
    }

    /// Returns the protocol with this number in the header of a cooked capture.
    fn cooked(&mut self, number: u16) -> Result<Next<'a>, Stop> {
        if number == ETH_P_802_2 { Ok(Next::Llc) } else { self.ethertype(number) }
    }

    /// Decodes a frame of a serial line: PPP, or Cisco HDLC by its first byte.
    fn serial(&mut self) -> Result<Next<'a>, Stop> {
        match self.peek(1)?[0] {
            0x0f | 0x8f => self.cisco_hdlc(),
            _ => Ok(Next::Ppp),
        }
    }

    /// Decodes the record of an Endace card: header, extension headers, frame.
    fn erf(&mut self) -> Result<Next<'a>, Stop> {
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
                Ok(Next::Ethernet)
            }
            other => Err(Stop::Other(Protocol::Erf(other))),
        }
    }

    /// Decodes the header that a capture puts before an 802.11 frame. <https://www.radiotap.org/>
    fn radiotap(&mut self) -> Result<Next<'a>, Stop> {
        const HAS_TIME: u8 = 1;
        const HAS_FLAGS: u8 = 2;
        const IS_PADDED: u8 = 0x20;
        const WORDS: usize = 4;
        let head = self.peek(WORDS + 4)?;
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if len < head.len() {
            return Err(Stop::Other(Protocol::DAMAGED));
        }
        let head = self.layer(&header::RADIOTAP, len)?;
        // Each word that says which fields are present says whether another such word follows.
        let words = head[WORDS..].chunks_exact(4);
        let last = words.take_while(|word| word[3] & 0x80 != 0).count();
        let mut at = WORDS + (last + 1) * 4;
        if head[WORDS] & HAS_TIME != 0 {
            at = at.next_multiple_of(8) + 8;
        }
        let flags = head.get(at).filter(|_| head[WORDS] & HAS_FLAGS != 0);
        self.wifi(flags.is_some_and(|flags| flags & IS_PADDED != 0))
    }

    /// Decodes an 802.11 frame. If `is_padded`, the length of its header is rounded up to 4 bytes.
    fn wifi(&mut self, is_padded: bool) -> Result<Next<'a>, Stop> {
        const DATA: u8 = 2;
        const QOS: u8 = 8;
        const WITHOUT_DATA: u8 = 4;
        const TWO_STATIONS: u8 = 3;
        const PROTECTED: u8 = 0x40;
        const ORDER: u8 = 0x80;
        const AGGREGATE: u8 = 0x80;
        let other = |name| Err(Stop::Other(Protocol::Named(name)));
        let head = self.peek(2)?;
        let (kind, subtype, flags) = (head[0] >> 2 & 3, head[0] >> 4, head[1]);
        match kind {
            0 => return other("802.11 management"),
            DATA if subtype & WITHOUT_DATA != 0 => return other("802.11 without data"),
            DATA if flags & PROTECTED != 0 => return other("encrypted 802.11"),
            DATA => {}
            _ => return other("802.11 control"),
        }
        let start = self.at;
        let head = self.header(&header::WIFI)?;
        // The lower 4 bits of the sequence control field number the fragment.
        if head[22] & 0xf != 0 {
            return other("802.11 fragments");
        }
        if flags & TWO_STATIONS == TWO_STATIONS {
            self.header(&header::WIFI_ADDRESS)?;
        }
        if subtype & QOS != 0 {
            if self.header(&header::WIFI_QOS)?[0] & AGGREGATE != 0 {
                return other("802.11 A-MSDU");
            }
            if flags & ORDER != 0 {
                self.header(&header::WIFI_HT)?;
            }
        }
        if is_padded {
            self.at = start + (self.at - start).next_multiple_of(4);
        }
        Ok(Next::Llc)
    }

    /// Decodes RoCE version 1: a GRH behind the Ethernet header. IBTA A16.
    pub(super) fn roce_v1(&mut self) -> Result<Content<'a>, Stop> {
        if let Some((outer, _)) = self.ends {
            self.is_inside(outer);
        }
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
            _ => return Err(Stop::Other(Protocol::Named("InfiniBand without a BTH"))),
        }
        self.rdma_without_icrc(end)
    }

    /// Consumes the global route header. Returns the offset at which the packet ends.
    fn grh(&mut self) -> Result<usize, Stop> {
        const NEXT_IS_BTH: u8 = 0x1b;
        let head = self.header(&header::GRH)?;
        if head[0] >> 4 != 6 || head[6] != NEXT_IS_BTH {
            return Err(Stop::Other(Protocol::Named("GRH without a BTH")));
        }
        let gid = |at: usize| {
            let bytes: [u8; 16] = std::array::from_fn(|i| head[at + i]);
            Address::Ip(rxe_core::types::Gid::from_bytes(bytes).to_ip())
        };
        self.ends = Some((gid(8), gid(24)));
        self.congestion_experienced |= head[1] >> 4 & 0b11 == 0b11;
        Ok(self.at + usize::from(u16_at(head, 4)))
    }
}
