//! One RDMA packet, from the BTH to the ICRC. IBTA 9.2 to 9.6.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use rxe_core::cm::mad::{self, Mad, Message};
use rxe_core::cm::service::{IpCmHeader, PortSpace};
use rxe_core::types::Qpn;
use rxe_core::wire::{
    Aeth, AtomicEth, Bth, Deth, DropReason, Ext, Feth, IpId, NetHeader, OpInfo, OpKind, Position,
    Reth, Syndrome, icrc,
};

use super::unseen::Unseen;
use super::{Cover, Layers, u16_at};
use crate::header::{self, Header, Layer};

/// An RDMA packet in a frame.
#[derive(Clone, Debug)]
pub struct Transport<'a> {
    /// The frame's bytes.
    frame: &'a [u8],
    /// Its headers, then its payload and its ICRC, as far as they were captured.
    pub layers: Layers,
    /// Its first byte in the frame.
    pub at: usize,
    /// Its length on the wire, from the BTH to the ICRC.
    pub len: usize,
    /// The base transport header.
    pub bth: Bth,
    /// What follows from the opcode; `None` if it is unknown.
    pub info: Option<&'static OpInfo>,
    /// The extension headers that were captured whole.
    pub ext: Ext,
    /// Bytes of payload on the wire, without the pad.
    pub payload_len: usize,
    /// What is wrong with its structure. IBTA 9.6.
    pub wrong: Option<DropReason>,
    /// The verdict on its ICRC.
    pub icrc: Icrc,
    /// Its place among the packets of one frame, counted from 1, and how many they are; `None` if it
    /// is alone.
    pub segment: Option<(usize, usize)>,
    /// Packets of its frame behind it that were not captured.
    pub unseen: Unseen,
}

/// The verdict on an ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    /// It is right.
    Right,
    /// It is wrong.
    Wrong,
    /// It was not checked.
    Unchecked(Unchecked),
}

/// Why an ICRC was not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchecked {
    /// The packet was not captured whole.
    Cut,
    /// The packet is a fragment.
    Fragment,
    /// The IPv4 header has options, which RoCEv2 does not have.
    IpOptions,
    /// The IPv6 header has extension headers, which RoCEv2 does not have.
    Extension,
    /// The packet is not RoCEv2.
    NotV2,
    /// The packet ends before its ICRC.
    Absent,
}

impl fmt::Display for Unchecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cut => "not captured whole",
            Self::Fragment => "IP fragment",
            Self::IpOptions => "IPv4 options",
            Self::Extension => "IPv6 extension headers",
            Self::NotV2 => "not RoCEv2",
            Self::Absent => "the packet ends before it",
        })
    }
}

impl<'a> Transport<'a> {
    /// Whether it may be several packets that the host has not split yet, or has merged (GSO, GRO): what
    /// was captured does not reach to where the second would begin.
    pub fn may_be_several(&self) -> bool {
        self.segment.is_none() && self.icrc == Icrc::Unchecked(Unchecked::Cut)
    }

    /// The only packet of its frame that was seen, of which so many bytes were captured.
    pub(super) fn with_unseen(mut self, captured: usize) -> Self {
        if let Some(info) = self.info.filter(|_| self.may_be_several())
            && !self.is_whole_write(info)
        {
            self.unseen = Unseen::behind(info, captured, self.len, self.payload_len);
        }
        self
    }

    /// Whether it is a WRITE of one packet that ends where its RETH says, so that nothing follows in its frame.
    fn is_whole_write(&self, info: &OpInfo) -> bool {
        let is_one = info.kind == OpKind::Write && info.position == Position::Only;
        let announced = self.ext.reth.and_then(|reth| usize::try_from(reth.dma_len).ok());
        is_one && announced == Some(self.payload_len)
    }

    /// The packet at `at`, which ends at `end` on the wire; it is the `index`-th of its frame, from 0.
    /// `None` if its BTH is not there.
    pub(super) fn parse(
        frame: &'a [u8],
        at: usize,
        end: usize,
        cover: Cover,
        index: usize,
    ) -> Option<Self> {
        let bytes = frame.get(at..end.min(frame.len()))?;
        let len = end - at;
        let bth = Bth::parse(bytes.first_chunk()?);
        let info = bth.opcode.info();
        let mut it = Self {
            frame,
            layers: Layers::new(),
            at,
            len,
            bth,
            info,
            ext: Ext::default(),
            payload_len: 0,
            wrong: wrong(&bth, info, len).err(),
            icrc: Icrc::Unchecked(Unchecked::Absent),
            segment: None,
            unseen: Unseen::default(),
        };
        it.layers.push(Layer::new(&header::BTH, at));
        let after = info.map_or(header::BTH.len, |info| it.extensions(info, bytes));
        let body = len.saturating_sub(after + icrc::LEN);
        it.payload_len = body.saturating_sub(bth.pad.into());
        it.add_payload(after, bytes);
        if len >= header::BTH.len + icrc::LEN {
            it.icrc = verdict(bytes, len, cover, index);
            it.push(&header::ICRC, len - icrc::LEN, icrc::LEN, bytes);
        }
        Some(it)
    }

    /// Takes the headers that the opcode names. Returns where they end.
    fn extensions(&mut self, info: &OpInfo, bytes: &[u8]) -> usize {
        let mut at = header::BTH.len;
        let mut take = |present: bool, header: &'static Header| {
            let start = at;
            let rest = present.then(|| bytes.get(start..))??;
            at += header.len;
            self.layers.push(Layer::new(header, self.at + start));
            Some(rest)
        };
        let ext = &mut self.ext;
        let word = |bytes: &[u8]| bytes.first_chunk().map(|b| u32::from_be_bytes(*b));
        ext.deth =
            take(info.has_deth, &header::DETH).and_then(|b| Some(Deth::parse(b.first_chunk()?)));
        ext.xrc_srq = take(info.has_xrceth, &header::XRCETH).and_then(word);
        ext.feth =
            take(info.has_feth, &header::FETH).and_then(|b| Some(Feth::parse(b.first_chunk()?)));
        ext.reth =
            take(info.has_reth, &header::RETH).and_then(|b| Some(Reth::parse(b.first_chunk()?)));
        ext.atomic = take(info.has_atomic, &header::ATOMIC_ETH)
            .and_then(|b| Some(AtomicEth::parse(b.first_chunk()?)));
        ext.aeth =
            take(info.has_aeth, &header::AETH).and_then(|b| Some(Aeth::parse(b.first_chunk()?)));
        ext.atomic_ack = take(info.has_atomic_ack, &header::ATOMIC_ACK_ETH)
            .and_then(|b| b.first_chunk().map(|b| u64::from_be_bytes(*b)));
        ext.imm = take(info.has_imm, &header::IMM_DT).and_then(word);
        ext.ieth = take(info.has_ieth, &header::IETH).and_then(word);
        ext.cnp =
            take(info.kind == OpKind::Cnp, &header::CNP).and_then(|b| b.first_chunk().copied());
        info.header_len
    }

    /// Adds the payload: a management datagram, or bytes.
    fn add_payload(&mut self, after: usize, bytes: &[u8]) {
        if self.payload_len == 0 {
            return;
        }
        if !self.is_management() {
            return self.push(&header::PAYLOAD, after, self.payload_len, bytes);
        }
        self.push(&header::MAD, after, header::MAD.len, bytes);
        let after_header = after + header::MAD.len;
        let rest = self.payload_len.saturating_sub(header::MAD.len);
        let mad = bytes.get(after..).unwrap_or_default();
        let message = header::cm(u16_at(mad, 16)).filter(|_| mad.get(1) == Some(&CM_CLASS));
        match message {
            Some(message) if rest >= message.len => self.add_message(message, after_header, bytes),
            _ => self.push(&header::PAYLOAD, after_header, rest, bytes),
        }
    }

    /// Adds a message of the communication manager. What RDMA CM puts into it has headers of its own.
    fn add_message(&mut self, message: &'static Header, at: usize, bytes: &[u8]) {
        let Some((ip_cm, private)) = ip_cm(message, bytes.get(at..).unwrap_or_default()) else {
            return self.push(message, at, message.len, bytes);
        };
        self.push(message, at, private, bytes);
        self.push(&header::IP_SERVICE, at + header::SERVICE_ID, header::IP_SERVICE.len, bytes);
        self.push(ip_cm, at + private, message.len - private, bytes);
    }

    /// Adds a layer if any byte of it was captured.
    fn push(&mut self, header: &'static Header, at: usize, len: usize, bytes: &[u8]) {
        if len > 0 && at < bytes.len() {
            self.layers.push(Layer { header, at: self.at + at, len });
        }
    }

    /// Whether the payload is a management datagram: one of UD that goes to QP 0 or QP 1.
    fn is_management(&self) -> bool {
        self.ext.deth.is_some() && self.bth.dest_qp.value() <= 1 && self.payload_len >= mad::LEN
    }

    /// Whether it is a READ request of which the length was not captured.
    pub fn is_read_of_unknown_length(&self) -> bool {
        self.info.is_some_and(|info| info.kind == OpKind::ReadRequest) && self.ext.reth.is_none()
    }

    /// How many PSNs behind its own may be of what was not captured: of packets of its frame, if the path MTU is
    /// this one, or of a READ whose length is not known.
    pub fn most_unseen(&self, mtu: Option<usize>) -> u32 {
        const MAX_READ: u32 = 1 << 16;
        if self.is_read_of_unknown_length() { MAX_READ } else { self.unseen.most(mtu) }
    }

    /// Whether its headers were captured whole.
    pub fn has_whole_headers(&self) -> bool {
        let end = self.at + self.info.map_or(header::BTH.len, |info| info.header_len);
        self.frame.len() >= end
    }

    /// The captured bytes of the payload, without the pad.
    pub fn payload(&self) -> &'a [u8] {
        let from = self.at + self.info.map_or(header::BTH.len, |info| info.header_len);
        let to = self.frame.len().min(from + self.payload_len);
        self.frame.get(from..to).unwrap_or_default()
    }

    /// The message of communication management in it.
    pub fn cm_message(&self) -> Option<Message> {
        if !self.is_management() {
            return None;
        }
        Mad::new(self.payload().get(..mad::LEN)?)?.message()
    }

    /// Whether it is a NAK or an RNR NAK.
    pub fn is_nak(&self) -> bool {
        let syndrome = self.ext.aeth.map(|aeth| aeth.syndrome);
        matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. }))
    }

    /// The sender's queue pair, if the packet names it.
    pub fn source_qp(&self) -> Option<Qpn> {
        self.ext.deth.map(|deth| deth.src_qp)
    }
}

/// The class of communication management. IBTA 13.4.4.
const CM_CLASS: u8 = 7;

/// The header that the private data of a message begins with, and where that is in the message, if it is
/// a request for a port by RDMA CM. IBTA A11.
fn ip_cm(message: &'static Header, bytes: &[u8]) -> Option<(&'static Header, usize)> {
    let private = header::private_data_of_request(message)?;
    let service = bytes.get(header::SERVICE_ID..)?.first_chunk()?;
    PortSpace::of_service(u64::from_be_bytes(*service))?;
    let addresses = IpCmHeader::parse(bytes.get(private..)?.first_chunk()?)?;
    let ip_cm = if addresses.dst.is_ipv4() { &header::IP_CM } else { &header::IP_CM_V6 };
    Some((ip_cm, private))
}

/// Checks the structure of a packet, as [`rxe_core::wire::Packet::parse`] does, from its lengths alone.
fn wrong(bth: &Bth, info: Option<&OpInfo>, len: usize) -> Result<(), DropReason> {
    if bth.tver != 0 {
        return Err(DropReason::BadVersion);
    }
    let info = info.ok_or(DropReason::UnknownOpcode)?;
    let body = len.checked_sub(info.header_len + icrc::LEN).ok_or(DropReason::Truncated)?;
    if !body.is_multiple_of(4) {
        return Err(DropReason::BadLength);
    }
    if body < usize::from(bth.pad) {
        return Err(DropReason::BadPad);
    }
    if body != 0 && !info.has_payload {
        return Err(DropReason::UnexpectedPayload);
    }
    Ok(())
}

/// Checks the ICRC of the packet in these bytes, which has `len` on the wire.
fn verdict(bytes: &[u8], len: usize, cover: Cover, index: usize) -> Icrc {
    let net = match cover {
        Cover::None(why) => return Icrc::Unchecked(why),
        Cover::Ip(_) if bytes.len() < len => return Icrc::Unchecked(Unchecked::Cut),
        // The UDP length field counts 16 bits, with the UDP header.
        Cover::Ip(_) if len > usize::from(u16::MAX) - 28 => return Icrc::Wrong,
        Cover::Ip(net) => net,
    };
    if is_right(&net, bytes, index) { Icrc::Right } else { Icrc::Wrong }
}

/// Whether the ICRC of the `index`-th packet of a frame is right.
pub(super) fn is_right(net: &NetHeader, packet: &[u8], index: usize) -> bool {
    let own = net.nth(u16::try_from(index).unwrap_or(u16::MAX));
    if icrc::check(&own, packet).is_ok() {
        return true;
    }
    // Of several packets in one frame, the others' identifications are not in it.
    index > 0 && hidden(net).is_some_and(|net| icrc::check(&net, packet).is_ok())
}

/// The headers without the IPv4 identification.
pub(super) fn hidden(net: &NetHeader) -> Option<NetHeader> {
    let v4 = net.src != IpAddr::V4(Ipv4Addr::UNSPECIFIED) && net.src.is_ipv4();
    v4.then_some(NetHeader { id: IpId::Hidden, ..*net })
}
