//! Decodes one RDMA packet, from the BTH to the ICRC. IBTA 9.2 to 9.6.

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
    /// The bytes of the whole frame.
    frame: &'a [u8],
    /// The headers, payload and ICRC of the packet, as far as they were captured.
    pub layers: Layers,
    /// The offset of the BTH in the frame.
    pub at: usize,
    /// The length of the packet on the wire in bytes, from the BTH to the ICRC.
    pub len: usize,
    /// The base transport header.
    pub bth: Bth,
    /// The properties of the opcode; `None` if the opcode is unknown.
    pub info: Option<&'static OpInfo>,
    /// The extension headers that were captured whole.
    pub ext: Ext,
    /// Bytes of payload on the wire, without the pad.
    pub payload_len: usize,
    /// The structural error of the packet, if any. IBTA 9.6.
    pub wrong: Option<DropReason>,
    /// The result of the ICRC check.
    pub icrc: Icrc,
    /// The position in a frame of several packets, counted from 1, and their number.
    /// `None` if the frame has one packet.
    pub segment: Option<(usize, usize)>,
    /// The packets behind this one in its frame that were not captured.
    pub unseen: Unseen,
}

/// The result of an ICRC check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    /// The ICRC is right.
    Right,
    /// The ICRC is wrong.
    Wrong,
    /// The ICRC was not checked, for this reason.
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
    /// Returns whether the packet may be the first of several in its frame (GSO, GRO).
    /// This is open if the frame was truncated before the place where a second packet would begin.
    pub fn may_be_several(&self) -> bool {
        self.segment.is_none() && self.icrc == Icrc::Unchecked(Unchecked::Cut)
    }

    /// Adds the estimate of unseen packets to the only packet found in a frame.
    /// `captured` is the number of bytes captured from the BTH on.
    pub(super) fn with_unseen(mut self, captured: usize) -> Self {
        if let Some(info) = self.info.filter(|_| self.may_be_several())
            && !self.is_whole_write(info)
        {
            self.unseen = Unseen::behind(info, captured, self.len, self.payload_len);
        }
        self
    }

    /// Returns whether the packet is a single-packet WRITE as long as its RETH says.
    /// No packet follows such a packet in its frame.
    fn is_whole_write(&self, info: &OpInfo) -> bool {
        let is_one = info.kind == OpKind::Write && info.position == Position::Only;
        let announced = self.ext.reth.and_then(|reth| usize::try_from(reth.dma_len).ok());
        is_one && announced == Some(self.payload_len)
    }

    /// Parses the packet from offset `at` to `end`; `None` if its BTH was not captured.
    /// `index` is the position of the packet in its frame, counted from 0.
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

    /// Parses the extension headers of the opcode.
    /// Returns the offset in the packet at which they end.
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

    /// Adds the payload as a layer; a management datagram becomes several layers.
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

    /// Adds a CM message. The parts that RDMA CM defines in it become layers of their own.
    fn add_message(&mut self, message: &'static Header, at: usize, bytes: &[u8]) {
        let Some((ip_cm, private)) = ip_cm(message, bytes.get(at..).unwrap_or_default()) else {
            return self.push(message, at, message.len, bytes);
        };
        self.push(message, at, private, bytes);
        self.push(&header::IP_SERVICE, at + header::SERVICE_ID, header::IP_SERVICE.len, bytes);
        self.push(ip_cm, at + private, message.len - private, bytes);
    }

    /// Adds a layer if at least one of its bytes was captured.
    fn push(&mut self, header: &'static Header, at: usize, len: usize, bytes: &[u8]) {
        if len > 0 && at < bytes.len() {
            self.layers.push(Layer { header, at: self.at + at, len });
        }
    }

    /// Returns whether the payload is a management datagram: a UD packet to QP 0 or QP 1.
    fn is_management(&self) -> bool {
        self.ext.deth.is_some() && self.bth.dest_qp.value() <= 1 && self.payload_len >= mad::LEN
    }

    /// Returns whether the packet is a READ request whose length was not captured.
    pub fn is_read_of_unknown_length(&self) -> bool {
        self.info.is_some_and(|info| info.kind == OpKind::ReadRequest) && self.ext.reth.is_none()
    }

    /// Returns how many PSNs after the packet's own may belong to uncaptured packets.
    /// These are the packets behind it in its frame, estimated with path MTU `mtu`, or the
    /// responses to a READ of unknown length.
    pub fn most_unseen(&self, mtu: Option<usize>) -> u32 {
        /// The most PSNs that a READ of unknown length is assumed to take.
        const MAX_READ: u32 = 1 << 16;
        if self.is_read_of_unknown_length() { MAX_READ } else { self.unseen.most(mtu) }
    }

    /// Returns whether the headers of the packet were captured whole.
    pub fn has_whole_headers(&self) -> bool {
        let end = self.at + self.info.map_or(header::BTH.len, |info| info.header_len);
        self.frame.len() >= end
    }

    /// Returns the captured bytes of the payload, without the pad.
    pub fn payload(&self) -> &'a [u8] {
        let from = self.at + self.info.map_or(header::BTH.len, |info| info.header_len);
        let to = self.frame.len().min(from + self.payload_len);
        self.frame.get(from..to).unwrap_or_default()
    }

    /// Returns the CM message in the packet, if there is one.
    pub fn cm_message(&self) -> Option<Message> {
        if !self.is_management() {
            return None;
        }
        Mad::new(self.payload().get(..mad::LEN)?)?.message()
    }

    /// Returns whether the packet is a NAK or an RNR NAK.
    pub fn is_nak(&self) -> bool {
        let syndrome = self.ext.aeth.map(|aeth| aeth.syndrome);
        matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. }))
    }

    /// Returns the sender's queue pair, if the packet states it (DETH).
    pub fn source_qp(&self) -> Option<Qpn> {
        self.ext.deth.map(|deth| deth.src_qp)
    }
}

/// The management class of the communication manager. IBTA 13.4.4.
const CM_CLASS: u8 = 7;

/// Returns the layer and offset of the RDMA CM header in a message's private data. IBTA A11.
/// `None` if the message is not a request for an RDMA CM port.
fn ip_cm(message: &'static Header, bytes: &[u8]) -> Option<(&'static Header, usize)> {
    let private = header::private_data_of_request(message)?;
    let service = bytes.get(header::SERVICE_ID..)?.first_chunk()?;
    PortSpace::of_service(u64::from_be_bytes(*service))?;
    let addresses = IpCmHeader::parse(bytes.get(private..)?.first_chunk()?)?;
    let ip_cm = if addresses.dst.is_ipv4() { &header::IP_CM } else { &header::IP_CM_V6 };
    Some((ip_cm, private))
}

/// Checks the structure of a packet from its lengths.
/// [`rxe_core::wire::Packet::parse`] makes the same checks.
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

/// Checks the ICRC of the packet in `bytes`, whose length on the wire is `len`.
fn verdict(bytes: &[u8], len: usize, cover: Cover, index: usize) -> Icrc {
    let net = match cover {
        Cover::None(why) => return Icrc::Unchecked(why),
        Cover::Ip(_) if bytes.len() < len => return Icrc::Unchecked(Unchecked::Cut),
        // An IPv4 packet has at most 65,535 bytes, of which 28 are IP and UDP headers.
        Cover::Ip(_) if len > usize::from(u16::MAX) - 28 => return Icrc::Wrong,
        Cover::Ip(net) => net,
    };
    if is_right(&net, bytes, index) { Icrc::Right } else { Icrc::Wrong }
}

/// Returns whether the ICRC of the `index`-th packet of a frame is right.
pub(super) fn is_right(net: &NetHeader, packet: &[u8], index: usize) -> bool {
    let own = net.nth(u16::try_from(index).unwrap_or(u16::MAX));
    if icrc::check(&own, packet).is_ok() {
        return true;
    }
    // A merged frame keeps only the IPv4 identification of its first packet.
    index > 0 && hidden(net).is_some_and(|net| icrc::check(&net, packet).is_ok())
}

/// Returns the headers with an unknown IPv4 identification; `None` for IPv6.
pub(super) fn hidden(net: &NetHeader) -> Option<NetHeader> {
    let v4 = net.src != IpAddr::V4(Ipv4Addr::UNSPECIFIED) && net.src.is_ipv4();
    v4.then_some(NetHeader { id: IpId::Hidden, ..*net })
}
