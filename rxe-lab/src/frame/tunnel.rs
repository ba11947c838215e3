//! Decodes tunnels and other encapsulations: which protocol is next behind each header.
//!
//! `header::tunnel` names the specifications.

use super::protocol::Protocol;
use super::{Next, Stop, Walk, u16_at};
use crate::header;

/// EtherTypes.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ETHERNET: u16 = 0x6558;
const MPLS: u16 = 0x8847;
const MPLS_UPSTREAM: u16 = 0x8848;
const PPP: u16 = 0x880b;
const PPPOE: u16 = 0x8864;
const I_TAG: u16 = 0x88e7;
const ERSPAN: u16 = 0x88be;
const ERSPAN_III: u16 = 0x22eb;
const ROCE_V1: u16 = 0x8915;
const NSH: u16 = 0x894f;

/// EtherTypes that begin a VLAN tag:
/// 802.1Q, 802.1ad, and a pre-standard one for the outer of two tags.
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// The most VLAN tags that are skipped.
const MAX_TAGS: usize = 4;

/// EtherTypes begin here; smaller numbers are lengths. IEEE 802.3.
const FIRST_ETHERTYPE: u16 = 0x600;

/// Protocol numbers of IP.
const IP_IN_IP: [u8; 2] = [4, 41];
const GRE: u8 = 47;
const MPLS_IN_IP: u8 = 137;
const ETHERNET_IN_IP: u8 = 143;

/// UDP ports. 8472 is that of Linux before the number was assigned, and still its default.
const VXLAN: [u16; 2] = [4789, 8472];
const VXLAN_GPE: u16 = 4790;
const GENEVE: u16 = 6081;
const GTP: u16 = 2152;
const MPLS_IN_UDP: u16 = 6635;

/// The most labels of one stack, and the most extension headers of GTP, that are followed.
const MAX_CHAIN: usize = 16;

impl<'a> Walk<'a> {
    pub(super) fn ethernet(&mut self) -> Result<Next<'a>, Stop> {
        let head = self.header(&header::ETHERNET)?;
        let number = self.tags(u16_at(head, 12))?;
        if number < FIRST_ETHERTYPE {
            self.narrow(self.at + usize::from(number));
            return Ok(Next::Llc);
        }
        self.ethertype(number)
    }

    /// Skips VLAN tags, if this is the EtherType of one. Returns the EtherType behind them.
    fn tags(&mut self, mut ethertype: u16) -> Result<u16, Stop> {
        for _ in 0..MAX_TAGS {
            if !TAGS.contains(&ethertype) {
                break;
            }
            ethertype = u16_at(self.header(&header::VLAN)?, 2);
        }
        Ok(ethertype)
    }

    /// Returns the protocol with this EtherType. VLAN tags are skipped.
    pub(super) fn ethertype(&mut self, ethertype: u16) -> Result<Next<'a>, Stop> {
        Ok(match self.tags(ethertype)? {
            IPV4 | IPV6 => Next::Ip,
            ROCE_V1 => Next::RoceV1,
            MPLS | MPLS_UPSTREAM => Next::Mpls,
            PPP => Next::Ppp,
            PPPOE => Next::Pppoe,
            NSH => Next::Nsh,
            I_TAG => Next::ITag,
            ETHERNET => Next::Ethernet,
            // All tags are one protocol.
            other if TAGS.contains(&other) => {
                return Err(Stop::Other(Protocol::EtherType(TAGS[0])));
            }
            other => return Err(Stop::Other(Protocol::EtherType(other))),
        })
    }

    /// Returns whether an IP protocol number is that of a tunnel.
    pub(super) fn is_tunnel(protocol: u8) -> bool {
        IP_IN_IP.contains(&protocol) || [GRE, MPLS_IN_IP, ETHERNET_IN_IP].contains(&protocol)
    }

    /// Decodes the header of a tunnel with this IP protocol number.
    #[inline(never)]
    pub(super) fn tunnel_in_ip(&mut self, protocol: u8) -> Result<Next<'a>, Stop> {
        match protocol {
            GRE => self.gre(),
            MPLS_IN_IP => Ok(Next::Mpls),
            ETHERNET_IN_IP => Ok(Next::Ethernet),
            _ => Ok(Next::Ip),
        }
    }

    /// Returns whether a UDP port is that of a tunnel.
    pub(super) fn is_tunnel_port(port: u16) -> bool {
        VXLAN.contains(&port) || [VXLAN_GPE, GENEVE, GTP, MPLS_IN_UDP].contains(&port)
    }

    /// Decodes the header of a tunnel with this UDP port.
    #[inline(never)]
    pub(super) fn tunnel_in_udp(&mut self, port: u16) -> Result<Next<'a>, Stop> {
        let other = Stop::Other(Protocol::Udp(port));
        match port {
            GENEVE => self.geneve(other),
            GTP => self.gtp(other),
            VXLAN_GPE => self.vxlan_gpe(other),
            MPLS_IN_UDP => Ok(Next::Mpls),
            _ => self.vxlan(other),
        }
    }

    fn vxlan(&mut self, other: Stop) -> Result<Next<'a>, Stop> {
        const HAS_VNI: u8 = 0x08;
        if self.peek(1)?[0] & HAS_VNI == 0 {
            return Err(other);
        }
        self.tunnel(&header::VXLAN)?;
        Ok(Next::Ethernet)
    }

    fn vxlan_gpe(&mut self, other: Stop) -> Result<Next<'a>, Stop> {
        const HAS_PROTOCOL: u8 = 0x04;
        if self.peek(1)?[0] & HAS_PROTOCOL == 0 {
            return self.vxlan(other);
        }
        let head = self.tunnel(&header::VXLAN_GPE)?;
        inner(head[3]).ok_or(other)
    }

    fn geneve(&mut self, other: Stop) -> Result<Next<'a>, Stop> {
        if self.peek(1)?[0] >> 6 != 0 {
            return Err(other);
        }
        let head = self.tunnel(&header::GENEVE)?;
        let end = self.at + usize::from(head[0] & 0x3f) * 4;
        while self.at < end {
            let len = 4 + usize::from(self.peek(4)?[3] & 0x1f) * 4;
            if self.at + len > end {
                return Err(Stop::Other(Protocol::DAMAGED));
            }
            self.layer(&header::GENEVE_OPTION, len)?;
        }
        self.ethertype(u16_at(head, 2))
    }

    /// Decodes GTP-U: version 1, message 255 (G-PDU).
    fn gtp(&mut self, other: Stop) -> Result<Next<'a>, Stop> {
        const E: u8 = 4;
        const E_S_PN: u8 = 7;
        let head = self.peek(2)?;
        if head[0] & 0xf0 != 0x30 || head[1] != 255 {
            return Err(other);
        }
        let head = self.tunnel(&header::GTP)?;
        self.narrow(self.at + usize::from(u16_at(head, 2)));
        if head[0] & E_S_PN == 0 {
            return Ok(Next::Ip);
        }
        let optional = self.header(&header::GTP_OPTIONAL)?;
        let mut next = if head[0] & E == 0 { 0 } else { optional[3] };
        for _ in 0..MAX_CHAIN {
            if next == 0 {
                return Ok(Next::Ip);
            }
            // The length is in words of 4 bytes.
            let len = usize::from(self.peek(1)?[0]) * 4;
            let last = self.layer(&header::GTP_EXTENSION, len)?.last();
            next = *last.ok_or(Stop::Other(Protocol::DAMAGED))?;
        }
        Err(Stop::Other(Protocol::NESTED))
    }

    /// Decodes GRE of version 0, and of version 1 (PPTP).
    fn gre(&mut self) -> Result<Next<'a>, Stop> {
        const CHECKSUM: u8 = 0x80;
        const ROUTING: u8 = 0x40;
        const KEY: u8 = 0x20;
        const SEQUENCE: u8 = 0x10;
        const ACKNOWLEDGMENT: u8 = 0x80;
        let head = self.peek(header::GRE.len)?;
        let (flags, version, protocol) = (head[0], head[1] & 7, u16_at(head, 2));
        let is_numbered = flags & SEQUENCE != 0;
        // RFC 2784 has no routing. Version 1 without a sequence number has no payload.
        if flags & ROUTING != 0 || version > 1 || version == 1 && !is_numbered {
            return Err(Stop::Other(Protocol::Ip(GRE)));
        }
        self.tunnel(&header::GRE)?;
        if flags & CHECKSUM != 0 {
            self.header(&header::GRE_CHECKSUM)?;
        }
        if flags & KEY != 0 {
            match (version, protocol) {
                (1, _) => self.header(&header::GRE_CALL)?,
                (_, ETHERNET) => self.tunnel(&header::NVGRE)?,
                _ => self.header(&header::GRE_KEY)?,
            };
        }
        if is_numbered {
            self.header(&header::GRE_SEQUENCE)?;
        }
        if version == 1 && head[1] & ACKNOWLEDGMENT != 0 {
            self.header(&header::GRE_ACKNOWLEDGMENT)?;
        }
        match protocol {
            ERSPAN if is_numbered => {
                let head = self.tunnel(&header::ERSPAN_II)?;
                self.mirrored(head);
                Ok(Next::Ethernet)
            }
            ERSPAN => Ok(Next::Ethernet),
            ERSPAN_III => self.erspan_iii(),
            other => self.ethertype(other),
        }
    }

    fn erspan_iii(&mut self) -> Result<Next<'a>, Stop> {
        const PLATFORM: u8 = 1;
        const FRAME_IS_IP: u8 = 2;
        let head = self.tunnel(&header::ERSPAN_III)?;
        if head[11] & PLATFORM != 0 {
            self.header(&header::ERSPAN_PLATFORM)?;
        }
        self.mirrored(head);
        match head[10] >> 2 & 0x1f {
            0 => Ok(Next::Ethernet),
            FRAME_IS_IP => Ok(Next::Ip),
            _ => Err(Stop::Other(Protocol::EtherType(ERSPAN_III))),
        }
    }

    /// Notes whether the switch has truncated the frame behind an ERSPAN header.
    /// The length of that frame on its wire is then unknown, as if the capture had truncated it.
    fn mirrored(&mut self, head: &[u8]) {
        const TRUNCATED: u8 = 4;
        /// More than the bytes of any frame with an IP packet.
        const MOST: usize = 1 << 17;
        if head[2] & TRUNCATED != 0 {
            self.bytes = &self.bytes[..self.bytes.len().min(self.limit)];
            (self.len, self.limit) = (self.at + MOST, self.at + MOST);
        }
    }

    /// Decodes a stack of MPLS labels. No field says what follows it.
    pub(super) fn mpls(&mut self) -> Result<Next<'a>, Stop> {
        const BOTTOM: u8 = 1;
        for _ in 0..MAX_CHAIN {
            if self.tunnel(&header::MPLS)?[2] & BOTTOM != 0 {
                return self.behind_labels();
            }
        }
        Err(Stop::Other(Protocol::NESTED))
    }

    /// Tells by its first bytes what is behind a stack of labels: an IP packet, or an Ethernet
    /// frame, which a control word may precede. RFC 4928, RFC 4448.
    fn behind_labels(&mut self) -> Result<Next<'a>, Stop> {
        let first = self.peek(1)?[0];
        let room = self.limit - self.at;
        let rest = &self.bytes[self.at..self.bytes.len().min(self.limit)];
        // An Ethernet address may begin like an IP packet, but the length that follows is then wrong.
        // Only a frame of minimal length is padded.
        let fits = |len: usize| len <= room && (len + 64 > room || !is_ethernet(rest));
        let is_ip = match first {
            0x45..=0x4f => fits(u16_at(rest, 2).into()),
            0x60..=0x6f => fits(usize::from(u16_at(rest, 4)) + header::IPV6.len),
            _ => false,
        };
        if is_ip {
            return Ok(Next::Ip);
        }
        let word = header::CONTROL_WORD.len;
        if first >> 4 == 0 && rest.get(word..).is_some_and(is_ethernet) {
            self.header(&header::CONTROL_WORD)?;
            return Ok(Next::Ethernet);
        }
        if is_ethernet(rest) {
            return Ok(Next::Ethernet);
        }
        let is_short = rest.len() < word + header::ETHERNET.len + 1;
        let other = Stop::Other(Protocol::EtherType(MPLS));
        Err(if is_short && rest.len() < room { Stop::Cut } else { other })
    }

    pub(super) fn pppoe(&mut self) -> Result<Next<'a>, Stop> {
        let head = self.tunnel(&header::PPPOE)?;
        if head[0] != 0x11 || head[1] != 0 {
            return Err(Stop::Other(Protocol::EtherType(PPPOE)));
        }
        self.narrow(self.at + usize::from(u16_at(head, 4)));
        Ok(Next::Ppp)
    }

    /// Decodes PPP, with or without the address and control fields of HDLC-like framing.
    pub(super) fn ppp(&mut self) -> Result<Next<'a>, Stop> {
        if self.peek(1)?[0] == 0xff {
            self.header(&header::PPP_FRAMING)?;
        }
        // An odd first byte is the whole protocol number. RFC 1661, 6.5.
        let protocol = match self.peek(1)?[0] {
            odd if odd & 1 == 1 => self.header(&header::PPP_COMPRESSED).map(|_| odd.into())?,
            _ => u16_at(self.header(&header::PPP)?, 0),
        };
        match protocol {
            0x21 | 0x57 => Ok(Next::Ip),
            0x281 | 0x283 => Ok(Next::Mpls),
            other => Err(Stop::Other(Protocol::Ppp(other))),
        }
    }

    pub(super) fn nsh(&mut self) -> Result<Next<'a>, Stop> {
        let other = Stop::Other(Protocol::EtherType(NSH));
        let head = self.tunnel(&header::NSH)?;
        let len = usize::from(head[1] & 0x3f) * 4;
        let context = len.checked_sub(head.len()).ok_or(Stop::Other(Protocol::DAMAGED))?;
        if context > 0 {
            self.layer(&header::NSH_CONTEXT, context)?;
        }
        inner(head[3]).ok_or(other)
    }

    pub(super) fn i_tag(&mut self) -> Result<Next<'a>, Stop> {
        self.tunnel(&header::I_TAG)?;
        Ok(Next::Ethernet)
    }

    pub(super) fn llc(&mut self) -> Result<Next<'a>, Stop> {
        /// DSAP, SSAP and control of SNAP.
        const SNAP: [u8; 3] = [0xaa, 0xaa, 3];
        let head = self.peek(SNAP.len())?;
        if head != SNAP {
            return Err(Stop::Other(Protocol::Llc(head[0])));
        }
        let head = self.header(&header::SNAP)?;
        let number = u16_at(head, 6);
        match head[3..6] {
            // RFC 1042, and IEEE 802.1H.
            [0, 0, 0 | 0xf8] => self.ethertype(number),
            [0, 0, 0x0c] => Err(Stop::Other(Protocol::Cisco(number))),
            _ => Err(Stop::Other(Protocol::Llc(SNAP[0]))),
        }
    }

    pub(super) fn cisco_hdlc(&mut self) -> Result<Next<'a>, Stop> {
        const SLARP: u16 = 0x8035;
        const CDP: u16 = 0x2000;
        match u16_at(self.header(&header::CISCO_HDLC)?, 2) {
            number @ (SLARP | CDP) => Err(Stop::Other(Protocol::Cisco(number))),
            number => self.ethertype(number),
        }
    }
}

/// Returns the protocol with this number in VXLAN-GPE and NSH.
fn inner(number: u8) -> Option<Next<'static>> {
    Some(match number {
        1 | 2 => Next::Ip,
        3 => Next::Ethernet,
        4 => Next::Nsh,
        5 => Next::Mpls,
        _ => return None,
    })
}

/// Returns whether bytes look like an Ethernet frame: by the EtherType, and what follows it.
fn is_ethernet(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.get(header::ETHERNET.len..) else { return false };
    let ethertype = u16_at(bytes, 12);
    match ethertype {
        IPV4 => rest.first().is_some_and(|first| first >> 4 == 4),
        IPV6 => rest.first().is_some_and(|first| first >> 4 == 6),
        MPLS | MPLS_UPSTREAM | NSH | I_TAG | ROCE_V1 => true,
        len if len < FIRST_ETHERTYPE => usize::from(len) <= rest.len() && rest.get(2) == Some(&3),
        other => TAGS.contains(&other) || Protocol::is_known_ethertype(other),
    }
}
