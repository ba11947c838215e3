//! A packet from BTH to ICRC whose structure has been checked. Every received packet passes through
//! here.
//!
//! Invariants of a [`Packet`]: the version is 0; the opcode is in the table; the bytes contain all
//! of its headers, the pad and an ICRC; headers and padded payload are a multiple of 4 bytes; there
//! is a payload only if the opcode allows one. A [`Packet`] need not have a correct ICRC ([`icrc`])
//! or fields that are valid for a queue pair. IBTA 9.6.

use super::bth::BthView;
use super::header_len;
use super::net::Coalesced;
use super::opcode::{OpInfo, Position};
use super::{Aeth, AtomicEth, Bth, Deth, DropReason, Ext, Feth, OpKind, Opcode, Reth, icrc};
use crate::mem::{Source, Span};
use crate::types::{Mtu, Pkey, Psn, Qpn};

/// A packet whose structure has been checked.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    bth: BthView<'a>,
    info: &'static OpInfo,
    /// The end of the payload and start of the pad; not below `info.header_len`.
    payload_end: usize,
    /// The payload, if it is not in `bytes`.
    coalesced: Option<&'a Span<'a>>,
    /// The number of packets in this segment ([`Coalesced`]).
    count: u16,
    /// The payload bytes of each packet except the last.
    each: usize,
}

/// Returns the BTH and the row of its opcode.
#[inline]
fn first_header(bytes: &[u8]) -> Result<(BthView<'_>, &'static OpInfo), DropReason> {
    let bth = BthView::new(bytes).ok_or(DropReason::Truncated)?;
    if bth.tver() != 0 {
        return Err(DropReason::BadVersion);
    }
    let info = bth.opcode().info().ok_or(DropReason::UnknownOpcode)?;
    Ok((bth, info))
}

/// Returns the payload bytes of each packet except the last in a coalesced segment. `payload` is
/// the length of the whole payload. Returns `None` if no such segment exists. The path MTU is a
/// power of 2, so at most one value is possible.
fn each_of_coalesced(info: &OpInfo, count: u16, payload: usize) -> Option<usize> {
    let count = usize::from(count);
    let each = payload.div_ceil(count).next_power_of_two();
    let fits = if info.ends { payload > (count - 1) * each } else { payload == count * each };
    let is_mtu = (Mtu::M256.bytes()..=Mtu::M4096.bytes()).contains(&each);
    (fits && is_mtu && info.opcode.at(Position::Middle).is_some()).then_some(each)
}

/// Returns the bytes from BTH to ICRC of `count` packets with `payload` bytes of payload in total.
/// `info` is the row of the segment's opcode.
#[inline]
pub(super) fn wire_len(info: &OpInfo, count: u16, payload: usize) -> usize {
    let more = usize::from(count - 1);
    // Each packet has a BTH, an ICRC and, with XRC, an XRCETH. A READ response has an AETH at
    // either end.
    let xrc = if info.has_xrceth { header_len::WORD } else { 0 };
    let both = more > 0 && info.has_aeth && info.position == Position::Only;
    let aeth = if both { header_len::AETH } else { 0 };
    info.header_len
        + more * (header_len::BTH + xrc)
        + aeth
        + payload.next_multiple_of(4)
        + (1 + more) * icrc::LEN
}

impl<'a> Packet<'a> {
    /// Checks the structure of one UDP payload.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let (bth, info) = first_header(bytes)?;
        let body =
            bytes.len().checked_sub(info.header_len + icrc::LEN).ok_or(DropReason::Truncated)?;
        if !body.is_multiple_of(4) {
            return Err(DropReason::BadLength);
        }
        let payload = body.checked_sub(usize::from(bth.pad())).ok_or(DropReason::BadPad)?;
        if body != 0 && !info.has_payload {
            return Err(DropReason::UnexpectedPayload);
        }
        let payload_end = info.header_len + payload;
        Ok(Self { bytes, bth, info, payload_end, coalesced: None, count: 1, each: payload })
    }

    /// Checks the structure of a packet or a coalesced segment received through memory. The pad
    /// count must be the one that extends the payload to a multiple of 4, although there are no pad
    /// bytes.
    #[inline]
    pub fn parse_coalesced(packet: &'a Coalesced<'a>) -> Result<Self, DropReason> {
        let bytes = packet.head();
        let (bth, info) = first_header(bytes)?;
        if bytes.len() < info.header_len {
            return Err(DropReason::Truncated);
        }
        let (count, payload) = (packet.count(), packet.payload.len());
        if bytes.len() > info.header_len {
            return Err(DropReason::BadLength);
        }
        let each = if count == 1 {
            payload
        } else {
            each_of_coalesced(info, count, payload).ok_or(DropReason::BadLength)?
        };
        let last = payload - usize::from(count - 1) * each;
        if usize::from(bth.pad()) != header_len::pad(last) {
            return Err(DropReason::BadPad);
        }
        if payload != 0 && !info.has_payload {
            return Err(DropReason::UnexpectedPayload);
        }
        let payload_end = info.header_len;
        Ok(Self { bytes, bth, info, payload_end, coalesced: Some(&packet.payload), count, each })
    }

    /// Returns the number of packets: 1, or more for a coalesced segment ([`Coalesced`]).
    #[inline]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Returns the PSN after the last packet.
    #[inline]
    pub fn next_psn(&self) -> Psn {
        self.psn().add(self.count.into())
    }

    /// Returns the bytes from BTH to ICRC that all packets have on the wire.
    #[inline]
    pub fn wire_len(&self) -> usize {
        match self.coalesced {
            None => self.bytes.len(),
            Some(payload) => wire_len(self.info, self.count, payload.len()),
        }
    }

    /// Returns the payload bytes of each packet, without the pad. The last packet of a coalesced
    /// segment may have fewer.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.each
    }

    /// Returns the payload of all packets, without the pad.
    #[inline]
    pub fn source(&self) -> Source<'a> {
        match self.coalesced {
            None => Source::Bytes(self.payload()),
            Some(payload) => Source::Spans(std::slice::from_ref(payload)),
        }
    }

    /// Returns the bytes from BTH to ICRC; without the payload, if it is stored apart.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the base transport header.
    #[inline]
    pub fn bth(&self) -> Bth {
        self.bth.to_value()
    }

    /// Returns the properties of the opcode.
    #[inline]
    pub fn info(&self) -> &'static OpInfo {
        self.info
    }

    /// Returns the opcode.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.info.opcode
    }

    /// Returns the packet sequence number.
    #[inline]
    pub fn psn(&self) -> Psn {
        self.bth.psn()
    }

    /// Returns the destination queue pair.
    #[inline]
    pub fn dest_qp(&self) -> Qpn {
        self.bth.dest_qp()
    }

    /// Returns the partition key.
    #[inline]
    pub fn pkey(&self) -> Pkey {
        self.bth.pkey()
    }

    /// Returns whether the requester requests an acknowledgement.
    #[inline]
    pub fn ack_req(&self) -> bool {
        self.bth.ack_req()
    }

    /// Returns whether the completion is a solicited event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.bth.solicited()
    }

    /// Returns the RETH, if the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        let at = self.requests_at() + if self.info.has_feth { header_len::WORD } else { 0 };
        self.header(self.info.has_reth, at).map(Reth::parse)
    }

    /// Returns the AETH, if the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.header(self.info.has_aeth, header_len::BTH).map(Aeth::parse)
    }

    /// Returns the AtomicETH, if the opcode has one.
    #[inline]
    pub fn atomic(&self) -> Option<AtomicEth> {
        self.header(self.info.has_atomic, self.requests_at()).map(AtomicEth::parse)
    }

    /// Returns the original value of an atomic, if the opcode has an AtomicAckETH.
    #[inline]
    pub fn atomic_ack(&self) -> Option<u64> {
        let header = self.header(self.info.has_atomic_ack, header_len::BTH + header_len::AETH);
        header.copied().map(u64::from_be_bytes)
    }

    /// Returns the immediate data in host order, if the opcode has it.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.last_word(self.info.has_imm)
    }

    /// Returns the rkey to invalidate, if the opcode has one.
    #[inline]
    pub fn ieth(&self) -> Option<u32> {
        self.last_word(self.info.has_ieth)
    }

    /// Returns the DETH, if the opcode has one.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        self.header(self.info.has_deth, header_len::BTH).map(Deth::parse)
    }

    /// Returns the FETH, if the opcode has one.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        self.header(self.info.has_feth, self.requests_at()).map(Feth::parse)
    }

    /// Returns the shared receive queue of an XRC request: 8 reserved bits, then its number.
    #[inline]
    pub fn xrc_srq(&self) -> Option<u32> {
        self.header(self.info.has_xrceth, header_len::BTH).copied().map(u32::from_be_bytes)
    }

    /// Returns the offset of the request headers: after the BTH, and the XRCETH if there is one.
    #[inline]
    fn requests_at(&self) -> usize {
        header_len::BTH + if self.info.has_xrceth { header_len::WORD } else { 0 }
    }

    /// Returns all extension headers.
    pub fn ext(&self) -> Ext {
        Ext {
            reth: self.reth(),
            aeth: self.aeth(),
            atomic: self.atomic(),
            atomic_ack: self.atomic_ack(),
            imm: self.imm(),
            ieth: self.ieth(),
            deth: self.deth(),
            xrc_srq: self.xrc_srq(),
            feth: self.feth(),
            cnp: self.header(self.info.kind == OpKind::Cnp, header_len::BTH).copied(),
        }
    }

    /// Returns the payload without its pad, or nothing if it is stored apart ([`Packet::source`]).
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.info.header_len..self.payload_end).unwrap_or_default()
    }

    /// Returns the number of pad bytes after the payload, 0 to 3.
    #[inline]
    pub fn pad(&self) -> usize {
        usize::from(self.bth.pad())
    }

    /// Returns the ICRC in the packet; see [`icrc::check`].
    #[inline]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(self.bytes.last_chunk().copied().unwrap_or_default())
    }

    /// Returns all contents of the packet as values.
    pub fn to_repr(&self) -> PacketRepr<'a> {
        let mut pad_bytes = [0; 3];
        let pad = self.bytes.get(self.payload_end..self.payload_end + self.pad());
        for (to, from) in pad_bytes.iter_mut().zip(pad.unwrap_or_default()) {
            *to = *from;
        }
        PacketRepr { bth: self.bth(), ext: self.ext(), payload: self.payload(), pad_bytes }
    }

    /// Returns the header of `N` bytes at `at`, if the opcode has it.
    #[inline]
    fn header<const N: usize>(&self, present: bool, at: usize) -> Option<&'a [u8; N]> {
        if present { self.bytes.get(at..)?.first_chunk() } else { None }
    }

    /// Returns the last header as a word: ImmDt and IETH are always last.
    #[inline]
    fn last_word(&self, present: bool) -> Option<u32> {
        self.header(present, self.info.header_len - header_len::WORD)
            .copied()
            .map(u32::from_be_bytes)
    }
}

/// Formats the headers and the length of the payload.
impl std::fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packet")
            .field("bth", &self.bth())
            .field("ext", &self.ext())
            .field("payload_len", &self.source().len())
            .finish()
    }
}

/// A packet as values. [`emit`](super::emit::repr) creates the original bytes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRepr<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// The extension headers.
    pub ext: Ext,
    /// The payload without its pad.
    pub payload: &'a [u8],
    /// The pad bytes, which senders should set to zero.
    pub pad_bytes: [u8; 3],
}

#[cfg(test)]
mod tests;
