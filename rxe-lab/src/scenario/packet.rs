//! Builds a packet header by header.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{
    Ethernet, IpId, Mac, NetHeader, OpInfo, OpKind, Opcode, UDP_PORT, VlanTag, icrc,
};
use toml::{Spanned, Value};

use super::description::{Fields, Packet, Pattern};
use super::error::{Mistake, Result};
use super::field::{self, Place};
use super::mad;
use crate::header::{self, Header};

/// The most bytes of a payload. With its headers, an IP packet has at most 65,535.
const MAX_PAYLOAD: usize = 65_000;

/// The source and destination of a packet.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) macs: (Mac, Mac),
    pub(super) src_port: u16,
    pub(super) dest_qp: u32,
    /// The number of the sending queue pair.
    pub(super) src_qp: u32,
    pub(super) qkey: u32,
    /// The first PSN of the queue pair's requests, and the first PSN that it answers.
    pub(super) psns: (u32, u32),
}

impl Ends {
    /// Returns these ends with QP 1 and its Q_Key on both hosts.
    fn of_management(self) -> Self {
        Self { dest_qp: mad::QP1, src_qp: mad::QP1, qkey: mad::QP1_QKEY, ..self }
    }
}

/// A packet that was built.
pub(super) struct Built {
    pub(super) net: NetHeader,
    /// The bytes from the BTH on.
    pub(super) bytes: Vec<u8>,
    /// The bytes from the Ethernet header on.
    pub(super) frame: Vec<u8>,
}

/// The headers after UDP, in their order on the wire. IBTA 9.1.
static HEADERS: [&Header; 11] = [
    &header::BTH,
    &header::DETH,
    &header::XRCETH,
    &header::FETH,
    &header::RETH,
    &header::ATOMIC_ETH,
    &header::AETH,
    &header::ATOMIC_ACK_ETH,
    &header::IMM_DT,
    &header::IETH,
    &header::CNP,
];

/// Returns whether packets with this opcode have the header.
fn has(info: &OpInfo, name: &str) -> bool {
    match name {
        "BTH" => true,
        "DETH" => info.has_deth,
        "XRCETH" => info.has_xrceth,
        "FETH" => info.has_feth,
        "RETH" => info.has_reth,
        "AtomicETH" => info.has_atomic,
        "AETH" => info.has_aeth,
        "AtomicAckETH" => info.has_atomic_ack,
        "ImmDt" => info.has_imm,
        "IETH" => info.has_ieth,
        "CNP" => info.kind == OpKind::Cnp,
        _ => false,
    }
}

/// Builds the packet of the step at `span`. `place.nth` is how many it has built before.
pub(super) fn build(
    packet: &Packet,
    span: &Range<usize>,
    ends: &Ends,
    place: &mut Place<'_>,
) -> Result<Built> {
    let given = |name: &str| -> Option<&Spanned<Fields>> {
        match name {
            "DETH" => packet.deth.as_ref(),
            "XRCETH" => packet.xrceth.as_ref(),
            "FETH" => packet.feth.as_ref(),
            "RETH" => packet.reth.as_ref(),
            "AtomicETH" => packet.atomic_eth.as_ref(),
            "AETH" => packet.aeth.as_ref(),
            "AtomicAckETH" => packet.atomic_ack_eth.as_ref(),
            "ImmDt" => packet.imm_dt.as_ref(),
            "IETH" => packet.ieth.as_ref(),
            "CNP" => packet.cnp.as_ref(),
            _ => None,
        }
    };
    let ends = if mad::is_given(packet) { &ends.of_management() } else { ends };
    let opcode = opcode(packet)?;
    let info = opcode.info();
    place.psn = if info.is_some_and(OpInfo::is_response) { ends.psns.1 } else { ends.psns.0 };
    let headers = headers(packet, info)?;
    for header in HEADERS {
        if let Some(fields) = given(header.name)
            && !headers.iter().any(|named| named.name == header.name)
        {
            let (name, opcode) = (header.name, opcode.name());
            let text = format!("{opcode} has no {name}: name all headers in `headers` to add it");
            return Err(Mistake::at(fields, text));
        }
    }
    let payload = payload(packet, place)?;
    let pad = match &packet.pad {
        None => payload.len().wrapping_neg() % 4,
        Some(pad) if *pad.get_ref() > MAX_PAYLOAD => {
            return Err(Mistake::at(pad, format!("a pad has at most {MAX_PAYLOAD} bytes")));
        }
        Some(pad) => *pad.get_ref(),
    };
    let mut bytes = Vec::new();
    for header in headers {
        let at = bytes.len();
        bytes.resize(at + header.len, 0);
        let part = &mut bytes[at..];
        if header.name == "BTH" {
            let mut put = |name, value| field::put_named(header, part, name, value);
            put("OpCode", u64::from(opcode.0));
            put("M", 1);
            put("Pad", pad as u64 % 4);
            put("P_Key", 0xffff);
            put("DestQP", u64::from(ends.dest_qp));
            put("PSN", u64::from(place.psn));
            field::write(header, part, &packet.bth, place)?;
            continue;
        }
        match header.name {
            "RETH" => field::put_named(header, part, "DMALen", payload.len() as u64),
            "AETH" => field::put_named(header, part, "Syndrome", 0x1f),
            "DETH" => {
                field::put_named(header, part, "SrcQP", u64::from(ends.src_qp));
                field::put_named(header, part, "Q_Key", u64::from(ends.qkey));
            }
            _ => {}
        }
        if let Some(fields) = given(header.name) {
            field::write(header, part, fields.get_ref(), place)?;
        }
    }
    bytes.extend_from_slice(&payload);
    bytes.resize(bytes.len() + pad, 0);
    let (len, most) = (bytes.len(), MAX_PAYLOAD + 100);
    if len > most {
        let text = format!("the packet has {len} bytes from BTH to pad: at most {most} fit");
        return Err(Mistake::new(span.clone(), text));
    }
    around(packet, ends, bytes, place)
}

fn opcode(packet: &Packet) -> Result<Opcode> {
    let given = packet.bth.iter().find(|(name, _)| name.get_ref() == "OpCode");
    let Some((_, value)) = given else {
        let at = packet.qp.as_ref().or(packet.from.as_ref()).map_or(0..0, Spanned::span);
        return Err(Mistake::new(
            at,
            "this packet has no opcode: BTH = { OpCode = \"RC_SEND_ONLY\" }",
        ));
    };
    match value.get_ref() {
        Value::String(name) if name.parse::<u8>().is_err() && !name.starts_with("0x") => {
            field::opcode(value, name)
        }
        Value::Integer(number) => u8::try_from(*number)
            .map(Opcode)
            .map_err(|_| Mistake::at(value, "an opcode has 8 bits")),
        _ => Err(Mistake::at(value, "an opcode is a name or a number")),
    }
}

/// Returns the headers after UDP: those named in the step, or those of the opcode.
fn headers(packet: &Packet, info: Option<&OpInfo>) -> Result<Vec<&'static Header>> {
    let Some(names) = &packet.headers else {
        let has = |header: &&Header| match info {
            Some(info) => has(info, header.name),
            None => header.name == "BTH",
        };
        return Ok(HEADERS.into_iter().filter(has).collect());
    };
    let find = |name: &Spanned<String>| {
        let found = HEADERS.into_iter().find(|header| header.name == name.get_ref());
        found.ok_or_else(|| {
            let all: Vec<_> = HEADERS.iter().map(|header| header.name).collect();
            let text = format!("there is no header {:?}: {}", name.get_ref(), all.join(", "));
            Mistake::at(name, text)
        })
    };
    if names.len() > 16 {
        return Err(Mistake::at(&names[16], "a packet has at most 16 headers"));
    }
    names.iter().map(find).collect()
}

/// Returns the payload, without the pad.
fn payload<'p>(packet: &'p Packet, place: &mut Place<'_>) -> Result<Cow<'p, [u8]>> {
    if mad::is_given(packet) {
        return mad::payload(packet, place).map(Cow::Owned);
    }
    let (len, at) = match (&packet.bytes, &packet.data) {
        (Some(bytes), None) => (*bytes.get_ref(), bytes.span()),
        (Some(bytes), Some(_)) => {
            return Err(Mistake::at(bytes, "give either `bytes` or `data`"));
        }
        (None, Some(data)) => {
            let bytes = field::hex(data, data.get_ref())?;
            if bytes.len() > MAX_PAYLOAD {
                return Err(Mistake::at(
                    data,
                    format!("a payload has at most {MAX_PAYLOAD} bytes"),
                ));
            }
            return Ok(Cow::Owned(bytes));
        }
        (None, None) => (0, 0..0),
    };
    if len > MAX_PAYLOAD {
        return Err(Mistake::new(at, format!("a payload has at most {MAX_PAYLOAD} bytes")));
    }
    let pattern = packet.pattern.as_ref().map_or(Pattern::Count, |pattern| *pattern.get_ref());
    Ok(Cow::Owned(match pattern {
        Pattern::Zero => vec![0; len],
        Pattern::Count => (0..=u8::MAX).cycle().take(len).collect(),
        Pattern::Random => (0..len).map(|_| place.rng.next().to_le_bytes()[0]).collect(),
    }))
}

/// Adds the ICRC and the UDP, IP and Ethernet headers.
fn around(
    packet: &Packet,
    ends: &Ends,
    mut bytes: Vec<u8>,
    place: &mut Place<'_>,
) -> Result<Built> {
    let vlan = packet.vlan.as_ref().map(|_| VlanTag { tpid: VlanTag::CUSTOMER, tci: 0 });
    let (src, dst) = ends.macs;
    let ethernet = Ethernet { src, dst, vlan, ..Ethernet::default() };
    let plain = NetHeader::outgoing(ends.src, ends.dst, ends.src_port);
    let icrc_len = match packet.icrc.as_ref().map(Spanned::get_ref) {
        Some(Value::String(text)) if text == "none" => 0,
        _ => icrc::LEN,
    };
    let cut = packet.cut.min(bytes.len() + icrc_len);
    let len = bytes.len() + icrc_len - cut;
    // The outer headers: first with default values, then with the fields that are given.
    let mut frame = Vec::new();
    emit_ethernet(&ethernet, &plain, UDP_PORT, UdpChecksum::None, &vec![0; len], &mut frame);
    frame.truncate(frame.len() - len);
    let ip_at = header::ETHERNET.len + vlan.map_or(0, |_| header::VLAN.len);
    field::write(&header::ETHERNET, &mut frame[..header::ETHERNET.len], &packet.ethernet, place)?;
    if let Some(fields) = &packet.vlan {
        let tag = &mut frame[header::ETHERNET.len..ip_at];
        field::write(&header::VLAN, tag, fields, place)?;
    }
    let is_v4 = ends.dst.is_ipv4();
    let (ip, fields, other) = match is_v4 {
        true => (&header::IPV4, &packet.ipv4, &packet.ipv6),
        false => (&header::IPV6, &packet.ipv6, &packet.ipv4),
    };
    if let Some((name, _)) = other.iter().next() {
        return Err(Mistake::at(name, format!("the hosts of this packet speak {}", ip.name)));
    }
    let udp_at = ip_at + ip.len;
    field::write(ip, &mut frame[ip_at..udp_at], fields, place)?;
    if is_v4 && !fields.iter().any(|(name, _)| name.get_ref() == "HeaderChecksum") {
        checksum(&mut frame[ip_at..udp_at]);
    }
    field::write(&header::UDP, &mut frame[udp_at..udp_at + header::UDP.len], &packet.udp, place)?;
    let net = net(&frame[ip_at..udp_at], &frame[udp_at..], is_v4);
    add_icrc(packet, &net, &mut bytes, icrc_len)?;
    bytes.truncate(len);
    frame.extend_from_slice(&bytes);
    Ok(Built { net, bytes, frame })
}

/// Appends an ICRC of `len` bytes.
fn add_icrc(packet: &Packet, net: &NetHeader, bytes: &mut Vec<u8>, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let right = icrc::compute(net, bytes);
    let value = match &packet.icrc {
        None => right,
        Some(value) => match value.get_ref() {
            Value::String(text) if text == "right" => right,
            Value::String(text) if text == "wrong" => !right,
            Value::Integer(number) if u32::try_from(*number).is_ok() => {
                // As in the header table, the first byte on the wire is the most significant.
                u32::try_from(*number).unwrap_or(0).swap_bytes()
            }
            _ => {
                let text = "ICRC is \"right\", \"wrong\", \"none\" or a number of 32 bits";
                return Err(Mistake::at(value, text));
            }
        },
    };
    bytes.extend_from_slice(&value.to_le_bytes());
    Ok(())
}

/// Returns the parts of the IP and UDP headers that the ICRC covers.
fn net(ip: &[u8], udp: &[u8], is_v4: bool) -> NetHeader {
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let v4 = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap_or_default());
    let v6 = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap_or_default());
    let src_port = word(udp, 0);
    if is_v4 {
        NetHeader {
            tos: ip[1],
            ttl: ip[8],
            id: IpId::Known { id: word(ip, 4), flags: word(ip, 6) },
            ..NetHeader::outgoing(v4(12).into(), v4(16).into(), src_port)
        }
    } else {
        let tos = ip[0] << 4 | ip[1] >> 4;
        NetHeader { tos, ttl: ip[7], ..NetHeader::outgoing(v6(8).into(), v6(24).into(), src_port) }
    }
}

/// Writes the checksum into an IPv4 header without options. RFC 1071.
fn checksum(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let sum: u32 = ip.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    let [_, _, high, low] = (!folded).to_be_bytes();
    ip[10..12].copy_from_slice(&[high, low]);
}
